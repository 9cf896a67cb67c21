"""Fitting scores to outcomes: the logistic curve that a policy can carry, and the isotonic one that only has to rise. Pure.

A score p is calibrated when, of all requests with that p, a share of p is answered as well by the small pool.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from switchyard.routing.classify.base import calibrate

MOST_STEPS = 100
BINS = 10
SCALE_DIGITS = 4


@dataclass(frozen=True, slots=True)
class Logistic:
    """p -> sigmoid(scale * logit(p) + bias), as `routing.classify.base.calibrate` computes it."""

    scale: float
    bias: float

    def __call__(self, p: float) -> float:
        """The calibrated score."""
        return calibrate(p, self.bias, self.scale)

    def after(self, earlier: Logistic) -> Logistic:
        """Both as one: what stands in a policy already, and what was fitted to the scores that it gave."""
        return Logistic(
            round(self.scale * earlier.scale, SCALE_DIGITS), round(self.scale * earlier.bias + self.bias, SCALE_DIGITS)
        )


def fit_logistic(scores: Sequence[float], good: Sequence[bool]) -> Logistic:
    """The maximum-likelihood curve, by Newton's method with step halving.

    Targets are drawn in a little, to (n+ + 1)/(n+ + 2) and 1/(n- + 2), so that perfectly parted scores don't give an
    endless slope: Platt, "Probabilistic outputs for support vector machines" (1999), with the steps of Lin, Lin and Weng,
    "A note on Platt's probabilistic outputs" (Machine Learning 68, 2007).

    Args:
        scores: p, 0..1.
        good: whether the small pool's answer was as good.

    Raises:
        ValueError: there are no scores, or all outcomes are alike.
    """
    passed = sum(good)
    if passed in {0, len(good)}:
        raise ValueError("a curve needs outcomes of both kinds")
    high, low = (passed + 1) / (passed + 2), 1 / (len(good) - passed + 2)
    xs = [_logit(p) for p in scores]
    targets = [high if g else low for g in good]
    scale, bias = 0.0, _logit(passed / len(good))
    loss = _log_loss(xs, targets, scale, bias)
    for _ in range(MOST_STEPS):
        step_scale, step_bias, slope = _newton_step(xs, targets, scale, bias)
        size = 1.0
        while size > 1e-10:
            tried = _log_loss(xs, targets, scale + size * step_scale, bias + size * step_bias)
            if tried <= loss - 1e-4 * size * slope:
                break
            size /= 2
        else:
            break
        scale, bias, gained, loss = scale + size * step_scale, bias + size * step_bias, loss - tried, tried
        if gained < 1e-10 * (1 + abs(loss)):
            break
    return Logistic(scale, bias)


def _newton_step(xs: Sequence[float], targets: Sequence[float], scale: float, bias: float) -> tuple[float, float, float]:
    """Steps of scale and bias, and how fast the loss falls along them."""
    g_scale = g_bias = h_scale = h_bias = h_both = 0.0
    for x, target in zip(xs, targets, strict=True):
        p = _sigmoid(scale * x + bias)
        error, weight = p - target, p * (1 - p)
        g_scale += error * x
        g_bias += error
        h_scale += weight * x * x
        h_bias += weight
        h_both += weight * x
    h_scale, h_bias = h_scale + 1e-9, h_bias + 1e-9
    determinant = h_scale * h_bias - h_both * h_both
    step_scale = -(h_bias * g_scale - h_both * g_bias) / determinant
    step_bias = -(h_scale * g_bias - h_both * g_scale) / determinant
    return step_scale, step_bias, -(g_scale * step_scale + g_bias * step_bias)


def _log_loss(xs: Sequence[float], targets: Sequence[float], scale: float, bias: float) -> float:
    total = 0.0
    for x, target in zip(xs, targets, strict=True):
        z = scale * x + bias
        total += max(z, 0.0) + math.log1p(math.exp(-abs(z))) - target * z
    return total


@dataclass(frozen=True, slots=True)
class Isotonic:
    """A step function that only rises.

    Attributes:
        starts: the lowest score of each step.
        values: its value.
    """

    starts: tuple[float, ...]
    values: tuple[float, ...]

    def __call__(self, p: float) -> float:
        """The value of the step that a score stands on; below the first one, the first."""
        return self.values[max(0, bisect_right(self.starts, p) - 1)]


def fit_isotonic(scores: Sequence[float], good: Sequence[float]) -> Isotonic:
    """The rising step function with the least squared error, by pooling adjacent violators.

    Ayer and others, "An empirical distribution function for sampling with incomplete information" (1955); for calibration
    Zadrozny and Elkan (2002). Equal scores share a step.

    Raises:
        ValueError: there are no scores.
    """
    if not scores:
        raise ValueError("a curve needs scores")
    ordered = sorted(zip(scores, map(float, good), strict=True))
    steps: list[tuple[float, float, int]] = []  # start, sum, count
    for start, equal in groupby(ordered, key=itemgetter(0)):
        values = [y for _, y in equal]
        total, count = sum(values), len(values)
        while steps and steps[-1][1] * count >= total * steps[-1][2]:
            start, before, many = steps.pop()
            total, count = total + before, count + many
        steps.append((start, total, count))
    return Isotonic(tuple(s for s, _, _ in steps), tuple(t / n for _, t, n in steps))


def calibration_error(scores: Sequence[float], good: Sequence[bool]) -> float:
    """Mean distance between score and outcome over bins with equally many scores, weighted by their size.

    Equal scores share their outcomes evenly, so that it doesn't matter which of them falls into which bin.
    """
    ordered: list[tuple[float, float]] = []
    for p, equal in groupby(sorted(zip(scores, good, strict=True)), key=itemgetter(0)):
        outcomes = [g for _, g in equal]
        ordered += [(p, sum(outcomes) / len(outcomes))] * len(outcomes)
    error = 0.0
    for i in range(BINS):
        part = ordered[len(ordered) * i // BINS : len(ordered) * (i + 1) // BINS]
        error += abs(sum(p - g for p, g in part))
    return error / len(ordered)


def _logit(p: float) -> float:
    p = min(1 - 1e-9, max(1e-9, p))
    return math.log(p / (1 - p))


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0
