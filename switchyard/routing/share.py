"""Holding a pool's share of the scored decisions: what turns a classifier into "a quarter goes to the big pool".

Two parts. A running quantile of the scores says which requests the pool should have: those on its side of the quantile
of the wanted share. And an account of what it got bounds the error when traffic drifts faster than the quantile
follows. Capability, rules and sessions are settled before, and never overridden.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence

from msgspec.structs import replace

from switchyard.config.route import Share
from switchyard.routing.decision import Decision

WINDOW = 512
"""Scores from which the quantile is read."""
HORIZON = 2_000
"""Decisions over which the account runs; older ones fade."""
MOST_DEBT = 8.0
"""Decisions by which the account may be off: 0.4 % of the horizon."""
FEWEST_SCORES = 20
"""Before so many scores are known, the account alone decides what the thresholds don't."""


class ShareControl:
    """Keeps the share of one pool on one route.

    Args:
        settings: pool and wanted share.
        order: the route's pools, from small to big.
    """

    def __init__(self, settings: Share, order: Sequence[str]) -> None:
        self.settings = settings
        self.order = tuple(order)
        self.target = settings.hold if settings.hold is not None else settings.at_most or 0.0
        self._holds = settings.hold is not None
        self._pool = settings.pool
        self._low_side = settings.pool == order[-1]  # the biggest pool gets the lowest scores
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []
        self._decisions = 0.0
        self._given = 0.0

    @property
    def share(self) -> float:
        """The pool's share of the recent decisions, 0..1."""
        return self._given / self._decisions if self._decisions else 0.0

    def apply(self, decision: Decision, candidates: Sequence[str], count: bool = True) -> Decision:
        """Move a scored decision if the share asks for it, and count it; without `count`, only say what would be."""
        if decision.p is None or self._pool not in candidates or len(candidates) < 2:
            return decision
        natural = decision.pool == self._pool
        wanted = self._wants(decision.p, natural)
        if count:
            self._remember(decision.p, wanted)
        if wanted == natural:
            return decision
        at = list(candidates).index(self._pool)
        to = self._pool if wanted else candidates[at - 1 if at else 1]
        word = "hold" if self._holds else "at_most"
        why = f"share: {self._pool} has {self.share:.0%}, {word} {self.target:g}"
        fallbacks = tuple(candidates[list(candidates).index(to) + 1 :])
        return replace(decision, pool=to, fallbacks=fallbacks, kind="share", reasons=(why, *decision.reasons))

    def _wants(self, p: float, natural: bool) -> bool:
        debt = self._given - self.target * self._decisions
        wanted = natural
        if len(self._sorted) >= FEWEST_SCORES:
            inside = self._on_its_side(p, debt)
            wanted = inside if self._holds else natural and inside
        if wanted and debt + 1 - self.target > MOST_DEBT:
            return False
        if self._holds and not wanted and debt - self.target < -MOST_DEBT:
            return True
        return wanted

    def _on_its_side(self, p: float, debt: float) -> bool:
        """Whether the score is among those that make up the wanted share; equal scores follow the account."""
        count = len(self._sorted)
        rank = self.target if self._low_side else 1 - self.target
        limit = self._sorted[min(count - 1, int(rank * count))]
        if p == limit:
            return debt < 0
        return p < limit if self._low_side else p > limit

    def _remember(self, p: float, given: bool) -> None:
        fade = 1 - 1 / HORIZON
        self._decisions = self._decisions * fade + 1
        self._given = self._given * fade + given
        self._recent.append(p)
        insort(self._sorted, p)
        if len(self._recent) > WINDOW:
            oldest = self._recent.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]
