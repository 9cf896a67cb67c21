"""From finished trials to what reports show; the reports against kept copies (SWITCHYARD_WRITE_GOLDEN=1 writes them)."""

from __future__ import annotations

import json
import os
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from switchyard.evals.measure import measure_arm
from switchyard.evals.page import as_html
from switchyard.evals.report import as_markdown, as_text
from switchyard.evals.summary import summarise

from .runs import described, finished, whole_run

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return summarise(*whole_run())


@pytest.mark.parametrize(("name", "make"), [("report.html", as_html), ("report.md", as_markdown), ("report.txt", as_text)])
def test_golden_reports(report: dict[str, Any], name: str, make: Any) -> None:
    made = make(report)
    if os.environ.get("SWITCHYARD_WRITE_GOLDEN"):
        GOLDEN.mkdir(exist_ok=True)
        (GOLDEN / name).write_text(made)
    assert made == (GOLDEN / name).read_text(), "look at the difference; if it is meant, SWITCHYARD_WRITE_GOLDEN=1 writes it"


def test_it_is_plain_json(report: dict[str, Any]) -> None:
    assert json.loads(json.dumps(report, allow_nan=False)) == report


def test_the_page_is_whole_html_without_anything_from_outside(report: dict[str, Any]) -> None:
    opened: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            assert tag not in {"script", "link", "img", "iframe"}
            assert not {name for name, _ in attrs} & {"src", "href", "onclick"}
            if tag not in {"meta", "br", "line", "circle", "polyline"}:
                opened.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert opened.pop() == tag

    Reader().feed(as_html(report).replace("/>", ">"))
    assert opened == []


def test_names_from_suites_are_escaped() -> None:
    run = described(["<b>x"], ["big", "routed"], suite="<script>", policy="a&b")
    page = as_html(summarise(run, [finished(arm, "<b>x", category="<i>") for arm in ("big", "routed")]))
    assert "<script>" not in page
    assert "<b>x" not in page
    assert "<i>" not in page


def test_half_a_run_is_never_a_verdict() -> None:
    run, trials = whole_run()
    part = summarise(run, [t for t in trials if t.arm != "routed" or t.case.endswith("1")])
    assert not part["complete"]
    assert part["verdict"]["word"] == "inconclusive"
    assert "--resume goes on" in as_text(part)


@pytest.mark.parametrize("arms", [["big"], ["small"], ["big", "small"], ["routed"]])
def test_runs_without_both_sides_have_no_verdict(arms: list[str]) -> None:
    report = summarise(described(["a", "b"], arms), [finished(arm, case) for arm in arms for case in ("a", "b")])
    assert report["verdict"]["word"] == "inconclusive"
    assert "doesn't have both" in report["verdict"]["why"]
    assert as_text(report)
    assert as_markdown(report)
    assert as_html(report)


def test_nothing_has_run_yet() -> None:
    report = summarise(described(["a"], ["big", "routed"]), [])
    assert report["verdict"]["word"] == "inconclusive"
    assert as_html(report)
    assert as_text(report)


def test_everything_unscored() -> None:
    arms = ["big", "small", "routed", "big-again", "random"]
    report = summarise(described(["a"], arms), [finished(arm, "a", "unscored") for arm in arms])
    assert report["verdict"]["word"] == "inconclusive"
    assert len(report["problems"]) == 5
    assert as_html(report)
    assert as_text(report)


def test_cautions() -> None:
    cases = [f"c{i}" for i in range(92)]
    arms = ["big", "small", "routed"]
    weak = summarise(
        described(cases, arms), [finished(arm, c, "pass" if i < 20 else "fail") for arm in arms for i, c in enumerate(cases)]
    )
    assert weak["verdict"]["word"] == "non-inferior"
    assert any("passes only 21.7%" in c for c in weak["cautions"])
    assert any("doesn't tell them apart" in c for c in weak["cautions"])


# ---- measuring ----


def test_cost_counts_engine_time_and_nodes() -> None:
    trials = [finished("routed", "a", pool="qwen", wall_s=2.001), finished("routed", "b", pool="minicpm", wall_s=1.001)]
    assert measure_arm(trials, {"qwen": 2.0})["engine_s"] == pytest.approx(5.0)
    run = described(["a", "b"], ["big", "routed"])
    report = summarise(run, [finished("big", c, wall_s=2.001) for c in "ab"] + trials)
    assert report["arms"]["big"]["cost"] == 1
    assert report["arms"]["routed"]["cost"] == pytest.approx(5 / 8)


def test_a_gap_between_two_sittings_is_not_counted() -> None:
    trials = [finished("big", "a", began_s=10, wall_s=4), finished("big", "b", began_s=12, wall_s=4),
              finished("big", "c", began_s=500, wall_s=2)]  # fmt: skip
    assert measure_arm(trials, {})["busy_s"] == 8


def test_tokens_that_no_engine_told_are_unknown() -> None:
    trial = finished("big", "a")
    assert measure_arm([trial], {})["tokens"] == {"input": 300, "output": 40, "cached": None}
    refused = {"decision": {}, "ms": {"total": 3.0, "queue": None}, "pool": "", "tokens": {}}
    trial.decisions[:] = [refused]
    measured = measure_arm([trial], {})
    assert (measured["requests"], measured["tokens"]["input"], measured["engine_s"]) == (0, None, 0)
