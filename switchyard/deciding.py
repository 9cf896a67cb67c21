"""The deciding half of the request path: from a model name and signals to a decision, sessions and steering included.

The questions themselves are pure functions (`routing/policy.py`); here they are asked in their order, with what is
remembered between requests. Sending is `sending.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from switchyard.config.policy import Policy
from switchyard.config.route import Route
from switchyard.pools.pool import Pool
from switchyard.routing.classify.base import Classifier, ask_in_turn
from switchyard.routing.decision import Decision
from switchyard.routing.policy import (
    Candidates,
    decide_by_facts,
    decide_by_score,
    find_candidates,
    hold,
    keep_session,
    nearest_capable,
    worth_counting,
)
from switchyard.routing.pressure import PressureRelief
from switchyard.routing.session import Pin, Pins, Session, held_pool
from switchyard.routing.share import ShareControl
from switchyard.routing.signals import Signals
from switchyard.routing.tokens import Count, count_prompt

Steering = tuple[ShareControl | None, PressureRelief | None]


@dataclass(frozen=True, slots=True)
class Target:
    """What a model name means.

    Attributes:
        route_name: empty for a pool asked for by its name.
        route: how it is decided.
        pools: every pool it may use, from small to big.
    """

    route_name: str
    route: Route
    pools: tuple[str, ...]


class Stored(Protocol):
    """Where answers of the Responses endpoint are kept by the engines."""

    def place_of(self, response_id: str) -> tuple[str, str] | None:
        """Pool and replica that made it."""

    def remember(self, response_id: str, pool: str, replica: str, session: str = "", key_name: str = "") -> None:
        """It was made there, in this session of an API key."""


def keep_steering(policy: Policy, old: Mapping[str, Steering]) -> dict[str, Steering]:
    """Control for a new policy, by route; it goes on where its settings stay: a reload doesn't forget what was given."""
    steering: dict[str, Steering] = {}
    for name, route in policy.routes.items():
        share, pressure = old.get(name, (None, None))
        order = tuple(step.use for step in route.choose)
        if route.share is None or share is None or (share.settings, share.order) != (route.share, order):
            share = ShareControl(route.share, order) if route.share is not None else None
        if route.pressure is None or pressure is None or (pressure.settings, pressure.choose) != (route.pressure, route.choose):
            pressure = PressureRelief(route.pressure, route.choose) if route.pressure is not None else None
        if share is not None or pressure is not None:
            steering[name] = (share, pressure)
    return steering


class Decider:
    """Decides, and remembers what sessions need.

    Args:
        find_target: looks up a model name; exact, never interpreted.
        pools: by name.
        classifiers: of each route, in the order they are asked.
        steering: of each route that has it, control of a share and relief of pressure.
        pins: what was decided for sessions.
        stored: places of stored responses.
        counters: of each pool that has one, its tokenizer.
    """

    def __init__(
        self,
        find_target: Callable[[str], Target | None],
        pools: Mapping[str, Pool],
        classifiers: Mapping[str, Sequence[Classifier]],
        steering: Mapping[str, Steering],
        pins: Pins,
        stored: Stored,
        counters: Mapping[str, Count],
    ) -> None:
        self.find_target = find_target
        self._pools = pools
        self._classifiers = classifiers
        self._steering = steering
        self._pins = pins
        self._stored = stored
        self._counters = counters

    async def decide(self, target: Target, signals: Signals, session: Session, remember: bool = True) -> Decision:
        """The pool for this request: capability, facts, session, score, steering - in that order.

        Raises:
            GatewayError: no pool can serve it.
        """
        name, route = target.route_name, target.route
        if self._counters:
            await self._count(target, signals)
        candidates = find_candidates(target.pools, self._pools, signals)
        stored = self._place_of_previous(signals)
        if stored is not None and self._is_there(stored, candidates):
            why = "the response that this one follows is stored there"
            return Decision(name, stored[0], (), "held", (why,), only_replica=stored[1])
        decision = decide_by_facts(name, route, candidates, signals)
        if decision is None:
            pin = self._pins.get(name, session, remember)
            held = held_pool(pin, route.decide_per, signals.turns, signals.tool_loop, session.certain)
            if pin is not None and held is not None:
                if remember and (later := pin.after(signals.turns, signals.tool_loop)) is not pin:
                    self._pins.put(name, session, later)
                return hold(name, route, nearest_capable(held[0], route, candidates), held[1], candidates)
            outcomes = await ask_in_turn(self._classifiers.get(name, ()), signals)
            decision = decide_by_score(name, route, candidates, outcomes)
            going_on = pin.pool if pin is not None and session.certain and route.decide_per != "request" else ""
            decision = keep_session(decision, going_on, candidates)
            if going_on != decision.pool:
                decision = self._steer(name, decision, candidates, going_on, remember)
        if remember and route.use is None:
            self._pin(name, session, signals, decision)
        return decision

    async def _count(self, target: Target, signals: Signals) -> None:
        """Count the prompt with a pool's tokenizer where the estimate leaves open if it fits; in a thread."""
        for name in target.pools:
            count = self._counters.get(name)
            if count is not None and worth_counting(self._pools[name], signals):
                signals.counted[name] = await asyncio.to_thread(count_prompt, signals.view, count)

    def note_stand_in(self, target: Target, session_key: str, signals: Signals, pool: str) -> None:
        """No replica of the pool that was decided on could be reached: a tool loop goes on where it is now."""
        self._pin_loop(target.route_name, Session(session_key, ""), signals, pool)

    def note_move(self, target: Target, session_key: str, signals: Signals, pool: str) -> None:
        """Another pool had to take over: the session goes on there, where the conversation now is."""
        self._pins.put(target.route_name, Session(session_key, ""), Pin(pool, signals.turns))

    def longer_pool(self, target: Target, signals: Signals, than: str) -> str | None:
        """The next pool of the route that can serve the request and holds more than this one does."""
        held = self._pools[than].context_tokens
        for name in target.pools:
            pool = self._pools[name]
            if held is None or (pool.context_tokens or 0) <= held or not pool.speaks(signals.protocol):
                continue
            if not any(signals.get(need) for need in pool.refuses):
                return name
        return None

    def _is_there(self, place: tuple[str, str], candidates: Candidates) -> bool:
        pool, replica = place
        return pool in candidates.pools and any(r.label == replica for r in self._pools[pool].replicas)

    def _steer(self, name: str, decision: Decision, candidates: Candidates, going_on: str, remember: bool) -> Decision:
        """A fresh, scored decision may be moved for a pool's share, or away from a queue; never below the session's pool."""
        steering = self._steering.get(name)
        if steering is None or decision.kind != "score":
            return decision
        share, pressure = steering
        pools = candidates.pools[candidates.pools.index(going_on) :] if going_on in candidates.pools else candidates.pools
        if share is not None:
            decision = share.apply(decision, pools, remember)
        if pressure is not None and decision.kind == "score":
            decision = pressure.apply(decision, pools, lambda pool: self._pools[pool].queued > 0, remember)
        return decision

    def _pin(self, name: str, session: Session, signals: Signals, decision: Decision) -> None:
        """Remember the decision for the rest of the session, or, where it is none of the session's own, of its tool loop."""
        old = self._pins.get(name, session)
        turn = signals.turns
        passing = decision.kind in {"rule", "asked"} and not decision.hold_turns and old is not None and old.pool != ""
        if passing and signals.tool_loop:
            return  # an exception for this request: the loop goes on where it was
        if passing or decision.degraded:
            self._pin_loop(name, session, signals, decision.pool)
        elif decision.hold_turns:
            pool = old.pool if old is not None and old.pool else decision.pool
            self._pins.put(name, session, Pin(pool, turn, turn + decision.hold_turns, decision.pool))
        else:
            self._pins.put(name, session, Pin(decision.pool, turn))

    def _pin_loop(self, name: str, session: Session, signals: Signals, pool: str) -> None:
        """What the tool loop of this turn, should there be one, goes on with; the session keeps what it had."""
        if signals.tools:
            pin = self._pins.get(name, session) or Pin("", 0)
            self._pins.put(name, session, replace(pin, loop_pool=pool, loop_turn=signals.turns))

    def _place_of_previous(self, signals: Signals) -> tuple[str, str] | None:
        """Pool and replica that hold the response this request goes on from, as far as it is known here."""
        previous = signals.view.body.text("previous_response_id") if signals.protocol == "responses" else None
        return self._stored.place_of(previous) if previous else None
