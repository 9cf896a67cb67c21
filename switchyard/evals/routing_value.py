"""What routing is worth: the share-quality curve, and whether the choice of requests beats chance at the same share. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from switchyard.evals.stats import Interval, mean_interval


@dataclass(frozen=True, slots=True)
class RoutedCase:
    """One case under the three arms that the value of routing is read from; averages over trials where there are several.

    Attributes:
        big: pass rate under the big model.
        small: pass rate under the small model.
        routed: pass rate under the route.
        share: share of its requests that the big pool answered under the route.
        p: the score that it got; None when no score decided it.
    """

    name: str
    big: float
    small: float
    routed: float
    share: float
    p: float | None = None


@dataclass(frozen=True, slots=True)
class Advantage:
    """How much better the route's choice is than a random one that sends the same share to the big pool.

    Attributes:
        share: the route's share of the big pool.
        difference: routed pass rate minus the expected rate of a random router at that share.
        interval: 90 % interval of the difference.
    """

    share: float
    difference: float
    interval: Interval

    @property
    def shown(self) -> bool:
        """Whether the choice is better than chance."""
        return self.interval.low > 0


def advantage_over_random(cases: Sequence[RoutedCase]) -> Advantage:
    """Compare a route with the straight line between its two pools: what chance expects at its share.

    Each case contributes routed - q big - (1 - q) small, with q the route's share. That q is itself an estimate: the term
    (share_i - q) times the mean gain is taken off each case, which leaves the mean as it is and gives the spread its
    right size (the statistic's influence function).

    Raises:
        ValueError: there are no cases.
    """
    if not cases:
        raise ValueError("an advantage needs at least one case")
    q = sum(c.share for c in cases) / len(cases)
    gain = sum(c.big - c.small for c in cases) / len(cases)
    terms = [c.routed - q * c.big - (1 - q) * c.small - (c.share - q) * gain for c in cases]
    return Advantage(q, sum(terms) / len(terms), mean_interval(terms))


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One threshold of the score.

    Attributes:
        share: share of the big pool.
        quality: pass rate.
        threshold: scores from here on go to the small pool; None at the end where all go to the big pool.
    """

    share: float
    quality: float
    threshold: float | None


def share_quality_curve(cases: Sequence[RoutedCase]) -> list[CurvePoint]:
    """What other thresholds would have given, from the outcomes of the two pools alone.

    From all scored cases on the big pool to all on the small one, in the order of their scores, equal scores together.
    Cases that no score decided stay as the route had them.
    """
    fixed = [c for c in cases if c.p is None]
    scored = sorted((c for c in cases if c.p is not None), key=lambda c: -(c.p or 0.0))
    share = sum(c.share for c in fixed) + len(scored)
    quality = sum(c.routed for c in fixed) + sum(c.big for c in scored)
    points = [CurvePoint(share / len(cases), quality / len(cases), None)] if cases else []
    for i, case in enumerate(scored):
        share -= 1
        quality += case.small - case.big
        if i + 1 == len(scored) or scored[i + 1].p != case.p:
            points.append(CurvePoint(share / len(cases), quality / len(cases), case.p))
    return points


def oracle_curve(cases: Sequence[RoutedCase]) -> list[tuple[float, float]]:
    """Share and pass rate of a router that knows the outcomes: the bound of what any score can reach."""
    gains = sorted((c.big - c.small for c in cases), reverse=True)
    quality = sum(c.small for c in cases)
    points = [(0.0, quality / len(cases))] if cases else []
    for i, gain in enumerate(gains, 1):
        quality += gain
        points.append((i / len(cases), quality / len(cases)))
    return points
