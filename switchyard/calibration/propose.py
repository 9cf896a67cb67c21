"""From graded, scored requests to a threshold - or to the reason why there is none to propose. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from switchyard.calibration.curve import Curve
from switchyard.calibration.labels import Graded
from switchyard.evals.stats import Counts, Interval, cases_needed, count_pairs, tango_interval, wilson_interval

LEAST_REQUESTS = 100
LEAST_OF_A_KIND = 20
"""Of requests that only the big pool answered well, and of the others: ten events for each of two fitted numbers (Peduzzi
and others, Journal of Clinical Epidemiology 49, 1996)."""
LOOKS = 100  # thresholds that are tried for a margin
DIGITS = range(2, 7)


@dataclass(frozen=True, slots=True)
class Step:
    """A threshold and what it would have meant for the requests at hand.

    Attributes:
        p_at_least: scores from here on go to the small pool.
        share: share of the big pool.
        share_interval: 90 % interval of it.
        quality: share of good answers.
        difference: quality minus that of the big pool alone; negative is a loss.
        interval: 90 % interval of the difference (Tango).
        discordance: share of requests on which routed and big differ.
    """

    p_at_least: float
    share: float
    share_interval: Interval
    quality: float
    difference: float
    interval: Interval
    discordance: float


def why_too_few(rows: Sequence[Graded]) -> str | None:
    """What is missing for a fit that can be trusted; None when it is enough."""
    scored = [row for row in rows if row.p is not None]
    if len(scored) < LEAST_REQUESTS:
        return f"{len(scored)} graded requests have a score; at least {LEAST_REQUESTS} are needed"
    good = sum(row.good for row in scored)
    for count, what in ((len(scored) - good, "only the big pool answered well"), (good, "the small pool was good enough for")):
        if count < LEAST_OF_A_KIND:
            return f"{count} of {len(scored)} are requests that {what}; at least {LEAST_OF_A_KIND} are needed"
    return None


def why_no_better_than_chance(curve: Curve) -> str | None:
    """What the curve lacks; None when the scores order the requests better than chance."""
    if curve.beats_chance:
        return None
    low, high = (x * 100 for x in (curve.advantage_interval.low, curve.advantage_interval.high))
    return (
        f"the scores choose no better than chance: over all shares {curve.advantage * 100:+.1f} points, and the 90 % interval "
        f"{low:+.1f}..{high:+.1f} holds 0"
    )


def step_at(rows: Sequence[Graded], p_at_least: float) -> Step:
    """What a threshold would have meant.

    Raises:
        ValueError: no row has a score.
    """
    scored = [row for row in rows if row.p is not None]
    to_small = [row.p is not None and row.p >= p_at_least for row in scored]
    pairs = [(row.big_ok, row.small_ok if small else row.big_ok) for row, small in zip(scored, to_small, strict=True)]
    counts: Counts = count_pairs(pairs)
    to_big = len(scored) - sum(to_small)
    return Step(
        p_at_least, to_big / len(scored), wilson_interval(to_big, len(scored)), (counts.both + counts.won) / len(scored),
        counts.difference, tango_interval(counts), counts.discordance,
    )  # fmt: skip


def thresholds(rows: Sequence[Graded]) -> list[float]:
    """Every threshold that tells scores apart, rising: the first sends all to the small pool, the last all to the big one."""
    scores = sorted({row.p for row in rows if row.p is not None})
    between = [_round_between(low, high) for low, high in pairwise(scores)]
    last = [_round_between(scores[-1], 1.0)] if scores and scores[-1] < 1 else []
    return [0.0, *between, *last]


def _round_between(low: float, high: float) -> float:
    """A number with few digits in (low, high]."""
    for digits in DIGITS:
        middle = round((low + high) / 2, digits)
        if low < middle <= high:
            return middle
    return high


def for_share(rows: Sequence[Graded], share: float) -> Step:
    """The threshold with which the big pool's share comes nearest to a wanted one.

    Raises:
        ValueError: no row has a score.
    """
    ordered = sorted(row.p for row in rows if row.p is not None)
    if not ordered:
        raise ValueError("no request has a score")
    found = thresholds(rows)
    below = _count_below(ordered, found)
    nearest = min(range(len(found)), key=lambda i: (abs(below[i] / len(ordered) - share), i))
    return step_at(rows, found[nearest])


def for_margin(rows: Sequence[Graded], margin: float) -> Step | None:
    """The lowest threshold whose loss is shown to stay inside a margin; None when not even a cautious one is.

    Thresholds are tried from the highest down, each with a one-sided test at 5 %, and the first that fails ends it. With
    the order fixed beforehand, so many looks cost nothing (fixed-sequence testing: Maurer, Hothorn and Lehmacher 1995).

    Args:
        rows: graded requests.
        margin: largest loss that is still fine, as a proportion.
    """
    best: Step | None = None
    for threshold in _looks(rows):
        step = step_at(rows, threshold)
        if step.interval.low <= -margin:
            break
        best = step
    return best if best is not None and best.share < 1 else None


def _looks(rows: Sequence[Graded]) -> Iterator[float]:
    """Some of the thresholds from the highest down, at about equal steps of the share."""
    ordered = sorted(row.p for row in rows if row.p is not None)
    found = thresholds(rows)
    below = _count_below(ordered, found)
    last = len(ordered) + 1.0
    for threshold, count in zip(reversed(found), reversed(below), strict=True):
        if last - count >= len(ordered) / LOOKS or threshold == found[0]:
            last = count
            yield threshold


def requests_needed(rows: Sequence[Graded], margin: float) -> int:
    """How many graded requests would show this margin where all go to the small pool half of the time, roughly.

    Taken at the threshold of an even share, if it lost nothing.
    """
    step = for_share(rows, 0.5)
    return cases_needed(max(step.discordance, 1 / max(1, len(rows))), margin)


def _count_below(ordered: Sequence[float], found: Sequence[float]) -> list[int]:
    counts, i = [], 0
    for threshold in found:
        while i < len(ordered) and ordered[i] < threshold:
            i += 1
        counts.append(i)
    return counts
