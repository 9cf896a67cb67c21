"""Statistics of paired outcomes: intervals, tests, power. Pure functions over counts and differences; no numpy.

Every pair is one case under two arms: the *baseline* (the big model) and the *candidate* (the routed agent). A
difference is candidate minus baseline, as a proportion in -1..1: negative means that the candidate is worse. What follows
from an interval is `verdict`'s business.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from statistics import NormalDist

from switchyard.intervals import LEVEL as LEVEL  # shared with the gateway, which knows nothing of evals
from switchyard.intervals import Interval as Interval
from switchyard.intervals import wilson_interval as wilson_interval

POWER = 0.80
RESAMPLES = 4_000
_STEPS = 60  # halvings of an interval at most 2 wide: far below what a float can tell


@dataclass(frozen=True, slots=True)
class Counts:
    """A paired 2x2 table: how many cases passed under which arm; parts of cases only in `matched_counts`.

    Attributes:
        both: under both.
        lost: only under the baseline.
        won: only under the candidate.
        neither: under none.
    """

    both: float
    lost: float
    won: float
    neither: float

    @property
    def cases(self) -> float:
        """All pairs."""
        return self.both + self.lost + self.won + self.neither

    @property
    def discordance(self) -> float:
        """Share of the cases on which the arms differ; psi in the literature."""
        return (self.lost + self.won) / self.cases

    @property
    def difference(self) -> float:
        """Pass rate of the candidate minus that of the baseline."""
        return (self.won - self.lost) / self.cases


def count_pairs(pairs: Sequence[tuple[bool, bool]]) -> Counts:
    """The table of (baseline passed, candidate passed)."""
    found = {(a, b): 0 for a in (True, False) for b in (True, False)}
    for a, b in pairs:
        found[bool(a), bool(b)] += 1
    return Counts(found[True, True], found[True, False], found[False, True], found[False, False])


# ---- one pair of arms, pass or fail ----


def tango_interval(counts: Counts, level: float = LEVEL) -> Interval:
    """Score interval for the difference of two paired proportions.

    Tango, "Equivalence test and confidence interval for the difference in proportions for the paired-sample design",
    Statistics in Medicine 17 (1998) 891-908: all differences that the score test doesn't reject. It stays inside -1..1
    and never has length zero, also without any discordant case; where discordance is rare it is conservative.

    Raises:
        ValueError: there are no cases.
    """
    if counts.cases == 0:
        raise ValueError("an interval needs at least one case")
    wanted = NormalDist().inv_cdf((1 + level) / 2)
    estimate = counts.difference
    low = _cross(lambda d: tango_score(counts, d) <= wanted, -1.0, estimate)
    high = _cross(lambda d: tango_score(counts, d) < -wanted, estimate, 1.0)
    return Interval(low, high)


def tango_score(counts: Counts, difference: float) -> float:
    """Standardised distance of the data from a hypothetical difference; falls as the difference grows.

    The variance is that under the hypothesis, with the share of lost cases at its maximum-likelihood value given the
    difference: the root of a quadratic (Tango 1998, section 3).
    """
    n, lost, won, d = counts.cases, counts.lost, counts.won, difference
    linear = -won - lost + (2 * n - won + lost) * d
    constant = -lost * d * (1 - d)
    root = math.sqrt(max(0.0, linear * linear - 8 * n * constant))
    lost_share = max(0.0, (root - linear) / (4 * n))
    variance = n * (2 * lost_share + d * (1 - d))
    distance = won - lost - n * d
    if variance <= 1e-12:
        return 0.0 if abs(distance) <= 1e-9 else math.copysign(math.inf, distance)
    return distance / math.sqrt(variance)


def _cross(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Where a predicate turns true between two points, by halving."""
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return (low + high) / 2


def mcnemar_exact(lost: int, won: int) -> float:
    """Two-sided exact p of McNemar's test: were lost and won equally likely (McNemar 1947, in its binomial form)."""
    return min(1.0, 2 * _binomial_tail(max(lost, won), lost + won))


def regression_p(lost: int, won: int) -> float:
    """One-sided exact p that so many of the discordant cases were lost by chance: small means a regression."""
    return _binomial_tail(lost, lost + won)


def _binomial_tail(at_least: int, n: int) -> float:
    """P(X >= at_least) for X ~ Binomial(n, 1/2); exact in integers, so that no large n overflows."""
    return sum(math.comb(n, k) for k in range(at_least, n + 1)) / (1 << n) if n else 1.0


# ---- averages over cases ----


def average_interval(differences: Sequence[float], level: float = LEVEL, seed: int = 0, resamples: int = RESAMPLES) -> Interval:
    """Interval for the mean of differences that were averaged over several trials: what a verdict may rest on.

    As wide as two intervals: the case-clustered bootstrap, and Tango's for the table that `matched_counts` gives. The
    bootstrap alone is too sure where losses are rare and whole: it knows no other loss than those it has seen, and calls a
    candidate at the margin non-inferior in up to 8 % of runs instead of 5 (`benchmarks/verdicts.py`).

    Raises:
        ValueError: there are no cases.
    """
    drawn = mean_interval(differences, level, seed, resamples)
    matched = tango_interval(matched_counts(differences), level)
    return Interval(min(drawn.low, matched.low), max(drawn.high, matched.high))


def matched_counts(differences: Sequence[float]) -> Counts:
    """The table whose mean and spread these differences have; with one trial of each case, their own.

    Lost and won add up to the sum of the squares, so that the mean has the variance that it would have in that table. Where
    all cases lose a part, that is less than their loss; then the loss is taken as if it were whole cases, which is cautious.
    """
    total = math.fsum(differences)
    discordant = max(math.fsum(d * d for d in differences), abs(total))
    return Counts(len(differences) - discordant, (discordant - total) / 2, (discordant + total) / 2, 0)


def mean_interval(differences: Sequence[float], level: float = LEVEL, seed: int = 0, resamples: int = RESAMPLES) -> Interval:
    """Case-clustered bootstrap interval for a mean difference: whole cases are drawn, whatever was averaged inside one.

    Percentiles over resampled cases (Efron and Tibshirani 1993, chapter 13; clusters as in Miller, "Adding error bars to
    evals", 2024). Two pseudo-cases, one a full gain and one a full loss, take part in the draw, as Bonett and Price (2012)
    add one to each discordant cell: without them a run of equal outcomes would give an interval of length zero.

    Args:
        differences: one for each case, candidate minus baseline, each -1..1.
        level: two-sided level.
        seed: of the draws, so that the same run gives the same report.
        resamples: number of draws.

    Raises:
        ValueError: there are no cases.
    """
    if not differences:
        raise ValueError("an interval needs at least one case")
    padded = [*differences, 1.0, -1.0]
    draw = Random(seed).choices
    size = len(padded)
    return percentile_interval([sum(draw(padded, k=size)) / size for _ in range(resamples)], level)


def percentile_interval(values: Iterable[float], level: float = LEVEL) -> Interval:
    """The interval between percentiles of resampled values, as wide as two of them allow. At least one value."""
    ordered = sorted(values)
    cut = math.floor((1 - level) / 2 * (len(ordered) - 1))
    return Interval(ordered[cut], ordered[-1 - cut])


# ---- several tests, and how many cases ----


def holm(ps: Sequence[float]) -> list[float]:
    """Adjusted p-values that keep the chance of any false alarm at the level of one test (Holm 1979)."""
    order = sorted(range(len(ps)), key=lambda i: ps[i])
    adjusted = [0.0] * len(ps)
    floor = 0.0
    for rank, i in enumerate(order):
        floor = max(floor, min(1.0, (len(ps) - rank) * ps[i]))
        adjusted[i] = floor
    return adjusted


def cases_needed(discordance: float, margin: float, difference: float = 0.0, power: float = POWER) -> int:
    """Cases after which non-inferiority would be shown with this probability, if these are the true values.

    n = (z_0.95 + z_power)^2 (psi - d^2) / (margin + d)^2, the paired form of the usual sample size (Tango 1998, section 5;
    Miller 2024): 6.18 psi / margin^2 at 80 % power and no difference.

    Args:
        discordance: share of cases on which the arms differ, psi.
        margin: largest loss that is still fine, as a proportion.
        difference: true difference; must be better than -margin.
        power: wanted probability.

    Raises:
        ValueError: no number of cases can show it.
    """
    if margin + difference <= 0:
        raise ValueError("a difference at or beyond the margin can't be shown to be inside it")
    spread = NormalDist().inv_cdf((1 + LEVEL) / 2) + NormalDist().inv_cdf(power)
    variance = max(discordance - difference * difference, 0.0)
    return math.ceil(spread * spread * variance / (margin + difference) ** 2)


def likely_discordance(counts: Counts) -> float:
    """Psi for planning: one case is added to each discordant cell, so that none seen doesn't mean none to come."""
    return (counts.lost + counts.won + 2) / (counts.cases + 2)
