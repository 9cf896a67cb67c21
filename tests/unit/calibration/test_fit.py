"""The fits: known parameters come back, the isotonic one is the best that rises."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.calibration.fit import Logistic, calibration_error, fit_isotonic, fit_logistic
from switchyard.routing.classify.base import calibrate

from .graded import draw

SCORES = st.floats(0.01, 0.99)
PAIRS = st.lists(st.tuples(st.sampled_from([0.1, 0.2, 0.3, 0.5, 0.7, 0.9]), st.booleans()), min_size=1, max_size=12)


@pytest.mark.parametrize(("scale", "bias"), [(1.0, 0.0), (0.6, 0.9), (2.0, -1.0), (-0.5, 0.3)])
def test_logistic_recovers_known_parameters(scale, bias):
    rows = draw(20_000, scale, bias)
    found = fit_logistic([r.p for r in rows], [r.good for r in rows])
    assert found.scale == pytest.approx(scale, abs=0.08)
    assert found.bias == pytest.approx(bias, abs=0.08)
    assert calibration_error([found(r.p) for r in rows], [r.good for r in rows]) < 0.02


@given(st.lists(st.tuples(SCORES, st.booleans()), min_size=2, max_size=60))
def test_logistic_ends_with_numbers_and_matches_the_mean(pairs):
    good = [g for _, g in pairs]
    if len(set(good)) < 2:
        with pytest.raises(ValueError, match="both kinds"):
            fit_logistic([p for p, _ in pairs], good)
        return
    found = fit_logistic([p for p, _ in pairs], good)
    assert math.isfinite(found.scale)
    assert math.isfinite(found.bias)
    high, low = (sum(good) + 1) / (sum(good) + 2), 1 / (len(good) - sum(good) + 2)
    wanted = sum(high if g else low for g in good) / len(good)  # the first of the likelihood's two equations
    assert sum(found(p) for p, _ in pairs) / len(pairs) == pytest.approx(wanted, abs=1e-3)


def test_perfectly_parted_scores_give_no_endless_slope():
    assert 0 < fit_logistic([0.2] * 50 + [0.8] * 50, [False] * 50 + [True] * 50).scale < 10


@given(SCORES, st.floats(0.2, 2), st.floats(-2, 2), st.floats(0.2, 2), st.floats(-2, 2))
def test_two_calibrations_are_one(p, scale, bias, scale2, bias2):
    both = Logistic(scale2, bias2).after(Logistic(scale, bias))
    assert both(p) == pytest.approx(Logistic(scale2, bias2)(calibrate(p, bias, scale)), abs=2e-3)


@given(PAIRS)
def test_isotonic_rises_and_keeps_the_mean(pairs):
    scores, good = [p for p, _ in pairs], [g for _, g in pairs]
    steps = fit_isotonic(scores, good)
    assert all(low < high for low, high in pairwise(steps.starts))
    assert all(low < high for low, high in pairwise(steps.values))
    assert sum(map(steps, scores)) == pytest.approx(sum(good))


@given(PAIRS)
def test_no_rising_function_fits_better_than_the_isotonic_one(pairs):
    """Min-max formula of isotonic regression: value at x = max over a <= x of min over b >= x of the mean in [a, b]."""
    scores, good = [p for p, _ in pairs], [g for _, g in pairs]
    steps = fit_isotonic(scores, good)
    places = sorted(set(scores))
    for x in places:
        best = max(
            min(mean([g for p, g in pairs if a <= p <= b]) for b in places if b >= x) for a in places if a <= x
        )  # fmt: skip
        assert steps(x) == pytest.approx(best)


def mean(values):
    return sum(values) / len(values)


def test_isotonic_known_answer():
    steps = fit_isotonic([0.1, 0.2, 0.3, 0.4, 0.4], [0, 1, 0, 1, 1])
    assert (steps.starts, steps.values) == ((0.1, 0.2, 0.4), (0.0, 0.5, 1.0))
    assert [steps(p) for p in (0.0, 0.1, 0.25, 0.39, 0.4, 1.0)] == [0, 0, 0.5, 0.5, 1, 1]
    with pytest.raises(ValueError, match="scores"):
        fit_isotonic([], [])


def test_calibration_error_known_answers():
    assert calibration_error([0.5] * 20, [True, False] * 10) == pytest.approx(0)
    assert calibration_error([0.9] * 20, [False] * 20) == pytest.approx(0.9)
