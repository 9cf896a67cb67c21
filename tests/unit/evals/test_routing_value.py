"""Whether a choice beats chance, and the share-quality curve."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.evals.routing_value import (
    RoutedCase,
    advantage_over_random,
    oracle_curve,
    share_quality_curve,
)


def case(big: float, small: float, to_big: bool, p: float | None = None) -> RoutedCase:
    return RoutedCase("c", big, small, big if to_big else small, float(to_big), p)


def test_a_perfect_choice_is_worth_what_it_is_worth() -> None:
    cases = [case(1, 0, True)] * 20 + [case(1, 1, False)] * 70 + [case(0, 0, False)] * 10
    found = advantage_over_random(cases)
    assert found.share == 0.2
    assert found.difference == pytest.approx(0.9 - (0.2 * 0.9 + 0.8 * 0.7))
    assert found.shown


def test_a_coin_is_worth_nothing() -> None:
    shown = 0
    for seed in range(100):
        draw = Random(seed)
        cases = [case(1, float(draw.random() < 0.7), draw.random() < 0.5) for _ in range(100)]
        shown += advantage_over_random(cases).shown
    assert shown <= 12, "about one in twenty, by the level of the interval"


def test_sending_everything_one_way_is_no_choice() -> None:
    for to_big in (True, False):
        found = advantage_over_random([case(1, float(i % 3 > 0), to_big) for i in range(90)])
        assert found.difference == pytest.approx(0)
        assert not found.shown


def test_no_cases() -> None:
    with pytest.raises(ValueError, match="at least one"):
        advantage_over_random([])
    assert share_quality_curve([]) == []
    assert oracle_curve([]) == []


def test_the_curve_by_hand() -> None:
    cases = [case(1, 1, False, 0.9), case(1, 0, True, 0.2), case(1, 1, False, 0.9), case(0, 1, True, 0.4)]
    found = [(p.share, p.quality, p.threshold) for p in share_quality_curve(cases)]
    assert found == [(1.0, 0.75, None), (0.5, 0.75, 0.9), (0.25, 1.0, 0.4), (0.0, 0.75, 0.2)]


def test_cases_without_a_score_stay_where_they_were() -> None:
    cases = [case(1, 0, True), case(0, 1, False), case(1, 1, False, 0.5)]
    assert [(round(p.share, 2), p.quality) for p in share_quality_curve(cases)] == [(0.67, 1.0), (0.33, 1.0)]


scored = st.lists(
    st.builds(case, st.sampled_from([0.0, 1.0]), st.sampled_from([0.0, 1.0]), st.booleans(), st.floats(0, 1)),
    min_size=1,
    max_size=60,
)


@given(scored)
def test_the_curve_ends_at_the_pools_and_stays_under_the_oracle(cases: list[RoutedCase]) -> None:
    points = share_quality_curve(cases)
    n = len(cases)
    assert points[0].share == 1
    assert points[0].quality == pytest.approx(sum(c.big for c in cases) / n)
    assert points[-1].share == pytest.approx(0)
    assert points[-1].quality == pytest.approx(sum(c.small for c in cases) / n)
    oracle = {round(share * n): quality for share, quality in oracle_curve(cases)}
    assert all(p.quality <= oracle[round(p.share * n)] + 1e-9 for p in points)
