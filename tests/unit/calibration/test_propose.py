"""Thresholds for a share or a margin, and where nothing is proposed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.calibration.analyse import Wish, analyse
from switchyard.calibration.fit import Logistic
from switchyard.calibration.propose import for_margin, for_share, step_at, thresholds, why_too_few

from .graded import draw, row


def test_a_share_is_met_by_counting():
    rows = [row(p, p > 0.3, True) for p in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)]
    step = for_share(rows, 0.25)
    assert (step.p_at_least, step.share) == (0.25, 0.25)
    assert step.quality == 7 / 8
    assert step.difference == -1 / 8
    assert for_share(rows, 0).share == 0
    assert for_share(rows, 1).share == 1


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.floats(0, 1))
def test_the_nearest_share_that_any_threshold_gives(scores, share):
    rows = [row(p, True, True) for p in scores]
    possible = {sum(p < t for p in scores) / len(scores) for t in [0.0, *scores]} | ({1.0} if max(scores) < 1 else set())
    assert abs(for_share(rows, share).share - share) == pytest.approx(min(abs(s - share) for s in possible))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_thresholds_part_scores_and_rise(scores):
    found = thresholds([row(p, True, True) for p in scores])
    assert found == sorted(set(found))
    assert all(0 <= t <= 1 for t in found)
    assert len({tuple(p >= t for p in scores) for t in found}) == len(found)


def test_a_margin_gives_the_lowest_threshold_that_is_shown():
    rows = draw(3_000, seed=3)
    step = for_margin(rows, 0.03)
    assert step is not None
    assert step.interval.low > -0.03
    assert 0 < step.share < 1
    assert for_margin(rows, 0.06).share < step.share
    lower = step_at(rows, step.p_at_least - 0.05)
    assert lower.interval.low <= -0.03


def test_a_margin_that_the_number_of_requests_cannot_show_is_not_proposed():
    equal = [row(i / 92, True, True) for i in range(92)]
    assert for_margin(equal, 0.02) is None  # 92 cases without any difference: an interval of -2.9 points
    assert for_margin(equal, 0.03) is not None


def test_the_looks_keep_their_level_where_the_small_pool_is_just_too_bad():
    """Each request has a loss of 5 points wherever it goes small: a threshold with a share under a half must be rare."""
    from random import Random

    wrong = 0
    for seed in range(100):
        random = Random(seed)
        rows = [row(random.random(), random.random() >= 0.1, True) for _ in range(400)]
        step = for_margin(rows, 0.05)
        wrong += step is not None and step.share < 0.5 - 1e-9  # true loss of that share is over the margin
    assert wrong <= 11  # 5 % of 100, and twice its standard error, and a little


def test_a_big_pool_that_is_hardly_ever_right_proves_no_margin():
    rows = [row(i / 300, i % 40 == 0, i % 40 == 0 or i % 12 == 0) for i in range(300)]
    found = analyse(rows, {}, "none", Wish(margin=0.1))
    assert any("the big pool's share of good answers is 10.0%: too little for this margin" in doubt for doubt in found.doubts)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (draw(99), "99 graded requests"),
        ([row(0.5, True, True)] * 200, "0 of 200 are requests that only the big pool"),
        ([row(0.5, False, True)] * 200, "0 of 200 are requests that the small pool"),
        ([row(None, True, True)] * 200, "0 graded requests have a score"),
    ],
)
def test_too_few(rows, why):
    assert why in why_too_few(rows)
    assert why in " ".join(analyse(rows, {}, "logistic", Wish(share=0.5)).doubts)


def test_scores_no_better_than_chance_are_named_and_so_are_inverted_ones():
    chance = analyse(draw(400, scale=0.0, seed=5), {}, "none", Wish(share=0.5))
    assert any("no better than chance" in doubt for doubt in chance.doubts)
    assert chance.step is not None  # what --force would propose
    inverted = analyse(draw(400, scale=-1.0), {}, "logistic", Wish(share=0.5))
    assert any("higher scores of embedded mean worse" in doubt for doubt in inverted.doubts)


def test_a_calibration_in_the_policy_is_worked_in():
    now = Logistic(1.5, -0.4)
    raw = draw(2_000, 0.7, 0.5)
    under_policy = [row(now(r.p), r.small_ok, r.big_ok) for r in raw]
    plain, with_policy = (
        analyse(rows, current, "logistic", Wish(share=0.3)) for rows, current in ((raw, {}), (under_policy, {"embedded": now}))
    )
    for attribute in ("scale", "bias"):
        wanted = getattr(plain.fitted["embedded"].curve, attribute)
        assert getattr(with_policy.fitted["embedded"].curve, attribute) == pytest.approx(wanted, abs=0.01)
    assert with_policy.step.p_at_least == pytest.approx(plain.step.p_at_least, abs=0.01)
    assert with_policy.step.share == pytest.approx(plain.step.share)


def test_classifiers_are_fitted_apart_and_the_small_one_is_left():
    rows = draw(2_000, 0.5, 0.3) + draw(2_000, 1.5, -0.2, seed=2, by="model s") + draw(30, by="local")
    found = analyse(rows, {}, "logistic", Wish())
    assert found.fitted["embedded"].curve.scale < 0.8 < 1.2 < found.fitted["model s"].curve.scale
    assert found.fitted["local"].why_not
    assert found.step is None
    assert found.doubts == ()


def test_isotonic_leaves_the_scores():
    rows = draw(1_000, 0.5)
    found = analyse(rows, {}, "isotonic", Wish(share=0.5))
    assert [r.p for r in found.rows] == [r.p for r in rows]
    assert found.fitted["embedded"].error_after < found.fitted["embedded"].error_before
