"""Moving borderline requests away from a pool that queues, to a neighbour that doesn't, within a budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from switchyard.config.route import Pressure, Threshold
from switchyard.routing.decision import Decision

HORIZON = 1_000
"""Decisions over which the budget runs; older ones fade."""


class PressureRelief:
    """Keeps the budget of one route.

    Args:
        settings: how near the threshold counts as borderline, and how many may move.
        choose: the route's thresholds.
    """

    def __init__(self, settings: Pressure, choose: Sequence[Threshold]) -> None:
        self.settings = settings
        self.choose = tuple(choose)
        self._limits = [step.p_at_least for step in choose if step.p_at_least is not None]
        self._decisions = 0.0
        self._moved = 0.0

    def apply(
        self, decision: Decision, candidates: Sequence[str], queues: Callable[[str], bool], count: bool = True
    ) -> Decision:
        """Move a scored decision whose pool queues, if its score is borderline and a neighbour has room.

        It is counted; without `count`, it is only said what would be.
        """
        if decision.p is None or decision.pool not in candidates:
            return decision
        fade = 1 - 1 / HORIZON
        decisions, moved = self._decisions * fade + 1, self._moved * fade
        if count:
            self._decisions, self._moved = decisions, moved
        p = decision.p
        if not queues(decision.pool) or moved + 1 > max(1.0, self.settings.at_most * decisions):
            return decision
        near = [limit for limit in self._limits if abs(p - limit) <= self.settings.band]
        if not near:
            return decision
        at = candidates.index(decision.pool)
        step = -1 if min(near, key=lambda limit: abs(p - limit)) > p else 1  # just missed a smaller pool, or just made it
        if not 0 <= at + step < len(candidates) or queues(candidates[at + step]):
            return decision
        if count:
            self._moved += 1
        to = candidates[at + step]
        reasons = (f"pressure: {decision.pool} queues and p {p:.2f} is borderline", *decision.reasons)
        return replace(decision, pool=to, fallbacks=tuple(candidates[at + step + 1 :]), kind="pressure", reasons=reasons)
