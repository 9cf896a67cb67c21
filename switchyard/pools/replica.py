"""One engine as the gateway knows it: how busy it is and whether it gets requests. State only; who changes it is elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from switchyard.config.pool import Replica as ReplicaSettings
from switchyard.pools.evidence import Evidence
from switchyard.pools.load import EngineLoad

Probed = Literal["unknown", "ready", "loading", "down"]
State = Literal["unknown", "ready", "loading", "down", "ejected", "draining"]
_USABLE = frozenset({"ready", "unknown"})

WORK_HALF_LIFE_S = 60.0


class Replica:
    """An engine's load and health.

    Three things are known of it apart from each other: what its probes say, whether it was ejected, and whether it is
    drained. `state` is the one that counts: draining before ejected before the probes' word.

    Attributes:
        label: its name.
        in_flight: requests from selection to the end of the body.
        tokens: estimated tokens of those requests, prompt and wanted answer.
        foreign: requests that the engine has besides ours, by its last reading: other gateways', other clients'.
        foreign_tokens: what those are taken to weigh.
        work: tokens of its requests of late; older ones fade.
        evidence: what traffic says about it.
        heard_s: when it last answered a probe; 0 before.
        busy_until_s: it said 429 or 503, and others are asked first until then.
        engine_load: what it last said about itself; None when it doesn't.
        shows_work: whether its figures have ever shown any; those of some set-ups are always zero.
        probed: what its probes say; `unknown` until the first, and tried in that state too.
        probe_problem: what the last failed probe or connect said.
        ejected: why it was taken out; empty when it was not.
        draining: why it gets nothing new for good; empty when it does.
        context_tokens: what the engine reports; None while unknown.
        protocols: what the engine answers natively; None while unknown.
        served: requests that ended on it.
        affinity: how many came as `hit`, `repin` and `miss`; see `Lease`.
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
        self.affinity = {"hit": 0, "repin": 0, "miss": 0}
        self.leases: set[Lease] = set()
        self.foreign = 0.0
        self.foreign_tokens = 0.0
        self.work = 0.0
        self._faded_s = 0.0
        self.heard_s = 0.0
        self.busy_until_s = 0.0
        self.probed: Probed = "unknown"
        self.probe_problem = ""
        self.ejected = ""
        self.draining = ""
        self.evidence = Evidence()
        self.engine_load: EngineLoad | None = None
        self.shows_work = False
        self.context_tokens: int | None = None
        self.protocols: frozenset[str] | None = None

    @property
    def state(self) -> State:
        """What counts of the three."""
        if self.draining:
            return "draining"
        return "ejected" if self.ejected else self.probed

    @property
    def problem(self) -> str:
        """Why it is in its state, and what its probes say besides; empty when all is well."""
        return "; ".join(filter(None, (self.draining, self.ejected, self.probe_problem)))

    @property
    def busy(self) -> float:
        """Requests on the engine, ours and foreign ones."""
        return self.in_flight + self.foreign

    @property
    def busy_tokens(self) -> float:
        """Estimated tokens of those requests."""
        return self.tokens + self.foreign_tokens

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens of our requests on it whose answers have not begun: what it may be busy with unseen."""
        return sum(lease.prompt_tokens for lease in self.leases if not lease.has_begun())

    def fade(self, now_s: float) -> None:
        """Bring `work` to this moment."""
        self.work *= 0.5 ** ((now_s - self._faded_s) / WORK_HALF_LIFE_S)
        self._faded_s = now_s

    @property
    def full_name(self) -> str:
        """Its name with its nodes, for messages: people look for a machine."""
        return f"{self.label} (on {', '.join(self.nodes)})" if self.nodes else self.label

    @property
    def healthy(self) -> bool:
        """Whether requests are sent to it: asked often, so without the way over `state`."""
        return not self.draining and not self.ejected and self.probed in _USABLE

    @property
    def available(self) -> bool:
        """Healthy and not full."""
        return self.healthy and self.in_flight < self.limit

    def has_room(self, now_s: float) -> bool:
        """Whether it takes one more request: healthy, and below its limit, which grows slowly after a return."""
        return self.healthy and self.in_flight < self.limit_at(now_s)

    def limit_at(self, now_s: float) -> float:
        """Requests it may have now; less than its limit for a while after its return."""
        return max(1.0, self.limit * self.evidence.share(now_s))

    def mark(self, probed: Probed, problem: str = "") -> bool:
        """Note what a probe or a connect says; True when that changed the state."""
        before = self.state
        self.probed, self.probe_problem = probed, problem
        return self.state != before


class Lease:
    """A place on a replica, held from selection to the end of the body. `release` may be called more than once.

    Attributes:
        tokens: estimated tokens, prompt and wanted answer.
        prompt_tokens: the prompt's part of them.
        began_s: when it was taken, by the loop's clock.
        alone: whether the replica had no other request of ours when this one came.
        affinity: `hit` where the conversation was before, `repin` elsewhere than before, `miss` when it wasn't known;
            empty where balancing doesn't look at conversations.
        has_begun: whether the body of its answer has begun.
    """

    __slots__ = ("_released", "_when_free", "affinity", "alone", "began_s", "has_begun", "prompt_tokens", "replica", "tokens")

    def __init__(
        self,
        replica: Replica,
        tokens: int,
        when_free: Callable[[], None],
        prompt_tokens: int = 0,
        affinity: str = "",
        began_s: float = 0.0,
    ) -> None:
        self.replica = replica
        self.tokens = tokens
        self.prompt_tokens = prompt_tokens
        self.affinity = affinity
        self.began_s = began_s
        self.alone = replica.busy < 1
        self.has_begun: Callable[[], bool] = _not_yet
        self._when_free = when_free
        self._released = False
        replica.in_flight += 1
        replica.tokens += tokens
        replica.leases.add(self)

    def release(self) -> None:
        """Give the place back."""
        if self._released:
            return
        self._released = True
        self.replica.in_flight -= 1
        self.replica.tokens -= self.tokens
        self.replica.served += 1
        self.replica.leases.discard(self)
        self._when_free()


def _not_yet() -> bool:
    return False
