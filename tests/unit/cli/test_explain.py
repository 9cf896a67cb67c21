"""`switchyard explain`: the decision for a request in a file, without any engine."""

import io
import json
import sys

import pytest

from switchyard.cli.main import main

from ..agents import claude_code
from ..build import MINIMAL, chat

POLICY = (
    MINIMAL
    + """\
server: {decision_log: decisions.jsonl}
routes:
  auto:
    aliases: [claude-*]
    rules:
      - {when: {tools: {at_least: 9}}, use: big, why: many tools}
      - {when: {header.x-team: red}, use: big}
    classify: [{type: embedded}]
    choose: [{p_at_least: 0.6, use: small}, {use: big}]
  judged:
    classify: [{type: model, pool: small}]
    choose: [{p_at_least: 0.6, use: small}, {use: big}]
"""
)


@pytest.fixture
def explain(tmp_path, capsys, monkeypatch):
    """Runs the command on a body; gives exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policy.yaml").write_text(POLICY)

    def run(body, *flags: str) -> tuple[int, str, str]:
        (tmp_path / "request.json").write_bytes(body if isinstance(body, bytes) else json.dumps(body).encode())
        code = main(["explain", "policy.yaml", "request.json", *flags])
        return code, *capsys.readouterr()

    return run


def test_an_explanation_for_people(explain, tmp_path):
    code, out, err = explain(chat(("user", "hi")))
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "model auto -> route auto"
    assert lines[1] == "pool  small, then big if it can't be reached"
    assert lines[2].startswith("why   p 0.")
    assert any(line.startswith("session ") and line.endswith("(from fingerprint)") for line in lines)
    assert "     -     many tools -> big" in lines
    assert any(line.split() == ["turns", "1"] for line in lines)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["policy.yaml", "request.json"]  # nothing is written


def test_the_whole_of_it_as_json(explain):
    code, out, _ = explain(chat(("user", "hi")), "--json", "-H", "X-Team: red", "--header", "x-session-id: abc")
    found = json.loads(out)
    assert code == 0
    assert (found["model"], found["route"], found["pool"], found["kind"]) == ("auto", "auto", "big", "rule")
    assert found["session"]["source"] == "x-session-id"
    assert found["reasons"] == ["rule: header.x-team is red"]
    assert [r["matches"] for r in found["rules"]] == [False, True]
    assert found["signals"]["turns"] == 1
    assert set(found) >= {"fallbacks", "p", "classifier", "degraded"}


def test_other_endpoints_and_aliases(explain):
    code, out, _ = explain(claude_code(), "--endpoint", "/v1/messages", "--json")
    found = json.loads(out)
    assert (code, found["model"], found["route"], found["signals"]["protocol"]) == (0, "claude-opus-4-5", "auto", "messages")
    code, out, _ = explain(claude_code(), "--endpoint", "/v1/messages/count_tokens", "--json")
    assert json.loads(out)["signals"]["request_class"] == "count"


def test_a_model_classifier_counts_as_unavailable(explain):
    code, out, _ = explain({**chat(("user", "hi")), "model": "judged"}, "--json")
    found = json.loads(out)
    assert (code, found["pool"], found["degraded"]) == (0, "big", True)
    assert "explain asks no engine" in found["reasons"][0]


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        (b"{", 400, "invalid_request"),
        (b"", 400, "invalid_request"),
        (b'{"messages":[]}', 400, "invalid_request"),
        (b'{"model":"nobody","messages":[]}', 404, "model_not_found"),
        (b'{"model":"auto","model":"big"}', 400, "invalid_request"),
    ],
)
def test_a_request_that_would_be_refused(explain, body, status, error):
    code, out, err = explain(body)
    assert code == 1
    assert out.startswith(f"refused with {status} {error}: ")
    assert err == ""
    code, out, _ = explain(body, "--json")
    assert (code, json.loads(out)["refused"]["code"]) == (1, error)


def test_a_request_from_standard_input(explain, monkeypatch, capsys):
    explain(chat())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(chat(("user", "hi"))).encode())))
    assert main(["explain", "policy.yaml", "-"]) == 0
    assert capsys.readouterr().out.startswith("model auto")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["policy.yaml", "request.json", "--endpoint", "/v1/nowhere"], 2, "--endpoint must be one of /v1/chat/completions"),
        (["policy.yaml", "request.json", "-H", "nonsense"], 2, "a header looks like 'NAME: VALUE', not 'nonsense'"),
        (["policy.yaml", "missing.json"], 3, "can't read missing.json: No such file or directory"),
        (["missing.yaml", "request.json"], 3, "can't read missing.yaml: No such file or directory"),
    ],
)
def test_wrong_use_is_one_clear_line(explain, capsys, arguments, code, words):
    explain(chat())
    assert main(["explain", *arguments]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.startswith("switchyard explain: ")
    assert words in err


def test_a_bad_policy_shows_its_problems(explain, tmp_path, capsys):
    explain(chat())
    (tmp_path / "policy.yaml").write_text("version: 1\npols: 3\n")
    assert main(["explain", "policy.yaml", "request.json"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "policy.yaml:2:1: pols: unknown key pols (did you mean pools?)" in err
    assert err.splitlines()[-1] == "switchyard explain: policy.yaml has 2 problems"


def test_weights_that_are_not_there_are_named(explain, tmp_path, capsys):
    explain(chat())
    text = (tmp_path / "policy.yaml").read_text()
    assert "{type: embedded}" in text
    (tmp_path / "policy.yaml").write_text(text.replace("{type: embedded}", "{type: embedded, weights: nope.json}"))
    assert main(["explain", "policy.yaml", "request.json"]) == 1
    assert "policy.yaml: routes.auto.classify[0].weights: nope.json can't be read" in capsys.readouterr().err
