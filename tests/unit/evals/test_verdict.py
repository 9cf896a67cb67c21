"""Verdicts: the three words, what can't be known, and what would settle it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.evals.stats import cases_needed
from switchyard.evals.verdict import (
    Outcome,
    Outcomes,
    Verdict,
    compare,
    compare_categories,
    default_margin,
    judge,
    smallest_margin,
)

from .runs import outcomes


def judged(big: str, routed: str, margin: float = 0.05) -> Verdict:
    return judge(outcomes(big), outcomes(routed), margin)


@pytest.mark.parametrize(
    ("big", "routed", "margin", "word"),
    [
        ("1" * 92, "1" * 92, 0.05, "non-inferior"),
        ("1" * 90 + "00", "11" + "1" * 88 + "00", 0.05, "non-inferior"),
        ("1" * 92, "0" * 2 + "1" * 90, 0.05, "inconclusive"),
        ("1" * 92, "0" * 20 + "1" * 72, 0.05, "inferior"),
        ("1" * 92, "1" * 92, 0.02, "inconclusive"),
        ("1" * 1000, "0" * 2 + "1" * 998, 0.02, "non-inferior"),
        ("0" * 20 + "1" * 72, "1" * 92, 0.05, "non-inferior"),
    ],
)
def test_the_word(big: str, routed: str, margin: float, word: str) -> None:
    assert judged(big, routed, margin).word == word


def test_92_cases_cannot_show_a_margin_of_2() -> None:
    verdict = judged("1" * 92, "1" * 92, 0.02)
    assert "92 cases can't show a margin under 2.9 points" in verdict.why
    assert verdict.settled_by is not None
    assert verdict.settled_by > 133
    assert smallest_margin(133) < 0.02 < smallest_margin(132)


def test_what_would_settle_it() -> None:
    verdict = judged("1" * 92, "0" * 5 + "1" * 87)
    assert verdict.settled_by == 185  # 6.183 x (5 + 2) / 94 / 0.05^2
    assert verdict.settled_as_seen is not None
    assert verdict.settled_as_seen > 10_000, "the difference lies at the margin"


def test_a_baseline_that_passes_nothing_shows_nothing() -> None:
    for routed in ("0" * 92, "1" * 92):
        verdict = judged("0" * 92, routed)
        assert verdict.word == "inconclusive"
        assert "the baseline passes 0.0%: too little for this margin" in verdict.why


def test_a_margin_is_at_most_half_of_what_the_baseline_can_do() -> None:
    """9 of 92 passed, and all of them under both: five points are over half of that. 10 would do."""
    for passed, word in ((9, "inconclusive"), (10, "non-inferior")):
        same = "1" * passed + "0" * (92 - passed)
        assert judged(same, same).word == word
    assert judged("1" * 9 + "0" * 91, "0" * 100, margin=0.04).word == "inferior", "a loss is one, however weak the baseline"


def test_errors_are_failures() -> None:
    assert judged("1" * 92, "e" * 20 + "1" * 72).word == "inferior"


def test_errors_of_the_baseline_prove_nothing() -> None:
    assert judged("0" * 10 + "1" * 82, "0" * 10 + "1" * 82).word == "non-inferior"
    assert judged("e" * 10 + "1" * 82, "0" * 10 + "1" * 82).word == "inconclusive"
    assert judged("e" * 10 + "1" * 82, "1" * 92).word == "non-inferior"


def test_unscored_trials_leave_the_numbers_and_must_not_decide() -> None:
    seen = compare(outcomes("1" * 92), outcomes("u" * 10 + "1" * 82))
    assert (seen.cases, len(seen.unscored)) == (82, 10)
    assert seen.difference == 0
    assert judged("1" * 92, "u" * 10 + "1" * 82).word == "inconclusive"
    assert judged("1" * 400, "u" + "1" * 399).word == "non-inferior"
    assert judged("1" * 92, "u" * 20 + "0" * 6 + "1" * 66).word == "inconclusive"
    assert judged("1" * 92, "u" * 2 + "0" * 30 + "1" * 60).word == "inferior"


def test_nothing_to_compare() -> None:
    with pytest.raises(ValueError, match="no case was scored"):
        judged("uu", "11")


def test_several_trials_use_averages_and_the_bootstrap() -> None:
    def trials(text: str) -> list[Outcome]:
        return [Outcome("pass", 1.0) if c == "1" else Outcome("fail") for c in text]

    big: Outcomes = {f"c{i}": trials("111") for i in range(60)}
    routed: Outcomes = {f"c{i}": trials("011" if i < 3 else "111") for i in range(60)}
    seen = compare(big, routed)
    assert seen.trials == 3
    assert seen.method == "bootstrap over cases, and Tango's interval"
    assert seen.difference == pytest.approx(-3 / 3 / 60)
    assert seen.lost == ("c0", "c1", "c2")
    assert judge(big, routed, 0.1).word == "non-inferior"


def test_planning_with_several_trials_knows_what_the_averages_hide() -> None:
    """Half of the cases are passed in two of three trials, under one arm or the other: no majority differs."""

    def trials(text: str) -> list[Outcome]:
        return [Outcome("pass", 1.0) if c == "1" else Outcome("fail") for c in text]

    big: Outcomes = {f"c{i}": trials("111" if i % 2 else "110") for i in range(40)}
    routed: Outcomes = {f"c{i}": trials("110" if i % 2 else "111") for i in range(40)}
    seen = compare(big, routed)
    assert seen.counts.lost == pytest.approx(20 / 9)
    verdict = judge(big, routed, 0.02)
    assert verdict.settled_by == cases_needed((40 / 9 + 2) / 42, 0.02)


def test_partial_points_count_in_the_score_only() -> None:
    big = {f"c{i}": [Outcome("pass", 1.0)] for i in range(20)}
    routed = {f"c{i}": [Outcome("partial", 0.5)] for i in range(20)}
    seen = compare(big, routed)
    assert (seen.difference, seen.score_difference) == (-1, -0.5)


def test_the_alarm() -> None:
    assert not compare(outcomes("1" * 20), outcomes("0000" + "1" * 16)).regressed
    assert compare(outcomes("1" * 20), outcomes("00000" + "1" * 15)).regressed


def test_categories_are_corrected() -> None:
    big, routed = outcomes("1" * 40), outcomes("00000" + "1" * 35)
    rows = compare_categories(big, routed, {f"case-{i}": "a" if i < 10 else "b" if i < 25 else "c" for i in range(40)})
    assert [row.category for row in rows] == ["a", "b", "c"]
    assert rows[0].comparison.regressed
    assert rows[0].p_regression == pytest.approx(3 / 32), "corrected for three categories: no alarm"


def test_default_margins() -> None:
    assert [default_margin(n) for n in (92, 999, 1000)] == [0.05, 0.05, 0.02]


letters = st.text(alphabet="10eu", min_size=30, max_size=120)


@given(letters, letters)
def test_a_decided_verdict_survives_every_ending_of_the_unscored(big: str, routed: str) -> None:
    n = min(len(big), len(routed))
    big, routed = big[:n], routed[:n]
    try:
        verdict = judged(big, routed, 0.1)
    except ValueError:
        return
    if verdict.word == "inconclusive":
        return
    for b in "10":
        for r in "10":
            ended = judged(big.replace("u", b), routed.replace("u", r), 0.1)
            assert ended.word in {verdict.word, "inconclusive"}
            if verdict.word == "non-inferior" and (b, r) == ("1", "0"):
                assert judged(big.replace("u", b).replace("e", "1"), routed.replace("u", r), 0.1).word == "non-inferior"
