"""`switchyard check`: exit codes, every problem, warnings that don't make a policy bad."""

import json
from pathlib import Path

import pytest

from switchyard.cli.check import find_warnings
from switchyard.cli.main import main

from ..build import MINIMAL, policy_of

SCORED = "routes: {auto: {classify: [{type: embedded}], choose: "
ROUTES = SCORED + "[{p_at_least: 0.6, use: small}, {use: big}]}}\n"


@pytest.fixture
def write(tmp_path):
    def write_it(text: str) -> str:
        path = tmp_path / "policy.yaml"
        path.write_text(text)
        return str(path)

    return write_it


def test_a_good_policy(write, capsys):
    path = write(MINIMAL + ROUTES)
    assert main(["check", path]) == 0
    out, err = capsys.readouterr()
    assert out == f"{path} is good: 1 route, 2 pools, 2 replicas\n"
    assert err == ""


def test_a_bad_policy_shows_every_problem(write, capsys):
    path = write(MINIMAL + "sever: 1\nroutes: {auto: {use: bgi}}\n")
    assert main(["check", path]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{path}:9:1: sever: unknown key sever (did you mean server?)",
        f"{path}:10:17: routes.auto.use: there is no pool bgi (did you mean big?)",
    ]


def test_each_check_knows_the_other_kind_of_file(capsys):
    root = Path(__file__).parents[3]
    assert main(["check", str(root / "deploy" / "cluster.yaml")]) == 1
    assert "`switchyard cluster check " in capsys.readouterr().err
    assert main(["cluster", "check", str(root / "policies" / "spark-8.yaml")]) == 1
    assert "this looks like a policy: `switchyard check " in capsys.readouterr().err


def test_json_for_programs(write, capsys):
    assert main(["check", write(MINIMAL + "sever: 1\n"), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["good"], found["warnings"]) == (False, [])
    (problem,) = found["problems"]
    assert set(problem) == {"file", "line", "column", "key", "message", "hint"}
    assert (problem["line"], problem["key"]) == (9, "sever")
    assert main(["check", write(MINIMAL), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["good"], found["problems"]) == (True, [])
    assert found["warnings"] == ["there are no routes: clients can only ask for pools by name"]


@pytest.mark.parametrize("path", ["/nowhere/policy.yaml", "/"])
def test_a_file_that_cannot_be_read_is_no_verdict(path, capsys):
    assert main(["check", path]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"switchyard check: can't read {path}: ")
    assert len(err.splitlines()) == 1


# text behind MINIMAL (with routes, unless it has its own), word of the warning
WARNINGS = [
    ("server: {api_keys_env: SWITCHYARD_TEST_UNSET}\n" + ROUTES, "server.api_keys_env: the environment variable"),
    ("", "there are no routes"),
    ("  third: {model: m, replicas: [http://h:1], context: 32768}\n" + ROUTES, "pools.third: agents ask for 32000"),
    ("routes: {auto: {otherwise: big, check: {tool_calls: escalate}}}\n", "routes.auto.check.tool_calls"),
    ("routes: {auto: {otherwise: big, share: {pool: big, at_most: 0.5}}}\n", "routes.auto.share"),
    ("routes: {auto: {choose: [{p_at_least: 0.6, use: small}, {use: big}]}}\n", "classify is empty: every request goes to big"),
    ("routes: {auto: {otherwise: big, shadow: {share: 0.1}}}\n", "routes.auto.shadow: there is no larger pool"),
    (SCORED + "[{use: small}, {use: big}]}}\n", "routes.auto.choose[0] always holds"),
    (SCORED + "[{p_at_least: 0.4, use: small}, {p_at_least: 0.6, use: small}, {use: big}]}}\n",
     "routes.auto.choose[1]: p_at_least 0.6 is not below the one before it"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "words"), WARNINGS, ids=range(len(WARNINGS)))
def test_what_may_not_do_what_its_author_thinks_is_a_warning(text, words, write, capsys):
    assert [w for w in find_warnings(policy_of(MINIMAL + text), "p.yaml", {}) if words in w]
    path = write(MINIMAL + text)
    assert main(["check", path]) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line for line in out if line.startswith(f"{path}: warning: ") and words in line]
    assert out[-1].startswith(f"{path} is good")


@pytest.mark.parametrize(
    "text",
    [
        ROUTES,
        "  third: {model: m, replicas: [http://h:1], context: 32768, max_output_tokens: clamp}\n" + ROUTES,
        "  third: {model: m, replicas: [http://h:1], context: 131072}\n" + ROUTES,
        "routes: {auto: {use: big}}\n",
        "routes: {auto: {rules: [{when: {tools: 0}, use: small}], otherwise: big}}\n",
        "server: {api_keys_env: KEYS}\n" + ROUTES,
    ],
)
def test_no_warning_where_none_is_due(text):
    assert list(find_warnings(policy_of(MINIMAL + text), "p.yaml", {"KEYS": "k"})) == []


@pytest.mark.parametrize(
    ("content", "why"), [(None, "can't be read: No such file"), ("{}", "holds no weights as"), ("\0", "holds no")]
)
def test_weights_that_cannot_be_used_are_an_error(write, tmp_path, capsys, content, why):
    if content is not None:
        (tmp_path / "head.json").write_text(content)
    path = write(MINIMAL + ROUTES.replace("{type: embedded}", f"{{type: embedded, weights: {tmp_path}/head.json}}"))
    assert main(["check", path]) == 1
    out = capsys.readouterr().out
    assert out.startswith(f"{path}:1:1: routes.auto.classify[0].weights: {tmp_path}/head.json {why}")
    assert len(out.splitlines()) == 1


def test_the_shipped_policies_are_good(capsys, monkeypatch):
    monkeypatch.delenv("SWITCHYARD_API_KEYS", raising=False)
    for path in sorted((Path(__file__).parents[3] / "policies").glob("*.yaml")):
        assert main(["check", str(path)]) == 0
        assert f"{path} is good" in capsys.readouterr().out
