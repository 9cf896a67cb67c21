"""Confidence intervals that more than one part of the gateway shows. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

LEVEL = 0.90
"""Two-sided level of every interval: its lower end is a one-sided test at 5 %."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A two-sided confidence interval, as proportions."""

    low: float
    high: float


def wilson_interval(passed: int, cases: int, level: float = LEVEL) -> Interval:
    """Score interval of a single proportion (Wilson 1927)."""
    if cases == 0:
        raise ValueError("an interval needs at least one case")
    z = NormalDist().inv_cdf((1 + level) / 2)
    share = passed / cases
    middle = (share + z * z / (2 * cases)) / (1 + z * z / cases)
    half = z / (1 + z * z / cases) * math.sqrt(share * (1 - share) / cases + z * z / (4 * cases * cases))
    return Interval(max(0.0, middle - half), min(1.0, middle + half))
