"""A policy carries its verdict, and `check` says when it is about something else."""

import re
from datetime import date
from hashlib import sha256

import pytest

from switchyard.calibration.verdict import Found, replace_file, with_verdict, write_eval_verdict
from switchyard.cli.main import main
from switchyard.config.edit import CannotEdit
from switchyard.config.load import parse_policy

from ..build import problems_of

POLICY = """\
version: 1
pools:
  small: {model: s, replicas: [http://127.0.0.1:8001]}
  big: {model: b, replicas: [http://127.0.0.1:8002]}
routes:
  auto:
    classify: [{type: embedded}]       # quick
    choose:
      - {p_at_least: 0.6, use: small}
      - {use: big}

  # another
  other: {classify: [{type: embedded}], choose: [{p_at_least: 0.6, use: small}, {use: big}]}
"""
FOUND = Found("eval", "tool-use 3.0.0", 92, 5.0, (-2.123, 3.0), "non-inferior", date(2026, 11, 30))


def test_the_block_and_nothing_else():
    after = with_verdict(POLICY, "p.yaml", "auto", FOUND)
    lines = after.splitlines(keepends=True)
    at = lines.index("    evaluated:\n")
    assert "".join(lines[:at] + lines[at + 9 :]) == POLICY
    found = parse_policy(after.encode()).routes["auto"].evaluated
    assert (found.suite, found.date, found.cases, found.interval) == ("tool-use 3.0.0", "2026-11-30", 92, (-2.12, 3.0))
    assert with_verdict(after, "p.yaml", "auto", FOUND) == after
    assert "}, {use: big}], evaluated: {by: eval," in with_verdict(POLICY, "p.yaml", "other", FOUND)
    with pytest.raises(CannotEdit, match="no route nope"):
        with_verdict(POLICY, "p.yaml", "nope", FOUND)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("0.6, use: small}\n", "0.7, use: small}\n", "rules or thresholds changed"),
        ("model: b", "model: b2", "pools changed"),
        ("[{type: embedded}]       # quick", "[{type: embedded, bias: 1}]", "classifiers changed"),
        ("# quick", "# slow", ""),
        ("other: {classify: [{type: embedded}], ", "other: {", ""),
    ],
)
def test_check_warns_when_it_is_about_something_else(tmp_path, capsys, old, new, words):
    path = tmp_path / "p.yaml"
    text = with_verdict(POLICY, "p.yaml", "auto", FOUND)
    assert old in text
    path.write_text(text.replace(old, new, 1))
    assert main(["check", str(path)]) == 0
    out = capsys.readouterr().out
    warnings = re.findall(
        r"routes\.auto\.evaluated: (.+) since the verdict non-inferior of 2026-11-30 \(tool-use 3\.0\.0\)", out
    )
    assert warnings == ([words] if words else [])


def report(text, **changes):
    return {
        "run": {"suite": "mine", "version": "1", "policy_hash": sha256(text.encode()).hexdigest(),
                "started": "2026-11-30T10:00:00+0000", "names": {"route": "auto"}},
        "comparison": {"cases": 92, "interval_points": [-1.5, 2.5]}, "complete": True,
        "verdict": {"word": "non-inferior", "margin_points": 5.0},
    } | changes  # fmt: skip


def test_an_evals_verdict_is_written_into_the_file_that_it_ran(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text(POLICY)
    write_eval_verdict(path, report(POLICY))
    found = parse_policy(path.read_bytes()).routes["auto"].evaluated
    assert (found.by, found.suite, found.verdict, found.margin) == ("eval", "mine 1", "non-inferior", 5)
    with pytest.raises(CannotEdit, match="changed since the run began"):
        write_eval_verdict(path, report(POLICY))
    for change in ({"comparison": None}, {"complete": False}):
        path.write_text(POLICY)
        with pytest.raises(CannotEdit, match="compared nothing, or isn't complete"):
            write_eval_verdict(path, report(POLICY, **change))
        assert path.read_text() == POLICY


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real.yaml").write_text("a")
    (tmp_path / "link.yaml").symlink_to("real.yaml")
    replace_file(tmp_path / "link.yaml", b"b")
    assert (tmp_path / "link.yaml").is_symlink()
    assert (tmp_path / "real.yaml").read_text() == "b"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"2026-11-30"', '"yesterday"', "a quoted day"),
        ("[-2.12, 3.0]", "[1.0]", "two numbers"),
        ("cases: 92", "cases: 0", "greater than or equal to 1"),
        ("verdict: non-inferior", "verdict: fine", "non-inferior"),
        ("pools: ", "pools: x", "12 hexadecimal digits"),
    ],
)
def test_a_block_that_was_changed_by_hand_is_looked_at(old, new, words):
    text = with_verdict(POLICY, "p.yaml", "auto", FOUND)
    head, tail = text.split("evaluated:")
    (problem,) = problems_of(head + "evaluated:" + tail.replace(old, new, 1))
    assert problem.key.startswith("routes.auto.evaluated.")
    assert words in problem.message
