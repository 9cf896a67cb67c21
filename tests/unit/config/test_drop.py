"""Keys are taken out of files of any style, and everything else in them stays as it is."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from switchyard.config.drop import drop_keys
from switchyard.config.edit import CannotEdit, set_value

FLOW = """\
# the machines
nodes:   # two of them
  - {name: s1, mgmt: 10.0.0.1}   # left rack
  - {name: s2, mgmt: 10.0.0.2}
pools: {}
"""
BLOCK = """\
nodes:
  - name: s1            # left rack
    mgmt: 10.0.0.1      # its address

  # the second
  - name: s2
    mgmt: 10.0.0.2
"""
LEASE = {"state": "lent", "owner": "anna", "until": "2026-12-01T18:00:00+01:00"}


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("text", [FLOW, BLOCK], ids=["flow", "block"])
def test_what_was_added_is_taken_out_again(text, number):
    lent = text
    for key, value in LEASE.items():
        lent = set_value(lent, ("nodes", number, key), value)
    assert yaml.safe_load(lent)["nodes"][number].items() >= LEASE.items()
    assert drop_keys(lent, ("nodes", number), LEASE) == text


def test_the_first_key_and_one_in_the_middle():
    assert drop_keys("a: {x: y, z: w, q: r}\n", ("a",), ["x"]) == "a: {z: w, q: r}\n"
    assert drop_keys("a: {x: y, z: w, q: r}\n", ("a",), ["z"]) == "a: {x: y, q: r}\n"
    assert yaml.safe_load(drop_keys("- x: y\n  z: w\n", (0,), ["x"])) == [{"z": "w"}]
    assert drop_keys("x: y\n", (), ["z"]) == "x: y\n"


def test_nothing_is_spoilt():
    with pytest.raises(CannotEdit, match="nothing would be left"):
        drop_keys("a: {x: y}\n", ("a",), ["x"])
    with pytest.raises(CannotEdit, match="by hand"):
        drop_keys("- &one\n  x: y\n  z: w\n- *one\n", (0,), ["x"])


words = st.text("abc: #'\"{}[],-", max_size=8)
entries = st.dictionaries(st.sampled_from(["name", "mgmt", "state", "owner"]), words, min_size=1)


@given(st.lists(entries, min_size=1, max_size=3), st.booleans(), st.sets(st.sampled_from(["state", "owner"]), min_size=1))
def test_what_is_meant_is_what_is_there(nodes, flow, keys):
    source = yaml.safe_dump({"nodes": nodes, "after": 1}, default_flow_style=flow, sort_keys=False, width=1000)
    try:
        text = drop_keys(source, ("nodes", len(nodes) - 1), keys)
    except CannotEdit:
        return
    left = {key: value for key, value in nodes[-1].items() if key not in keys}
    assert yaml.safe_load(text) == {"nodes": [*nodes[:-1], left], "after": 1}
