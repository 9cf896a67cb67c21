"""From finished trials to what reports show; the reports against kept copies (SWITCHYARD_WRITE_GOLDEN=1 writes them)."""

from __future__ import annotations

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from switchyard.evals.measure import measure_arm
from switchyard.evals.page import as_html
from switchyard.evals.report import HEAD, as_markdown, as_text
from switchyard.evals.summary import summarise

from .runs import described, finished, whole_run

GOLDEN = Path(__file__).parent / "golden"
MARKDOWN = MarkdownIt("gfm-like", {"linkify": False})


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


STRANGE = "a|b <img src=x> *bold* _low_ `code` [link](x) &amp; \\ ~~gone~~"


def test_names_and_messages_stand_in_markdown_as_they_are() -> None:
    run = described(["c"], ["big", "routed"], suite=f"prompts:{STRANGE}", policy=STRANGE, settings={"stop": "<|end|>"})
    trials = [finished(arm, "c", "error", category=STRANGE, detail=f"HTTP 500: {STRANGE}\n# no heading") for arm in run["arms"]]
    written = as_markdown(summarise(run, trials))
    kinds = {token.type for block in MARKDOWN.parse(written) for token in (block, *(block.children or ()))}
    assert not kinds & {"html_inline", "html_block", "em_open", "code_inline", "link_open", "s_open", "softbreak", "image"}
    shown = ["".join(t.content for t in b.children or ()) for b in MARKDOWN.parse(written) if b.type == "inline"]
    assert shown.count(STRANGE) == 2, "the category and the policy, each in one cell"
    assert f"error: big c: HTTP 500: {STRANGE} # no heading" in shown
    assert any(line.startswith(f"prompts:{STRANGE}: 1 cases") for line in shown)
    rows = [sum(c.type in {"td_open", "th_open"} for c in row) for row in _rows(MARKDOWN.parse(written))]
    assert set(rows) == {len(HEAD), 8, 2}, "no cell is cut in two"


def _rows(blocks: list[Token]) -> list[list[Token]]:
    rows: list[list[Token]] = []
    for block in blocks:
        if block.type == "tr_open":
            rows.append([])
        elif rows:
            rows[-1].append(block)
    return rows


def test_nothing_moves_the_cursor_of_a_terminal() -> None:
    run = described(["c"], ["big", "routed"])
    trials = [finished(arm, "c", "error", category="k\x1b[2J", detail="no\x1b[31m\r\nway\u202e") for arm in run["arms"]]
    report = summarise(run, trials)
    assert all(line.isprintable() for made in (as_text(report), as_markdown(report)) for line in made.split("\n"))
    assert "error: big c: no [31m  way " in as_text(report)


@pytest.mark.parametrize("again", [0.3, 0.9])
def test_both_runs_of_big_keep_their_names_apart(again: float) -> None:
    """At the right edge of the curve one name stands above its point and the other below, whichever run was better."""
    cases = [f"c{i}" for i in range(10)]
    run = described(cases, ["big", "small", "routed", "big-again"])
    rates = {"big": 0.6, "small": 0.5, "routed": 0.6, "big-again": again}
    trials = [
        finished(arm, case, "pass" if i < 10 * rates[arm] else "fail", pool="minicpm" if arm == "small" else "qwen")
        for arm in rates
        for i, case in enumerate(cases)
    ]
    found = re.findall(r'cy="([\d.]+)" r="5.5".*?y="([\d.]+)" text-anchor="end">([a-z-]+)<', as_html(summarise(run, trials)))
    above = {name: float(text) < float(point) for point, text, name in found}
    assert above["big"] is (again < 0.6)
    assert above["big-again"] is (again > 0.6)


def test_several_trials_are_told_as_such() -> None:
    run = described(["a", "b"], ["big", "routed"], trials=2)
    trials = [
        finished(arm, case, trial=t)
        for arm in run["arms"]
        for case in "ab"
        for t in (1, 2)
        if (arm, case, t) != ("routed", "a", 2)
    ]
    report = summarise(run, [*trials, finished("routed", "a", "error", trial=2, detail="HTTP 502")])
    assert "1 more often under big, 0 more often under routed (exact sign test p" in as_text(report)
    assert "error: routed a trial 2: HTTP 502" in as_text(report)
    for made in (as_markdown(report), as_html(report)):
        assert "Passed more often under big (1)" in made


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


def test_a_threshold_is_not_proved_by_the_cases_that_it_was_chosen_on() -> None:
    run, trials = whole_run(8)
    assert not any("forecast again" in c for c in summarise(run, trials)["cautions"])
    assert any("forecast again" in c for c in summarise({**run, "chosen_on_suite": True}, trials)["cautions"])


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
