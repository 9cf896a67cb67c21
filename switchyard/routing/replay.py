"""Deciding anew about recorded requests, to see what another policy would have done with them.

Nothing of a request is needed but its line in the decision log. The gateway's own decider does the deciding (it stands
above this package, so it is handed in), with sessions by the recorded clock. What the log can't tell is *unknown*, never
guessed. Pure: no files, no clock, no event loop. Counting is `tally.py`, reading and showing `cli/whatif.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, cast

from msgspec.structs import replace

from switchyard.config.policy import Policy
from switchyard.errors import GatewayError
from switchyard.routing.classify.base import Classifier
from switchyard.routing.decision import Decision
from switchyard.routing.pressure import PressureRelief
from switchyard.routing.recorded import NotRecorded, Recorded, RecordedClassifier, RecordedPool, RecordedSignals
from switchyard.routing.session import Pin, Pins, Session
from switchyard.routing.share import ShareControl
from switchyard.routing.signals import Signals

T = TypeVar("T")


class Decides(Protocol):
    """What `deciding.Decider` does."""

    @property
    def find_target(self) -> Callable[[str], Any]:
        """What a model name means; None for an unknown one."""

    async def decide(self, target: Any, signals: Signals, session: Session, remember: bool = True) -> Decision:
        """The pool for a request."""


@dataclass(frozen=True)
class Parts:
    """What a decider is made of."""

    policy: Policy
    pools: Mapping[str, Any]
    classifiers: Mapping[str, Sequence[Classifier]]
    steering: Mapping[str, tuple[ShareControl | None, PressureRelief | None]]
    pins: Pins
    stored: Any


def _finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run to its end what never waits: everything a recorded decision asks is there already."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return cast(T, done.value)
    coroutine.close()
    raise RuntimeError("deciding about a recorded request waited for something")


State = Literal["same", "moved", "unknown", "refused", "undecided"]
STATES: tuple[State, ...] = ("same", "moved", "unknown", "refused", "undecided")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the new policy does with a request.

    Attributes:
        state: same or moved (pools as decided), unknown (the log can't tell), refused (the new policy would), undecided
            (the gateway never decided about it, so there is nothing to compare).
        before: pool it was given; empty when undecided.
        after: pool it would get; empty unless same or moved.
        why: the new reason, or why there is no answer.
        group: the same in a few words, for counting.
    """

    state: State
    before: str = ""
    after: str = ""
    why: str = ""
    group: str = ""


class Replay:
    """Decides about records in the order of the log, with sessions as the gateway keeps them.

    Args:
        policy: the new policy.
        make_decider: makes the gateway's decider.
        contexts: context lengths of pools, in tokens, where the policy leaves them to the engines. Others are learned from
            the log where it names them; until then they are taken as unlimited.
    """

    def __init__(
        self, policy: Policy, make_decider: Callable[[Parts], Decides], contexts: Mapping[str, int] | None = None
    ) -> None:
        self.policy = policy
        known = contexts or {}
        self.pools = {
            name: RecordedPool(name, block, known.get(name) if block.context == "auto" else block.context)
            for name, block in policy.pools.items()
        }
        self._record: Recorded
        self._now_s = 0.0
        self._pins = Pins(policy.server.session_ttl_s, lambda: self._now_s)
        self._seen: set[tuple[str, str]] = set()  # sessions, by route
        self._guessed: set[tuple[str, str]] = set()  # those whose pin the log doesn't tell
        classifiers: dict[str, Sequence[Classifier]] = {}
        steering = {}
        for name, route in policy.routes.items():
            classifiers[name] = [RecordedClassifier(c, lambda: self._record) for c in route.classify]
            share = ShareControl(route.share, [step.use for step in route.choose]) if route.share else None
            steering[name] = (share, PressureRelief(route.pressure, route.choose) if route.pressure else None)
        self._decider = make_decider(Parts(policy, self.pools, classifiers, steering, self._pins, self))

    def place_of(self, response_id: str) -> tuple[str, str] | None:
        """See `deciding.Stored`: where the response that the record at hand follows was stored."""
        return self._record.decision.pool, self._record.replica

    def remember(self, response_id: str, pool: str, replica: str, session: str = "", key_name: str = "") -> None:
        """See `deciding.Stored`: nothing new is stored in a replay."""

    def decide(self, record: Recorded) -> Verdict:
        """The next record of the log."""
        self._record, old = record, record.decision
        self._now_s = max(self._now_s, record.decided_s)
        self._learn_contexts(record)
        if not old.pool:
            code = record.error or record.outcome or "no decision"
            return Verdict("undecided", why=code, group=code)
        target = self._decider.find_target(record.model)
        if target is None:
            why = f"the new policy has no model {record.model[:80]}"
            return Verdict("refused", old.pool, why=why, group=why)
        session = Session(record.session or record.id, record.session_source if record.session else "fingerprint")
        self._see_queues(record, target.pools)
        try:
            decision, certain = self._decide(target, record, session)
        except NotRecorded as missing:
            self._assume(target.route_name, record, session)
            return Verdict("unknown", old.pool, why=str(missing), group=str(missing))
        except GatewayError as error:
            return Verdict("refused", old.pool, why=error.message, group=error.code)
        if not certain:
            why = "goes on from a turn that can't be decided anew, or began before this log"
            self._assume(target.route_name, record, session)
            return Verdict("unknown", old.pool, why=why, group=why)
        if decision.pool == old.pool:
            self._follow(target.route_name, record, session)
        state: State = "same" if decision.pool == old.pool else "moved"
        return Verdict(state, old.pool, decision.pool, decision.reasons[0])

    def _decide(self, target: Any, record: Recorded, session: Session) -> tuple[Decision, bool]:
        """The decision, and whether it rests on known things only."""
        name, old = target.route_name, record.decision
        key = (name, session.key)
        pin = self._pins.get(name, session)
        turns = record.signals.get("turns", 0)
        begins = turns <= 1 and record.signals.get("tool_loop") is False
        is_late = key not in self._seen and not begins  # to be seen for the first time
        self._seen.add(key)
        if pin is None and old.kind == "held" and not record.follows_stored:  # it began before the log
            self._guessed.add(key)
            pin = Pin(old.pool, turns)
            self._pins.put(name, session, pin)
        held_by_rule = pin is not None and pin.turns_left(turns) > 0
        decision = _finish(self._decider.decide(target, cast(Signals, RecordedSignals(record)), session))
        if target.route.use is not None or (decision.kind == "held" and (record.follows_stored or held_by_rule)):
            return decision, True
        if decision.kind in {"rule", "asked"}:
            if pin is None and is_late:  # what the session had before, the log doesn't say
                self._guessed.add(key)
            return decision, True
        if key not in self._guessed:
            return decision, True
        if decision.kind == "held":
            return decision, False
        goes_on = session.certain and target.route.decide_per != "request"
        if goes_on and decision.kind != "only" and decision.pool != target.pools[-1]:
            return decision, False  # the session may be on a larger pool
        if not decision.degraded:
            self._guessed.discard(key)
        return decision, True

    def _assume(self, route: str, record: Recorded, session: Session) -> None:
        """A request about which nothing is known stays where it was, and its session counts as guessed."""
        pin = self._pins.get(route, session) or Pin("", 0)
        turns = record.signals.get("turns", pin.turn)
        self._pins.put(route, session, replace(pin, pool=record.decision.pool, turn=turns))
        self._guessed.add((route, session.key))

    def _follow(self, route: str, record: Recorded, session: Session) -> None:
        """What a pool that took over from the one decided on means for the session; see `Decider.note_move`."""
        if record.pool in {"", record.decision.pool}:
            return
        turns = record.signals.get("turns", 0)
        if record.escalation and record.outcome == "ok":
            self._pins.put(route, session, Pin(record.pool, turns))
            self._guessed.discard((route, session.key))
        else:  # stood in for, or moved since its engine found it too long: the record doesn't say which
            self._guessed.add((route, session.key))

    def _see_queues(self, record: Recorded, pools: Sequence[str]) -> None:
        """A queue shows in the log only where it moved a request; then all but the pool that was taken had one."""
        moved = record.decision.kind == "pressure"
        for name in pools:
            self.pools[name].queued = int(moved and name != record.decision.pool)

    def _learn_contexts(self, record: Recorded) -> None:
        for name, tokens in record.contexts.items():
            pool = self.pools.get(name)
            if pool is not None and pool.settings.context == "auto" and pool.context_tokens is None:
                pool.context_tokens = tokens
