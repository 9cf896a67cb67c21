"""One engine as the gateway knows it: how busy it is and what its probes say. State only; who changes it is elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from switchyard.config.policy import Replica as ReplicaSettings
from switchyard.pools.evidence import Evidence
from switchyard.pools.load import EngineLoad

State = Literal["unknown", "ready", "loading", "down", "ejected"]


class Replica:
    """An engine's load and health.

    Attributes:
        label: its name.
        in_flight: requests from selection to the end of the body.
        tokens: estimated tokens of those requests, prompt and wanted answer.
        evidence: what traffic says about it.
        engine_load: what it last said about itself; None when it doesn't.
        state: `unknown` until the first probe; a replica is tried in that state too.
        problem: what the last failed probe or connect said.
        context_tokens: what the engine reports; None while unknown.
        protocols: what the engine answers natively; None while unknown.
        served: requests that ended on it.
    """

    def __init__(self, pool: str, settings: ReplicaSettings, limit: int) -> None:
        self.pool = pool
        self.label = settings.label
        self.url = settings.url
        self.weight = settings.weight
        self.nodes = settings.nodes
        self.limit = limit
        self.in_flight = 0
        self.tokens = 0
        self.served = 0
        self.state: State = "unknown"
        self.evidence = Evidence()
        self.engine_load: EngineLoad | None = None
        self.problem = ""
        self.context_tokens: int | None = None
        self.protocols: frozenset[str] | None = None

    @property
    def available(self) -> bool:
        """Healthy and not full."""
        return self.state in {"ready", "unknown"} and self.in_flight < self.limit

    def has_room(self, now_s: float) -> bool:
        """Whether it takes one more request: healthy, and below its limit, which grows slowly after a return."""
        if not self.available:
            return False
        returned = self.evidence.returned_s
        return not returned or self.in_flight < max(1, self.limit * self.evidence.share(now_s))

    @property
    def healthy(self) -> bool:
        """Whether requests are sent to it."""
        return self.state in {"ready", "unknown"}

    def mark(self, state: State, problem: str = "") -> bool:
        """Set the state; True when it changed. What traffic has ejected stays so until it is readmitted."""
        if self.state == "ejected" and state in {"down", "loading"}:
            return False
        changed = state != self.state
        self.state = state
        self.problem = problem
        return changed


class Lease:
    """A place on a replica, held from selection to the end of the body. `release` may be called more than once."""

    __slots__ = ("_released", "_when_free", "replica", "tokens")

    def __init__(self, replica: Replica, tokens: int, when_free: Callable[[], None]) -> None:
        self.replica = replica
        self.tokens = tokens
        self._when_free = when_free
        self._released = False
        replica.in_flight += 1
        replica.tokens += tokens

    def release(self) -> None:
        """Give the place back."""
        if self._released:
            return
        self._released = True
        self.replica.in_flight -= 1
        self.replica.tokens -= self.tokens
        self.replica.served += 1
        self._when_free()
