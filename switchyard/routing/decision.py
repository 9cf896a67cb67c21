"""What deciding takes and gives: the view of a pool, a classifier's outcome, the decision. Immutable, without behaviour."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal, Protocol

import msgspec

Kind = Literal["named", "asked", "only", "rule", "held", "score", "share", "pressure", "otherwise"]


class PoolView(Protocol):
    """What deciding may know about a pool."""

    @property
    def name(self) -> str:
        """Its name in the policy."""

    @property
    def refuses(self) -> Collection[str]:
        """Capabilities that it lacks: names of the signals that must not hold."""

    @property
    def declares(self) -> bool:
        """Whether the policy says what it accepts; if not, its engines have the last word."""

    @property
    def context_tokens(self) -> int | None:
        """Tokens that fit, prompt and answer together; None while unknown."""

    @property
    def clamps(self) -> bool:
        """Whether it lowers the wanted output to what fits."""

    def speaks(self, protocol: str) -> bool:
        """Whether its engines answer this protocol natively."""


class Outcome(msgspec.Struct, frozen=True):
    """What a classifier says.

    Attributes:
        by: the classifier.
        p: probability (0..1) that the small pool's answer is as good as the big pool's; None when it abstains.
        why: reason for an abstention, or what the score rests on.
        failed: it abstains since it is broken or late, not since the request is unclear.
        raw_p: p before the policy's scale and bias.
    """

    by: str
    p: float | None = None
    why: str = ""
    failed: bool = False
    raw_p: float | None = None


class Decision(msgspec.Struct, frozen=True):
    """Where a request goes, and why.

    Attributes:
        route: the route's name; empty for a pool asked for by name.
        pool: the pool to use.
        fallbacks: pools to try, in order, when no replica of `pool` can be reached.
        kind: which step settled it; a small fixed set, used as a metric label.
        reasons: for people, the deciding one first.
        p: the score, when one was made.
        classifier: who made it.
        degraded: a classifier failed on the way; such a decision is not remembered.
        hold_turns: keep this pool for so many turns of the session.
        only_replica: the one replica that can serve it, where state lives there; None for any.
        raw_p: the score before the policy's scale and bias: what another calibration begins with.
    """

    route: str
    pool: str
    fallbacks: tuple[str, ...]
    kind: Kind
    reasons: tuple[str, ...]
    p: float | None = None
    classifier: str = ""
    degraded: bool = False
    hold_turns: int = 0
    only_replica: str | None = None
    raw_p: float | None = None

    def as_record(self) -> dict[str, Any]:
        """For the decision record and `/v1/decision`."""
        return {
            "route": self.route, "pool": self.pool, "fallbacks": self.fallbacks, "kind": self.kind, "reasons": self.reasons,
            "p": self.p, "raw_p": self.raw_p, "classifier": self.classifier, "degraded": self.degraded,
        }  # fmt: skip
