"""The share-quality curve: known answers, chance, the oracle, and its bounds."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switchyard.calibration.curve import draw_curve

from .graded import draw, row

ROWS = st.lists(
    st.builds(row, st.sampled_from([0.1, 0.4, 0.4, 0.8, None]), st.booleans(), st.booleans()), min_size=1, max_size=30
)


def quality_at(curve, share):
    return next(p.quality for p in curve.points if p.share == share)


def test_a_perfect_order_has_known_qualities():
    rows = [row(0.1, False, True)] * 5 + [row(0.5, True, True)] * 10 + [row(0.9, True, False)] * 5
    curve = draw_curve(rows)
    assert (curve.small, curve.big) == (0.75, 0.75)
    assert [quality_at(curve, s) for s in (0, 0.25, 0.5, 0.75, 1)] == [0.75, 1, 1, 1, 0.75]
    assert curve.advantage == pytest.approx(0.25 * 0.25 / 2 * 2 + 0.5 * 0.25)
    assert curve.beats_chance
    assert curve.apgr is None  # there is no gap to recover


def test_one_score_for_all_is_chance_exactly():
    curve = draw_curve([row(0.5, False, True)] * 30 + [row(0.5, True, True)] * 70)
    assert curve.advantage == pytest.approx(0)
    assert not curve.beats_chance
    assert curve.apgr == pytest.approx(0.5)
    assert quality_at(curve, 0.5) == pytest.approx(0.85)


def test_scores_that_say_nothing_are_seen_as_chance_and_good_ones_are_not():
    assert draw_curve(draw(600, scale=1.0), resamples=300).beats_chance
    assert sum(draw_curve(draw(400, scale=0.0, seed=s), resamples=200).beats_chance for s in range(40)) <= 6  # 5 % of 40 is 2
    assert not draw_curve(draw(400, scale=-1.0), resamples=200).beats_chance


def test_apgr_is_the_area_as_routellm_defines_it():
    rows = [row(0.1, False, True)] * 10 + [row(0.9, True, True)] * 10
    # the gap of one half is recovered at an even share: area 1/4 + 1/2 of the unit square
    assert draw_curve(rows).apgr == pytest.approx(0.75)


@settings(max_examples=50, deadline=None)
@given(ROWS)
def test_any_rows_give_a_curve_inside_its_bounds(rows):
    scored = [r for r in rows if r.p is not None]
    if not scored:
        with pytest.raises(ValueError, match="score"):
            draw_curve(rows, resamples=20)
        return
    curve = draw_curve(rows, resamples=20)
    assert curve.requests == len(scored)
    assert curve.points[0].quality == pytest.approx(sum(r.small_ok for r in scored) / len(scored))
    assert curve.points[-1].quality == pytest.approx(sum(r.big_ok for r in scored) / len(scored))
    assert all(-1e-9 <= p.interval.low <= p.interval.high <= 1 + 1e-9 for p in curve.points)
    assert draw_curve(rows, resamples=20) == curve
