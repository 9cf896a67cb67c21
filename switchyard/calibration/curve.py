"""The share-quality curve of a score: what part of the requests goes to the big pool, and how many answers are good then. Pure.

Requests go to the big pool in the order of their scores, the lowest p first. Equal scores can't be told apart by a
threshold; between the two ends of such a group the curve is the straight line that chance would give.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from switchyard.calibration.labels import Graded
from switchyard.evals.stats import Interval, percentile_interval

GRID = tuple(i / 20 for i in range(21))
RESAMPLES = 1_000
FEWEST_RESAMPLES = 200
MOST_WORK = 3_000_000  # rows drawn in all: some seconds


@dataclass(frozen=True, slots=True)
class Point:
    """One share of the big pool.

    Attributes:
        share: of the scored requests, 0..1.
        quality: share of good answers, 0..1.
        interval: 90 % interval of the quality.
    """

    share: float
    quality: float
    interval: Interval


@dataclass(frozen=True, slots=True)
class Curve:
    """What a score is worth.

    Attributes:
        requests: how many have a score.
        small: share of good answers by the small pool alone.
        big: by the big pool alone.
        points: at shares from 0 to 1.
        advantage: mean of (quality - quality of a random choice) over all shares; in -1..1, 0 for chance.
        advantage_interval: 90 % interval of it.
        apgr: average performance gap recovered, 0.5 for chance (RouteLLM, arXiv 2406.18665); None where the big pool is not
            better than the small one.
    """

    requests: int
    small: float
    big: float
    points: tuple[Point, ...]
    advantage: float
    advantage_interval: Interval
    apgr: float | None

    @property
    def beats_chance(self) -> bool:
        """Whether the order of the scores is better than a random one."""
        return self.advantage_interval.low > 0


@dataclass(frozen=True, slots=True)
class _Line:
    """A curve as corners, with how it compares to the straight line between its ends."""

    shares: list[float]
    qualities: list[float]

    def at(self, share: float) -> float:
        i = bisect_left(self.shares, share)
        if i == 0:
            return self.qualities[0]
        if i == len(self.shares):
            return self.qualities[-1]
        left, right = self.shares[i - 1], self.shares[i]
        part = (share - left) / (right - left) if right > left else 1.0
        return self.qualities[i - 1] + part * (self.qualities[i] - self.qualities[i - 1])

    @property
    def advantage(self) -> float:
        pieces = zip(self.shares, self.shares[1:], self.qualities, self.qualities[1:], strict=False)
        area = sum((right - left) * (low + high) / 2 for left, right, low, high in pieces)
        return area - (self.qualities[0] + self.qualities[-1]) / 2


def draw_curve(rows: Sequence[Graded], seed: int = 0, resamples: int | None = None) -> Curve:
    """The curve of all rows that have a score; intervals by the bootstrap over requests.

    Args:
        rows: graded requests.
        seed: of the draws, so that the same requests give the same curve.
        resamples: number of draws; left out, 1,000, and fewer where there are very many requests.

    Raises:
        ValueError: no row has a score.
    """
    scored = sorted((row for row in rows if row.p is not None), key=lambda row: row.p or 0.0)
    if not scored:
        raise ValueError("no request has a score")
    if resamples is None:
        resamples = max(FEWEST_RESAMPLES, min(RESAMPLES, MOST_WORK // len(scored)))
    ends = [i + 1 for i, row in enumerate(scored) if i + 1 == len(scored) or scored[i + 1].p != row.p]
    line = _trace(scored, ends, [1] * len(scored))
    drawn = list(_draw(scored, ends, seed, resamples))
    points = [Point(share, line.at(share), percentile_interval(d.at(share) for d in drawn)) for share in GRID]
    small, big = line.qualities[0], line.qualities[-1]
    apgr = 0.5 + line.advantage / (big - small) if big > small else None
    return Curve(
        len(scored), small, big, tuple(points), line.advantage, percentile_interval(d.advantage for d in drawn), apgr,
    )  # fmt: skip


def _trace(scored: Sequence[Graded], ends: Sequence[int], times: Sequence[int]) -> _Line:
    """The corners, when each row counts so many times; the first `ends[k]` rows go to the big pool."""
    total = sum(times)
    moved = [0, *accumulate(times)]
    gains = [0, *accumulate(n * (row.big_ok - row.small_ok) for n, row in zip(times, scored, strict=True))]
    start = sum(n * row.small_ok for n, row in zip(times, scored, strict=True))
    corners = [0, *ends]
    return _Line([moved[i] / total for i in corners], [(start + gains[i]) / total for i in corners])


def _draw(scored: Sequence[Graded], ends: Sequence[int], seed: int, resamples: int) -> Iterator[_Line]:
    random = Random(seed)
    everyone = range(len(scored))
    for _ in range(resamples):
        counts = Counter(random.choices(everyone, k=len(scored)))
        yield _trace(scored, ends, [counts[i] for i in everyone])
