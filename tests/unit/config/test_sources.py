"""Where replicas are found when the policy doesn't list them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.cli.check import find_warnings
from switchyard.config.problem import PolicyError
from switchyard.config.sources import BadSource, file_path, host_and_port, read_replica_file

from ..build import policy_of

TEXT = "version: 1\npools: {{a: {{model: m, replicas: {}}}}}\nroutes: {{r: {{use: a}}}}\n"


@pytest.mark.parametrize(
    "source", ["dns://qwen.cluster:8000", "dns://[::1]:8000", "file:///etc/replicas.yaml", "file://x.yaml"]
)
def test_a_source_in_place_of_a_list(source):
    pool = policy_of(TEXT.format(f'"{source}"')).pools["a"]
    assert (pool.source, pool.listed) == (source, ())


@pytest.mark.parametrize("source", ["dns://qwen", "dns://:80", "dns://a:b", "dns://a:1/x", "file://", "http://h:1", "x"])
def test_what_is_no_source_is_refused(source):
    with pytest.raises(
        PolicyError, match=r"pools\.a\.replicas: a list of replicas is expected, or dns://NAME:PORT, or file://"
    ):
        policy_of(TEXT.format(f'"{source}"'))


def test_a_list_has_no_source():
    pool = policy_of(TEXT.format("[http://h:1]")).pools["a"]
    assert (pool.source, [r.label for r in pool.listed]) == (None, ["h:1"])


def test_where_they_lead():
    assert host_and_port("dns://qwen.cluster:8000") == ("qwen.cluster", 8000)
    assert host_and_port("dns://[::1]:81") == ("::1", 81)
    assert file_path("file:///etc/r.yaml", Path("/p")) == Path("/etc/r.yaml")
    assert file_path("file://r.yaml", Path("/p")) == Path("/p/r.yaml")


def test_a_file_lists_the_replicas_of_several_pools():
    raw = b"a: [http://h:1, {url: http://h:2, name: two, weight: 2, nodes: [s1, s2]}]\nb:\n- http://h:3\n"
    first, second = read_replica_file(raw, "f", "a")
    assert (first.label, second.label, second.weight, second.nodes) == ("h:1", "two", 2, ("s1", "s2"))
    assert [r.label for r in read_replica_file(raw, "f", "b")] == ["h:3"]


def test_check_looks_into_the_file(tmp_path):
    policy = policy_of(TEXT.format('"file://r.yaml"'))
    file = str(tmp_path / "policy.yaml")
    assert any("can't be read" in w for w in find_warnings(policy, file, {}))
    (tmp_path / "r.yaml").write_text("b: [http://h:1]")
    assert any("has no pool a" in w for w in find_warnings(policy, file, {}))
    (tmp_path / "r.yaml").write_text("a: [http://h:1]")
    assert list(find_warnings(policy, file, {})) == []


@given(st.one_of(st.binary(max_size=200), st.text(alphabet="a: [{}]-\n\thtp/1.0,url&*!", max_size=120).map(str.encode)))
def test_whatever_is_in_the_file_it_is_replicas_or_said(raw):
    try:
        found = read_replica_file(raw, "f", "a")
    except BadSource:
        return
    assert len({r.label for r in found}) == len(found) >= 1
