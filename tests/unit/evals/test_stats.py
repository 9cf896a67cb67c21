"""Intervals, tests and power: known answers, scipy as the reference, published figures, and properties."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from switchyard.evals.stats import (
    Counts,
    average_interval,
    cases_needed,
    count_pairs,
    holm,
    likely_discordance,
    matched_counts,
    mcnemar_exact,
    mean_interval,
    regression_p,
    tango_interval,
    tango_score,
    wilson_interval,
)

counts = st.builds(Counts, st.integers(0, 200), st.integers(0, 30), st.integers(0, 30), st.integers(0, 40)).filter(
    lambda c: c.cases
)


def points(lost: int, won: int, cases: int = 92) -> tuple[float, float]:
    found = tango_interval(Counts(cases - lost - won, lost, won, 0))
    return round(found.low * 100, 1), round(found.high * 100, 1)


@pytest.mark.parametrize(
    ("lost", "won", "expected"),
    [(0, 0, (-2.9, 2.9)), (2, 2, (-4.5, 4.5)), (5, 5, (-6.2, 6.2)), (2, 0, (-6.4, 0.7))],
)
def test_known_intervals_of_92_cases(lost: int, won: int, expected: tuple[float, float]) -> None:
    assert points(lost, won) == expected


def test_a_published_interval() -> None:
    # Airway hyper-responsiveness before and after transplantation, 21 pairs: the example of Fagerland, Lydersen and Laake,
    # "Recommended tests and confidence intervals for paired binomial proportions", Statistics in Medicine 33 (2014).
    found = tango_interval(Counts(1, 7, 1, 12), level=0.95)
    assert (round(found.low, 3), round(found.high, 3)) == (-0.517, -0.026)


@pytest.mark.parametrize(
    ("psi", "margin", "cases"), [(0.05, 0.02, 773), (0.1, 0.02, 1546), (0.05, 0.05, 124), (0.1, 0.05, 248)]
)
def test_known_numbers_of_cases(psi: float, margin: float, cases: int) -> None:
    assert cases_needed(psi, margin) == cases


def _likelihood_score(found: Counts, difference: float) -> float:
    """The same score with the nuisance parameter found by a numerical search over the likelihood."""
    n, low = found.cases, max(0.0, -difference)

    def minus_log(lost: float) -> float:
        cells = ((found.lost, lost), (found.won, lost + difference), (n - found.lost - found.won, 1 - 2 * lost - difference))
        return -sum(k * math.log(max(p, 1e-300)) for k, p in cells if k)

    lost = optimize.minimize_scalar(minus_log, bounds=(low, (1 - difference) / 2), method="bounded", options={"xatol": 1e-12}).x
    variance = n * (2 * lost + difference - difference * difference)
    return float((found.won - found.lost - n * difference) / math.sqrt(variance))


@pytest.mark.parametrize("difference", [-0.3, -0.05, 0.02, 0.2])
@pytest.mark.parametrize("found", [Counts(80, 5, 2, 5), Counts(50, 20, 9, 13), Counts(10, 1, 7, 3), Counts(900, 40, 30, 30)])
def test_the_score_against_a_numerical_maximum(found: Counts, difference: float) -> None:
    assert tango_score(found, difference) == pytest.approx(_likelihood_score(found, difference), abs=2e-4)


@given(counts)
def test_an_interval_holds_its_estimate_and_its_ends_are_where_the_test_turns(found: Counts) -> None:
    interval = tango_interval(found)
    assert -1 <= interval.low <= found.difference <= interval.high <= 1
    assert interval.high - interval.low > 0
    wanted = stats.norm.ppf(0.95)
    if interval.low > -0.999:
        assert tango_score(found, interval.low) == pytest.approx(wanted, abs=1e-5)
    if interval.high < 0.999:
        assert tango_score(found, interval.high) == pytest.approx(-wanted, abs=1e-5)


@given(counts)
def test_it_is_symmetric(found: Counts) -> None:
    mirrored = tango_interval(Counts(found.both, found.won, found.lost, found.neither))
    interval = tango_interval(found)
    assert (-mirrored.high, -mirrored.low) == pytest.approx((interval.low, interval.high), abs=1e-9)


@given(st.integers(0, 40), st.integers(0, 40))
def test_mcnemar_is_the_binomial_test(lost: int, won: int) -> None:
    n = lost + won
    assert mcnemar_exact(lost, won) == pytest.approx(stats.binomtest(lost, n).pvalue if n else 1.0)
    assert regression_p(lost, won) == pytest.approx(stats.binomtest(lost, n, alternative="greater").pvalue if n else 1.0)


@given(st.integers(0, 300), st.integers(1, 300))
def test_wilson_is_scipys(passed: int, more: int) -> None:
    expected = stats.binomtest(passed, passed + more).proportion_ci(0.9, method="wilson")
    found = wilson_interval(passed, passed + more)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_the_bootstrap_against_the_t_interval() -> None:
    differences = [0.5, -0.5, 0.0, 0.25, 0.0, -0.25, 0.0, 1.0, 0.0, -0.5] * 30
    padded = [*differences, 1.0, -1.0]
    middle, sem = sum(padded) / len(padded), stats.sem(padded)
    low, high = stats.t.interval(0.9, len(padded) - 1, middle, sem)
    found = mean_interval(differences, resamples=8_000)
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.004)


def test_the_bootstrap_never_claims_certainty() -> None:
    found = mean_interval([0.0] * 92)
    assert found.low < -0.01
    assert found.high > 0.01


def test_the_bootstrap_is_the_same_each_time() -> None:
    assert mean_interval([0.5, 0.0, -1.0] * 20) == mean_interval([0.5, 0.0, -1.0] * 20)


@given(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=1, max_size=200))
def test_whole_differences_have_a_table_of_their_own(differences: list[float]) -> None:
    lost, won = differences.count(-1.0), differences.count(1.0)
    assert matched_counts(differences) == Counts(len(differences) - lost - won, lost, won, 0)


@given(st.lists(st.sampled_from([k / 3 for k in range(-3, 4)]), min_size=1, max_size=60))
def test_a_matched_table_has_the_same_mean_and_no_smaller_spread(differences: list[float]) -> None:
    table = matched_counts(differences)
    assert min(table.both, table.lost, table.won) >= -1e-9
    assert table.difference == pytest.approx(sum(differences) / len(differences))
    assert table.lost + table.won >= sum(d * d for d in differences) - 1e-9
    found = average_interval(differences, resamples=200)
    for part in (mean_interval(differences, resamples=200), tango_interval(table)):
        assert found.low <= part.low <= part.high <= found.high


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm(ps: list[float]) -> None:
    adjusted = holm(ps)
    assert all(a >= p for a, p in zip(adjusted, ps, strict=True))
    assert min(adjusted) == pytest.approx(min(1.0, len(ps) * min(ps)))
    order = sorted(range(len(ps)), key=lambda i: ps[i])
    assert [adjusted[i] for i in order] == sorted(adjusted)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_no_cases_and_no_way() -> None:
    nothing = Counts(0, 0, 0, 0)
    for call in (lambda: tango_interval(nothing), lambda: mean_interval([]), lambda: wilson_interval(0, 0),
                 lambda: cases_needed(0.1, 0.05, -0.05)):  # fmt: skip
        with pytest.raises(ValueError):  # noqa: PT011 (each has its own words)
            call()


def test_the_table_and_planning() -> None:
    table = count_pairs([(True, True), (True, False), (False, True), (False, False), (True, False)])
    assert table == Counts(1, 2, 1, 1)
    assert (table.discordance, table.difference) == (0.6, -0.2)
    assert likely_discordance(Counts(92, 0, 0, 0)) == 2 / 94


def test_power_of_the_planned_number() -> None:
    """The number of cases that planning gives really shows non-inferiority in about 80 % of runs (exact, by enumeration)."""
    psi, margin = 0.1, 0.05
    n = cases_needed(psi, margin)
    shown = 0.0
    for discordant in range(n + 1):
        weight = stats.binom.pmf(discordant, n, psi)
        if weight < 1e-7:
            continue
        for lost in range(discordant + 1):
            if tango_score(Counts(n - discordant, lost, discordant - lost, 0), -margin) > stats.norm.ppf(0.95):
                shown += weight * stats.binom.pmf(lost, discordant, 0.5)
    assert 0.76 < shown < 0.86
