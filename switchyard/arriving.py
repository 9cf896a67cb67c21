"""The arriving part of the request path: what a request's API key may still do, and what other gateways know about it.

Both are one question to the store, asked before anything is decided. Without limits and without a shared store nothing is
asked at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from switchyard.config.server import ServerLimits
from switchyard.errors import OverTokenLimit, RateLimited
from switchyard.pools.pool import Pool
from switchyard.routing.session import Pin, Pins, Session
from switchyard.routing.signals import Signals
from switchyard.routing.stored import StoredResponses
from switchyard.state.base import Claim, Limit, Refusal, Store
from switchyard.telemetry.record import Record

ANSWER_TOKENS_GUESS = 1_024
"""Most that is reserved for an answer: agents ask for 32,000 and use a few hundred. What was used in the end counts."""

SECOND_LOOK_S = 0.02
PIN, PLACE = "pin:", "at:"
"""Fields of a session in the store: what was decided for it on a route, and its last replica of a pool."""
GENERATING = frozenset({"chat", "responses", "messages", "completions"})
_SAID: dict[Limit, str] = {
    "requests_per_minute": "has sent {n} requests within a minute",
    "tokens_per_minute": "has no {tokens} of its {n} tokens a minute left",
    "concurrent_requests": "has {n} requests running",
}


class Arrivals:
    """Lets requests in.

    Args:
        limits: of the API keys.
        store: counts, and knows what other gateways know.
        pins, stored, pools: learn what those know.
    """

    def __init__(
        self, limits: ServerLimits, store: Store, pins: Pins, stored: StoredResponses, pools: Mapping[str, Pool]
    ) -> None:
        self._by_key = {name: limits.of(name) for name in limits.keys}
        self._default = limits.of("")
        self._store = store
        self._pins = pins
        self._stored = stored
        self._pools = pools

    async def enter(
        self, record: Record, signals: Signals, session: Session, response_id: str | None = None, only_looks: bool = False
    ) -> Claim | None:
        """Claim a request's part of its key's limits, to be given to `leave` in any case.

        Args:
            record: with key, route and request id.
            signals: its facts.
            session: its conversation.
            response_id: the stored response that it follows or is about.
            only_looks: it asks for the decision alone, which takes no tokens.

        Raises:
            RateLimited, OverTokenLimit: the key has used up what it may.
        """
        limits = self._by_key.get(record.key_name, self._default)
        tokens = 0 if only_looks or limits is None else estimate_tokens(signals)
        claim = Claim(record.key_name, limits, tokens, record.id) if limits is not None else None
        if claim is None and not self._store.shared:
            return None
        if response_id is None and signals.protocol == "responses":
            response_id = signals.view.body.text("previous_response_id")
        known = await self._store.arrive(claim, session.key, response_id)
        if known.refusal is not None and claim is not None:
            record.limit = known.refusal.limit
            raise _refused(claim, known.refusal)
        if known.session is not None:
            self._learn(record.route, session, known.session)
        if response_id is not None:
            try:
                await self._find_place(response_id, known.place)
            except asyncio.CancelledError:
                if claim is not None:
                    self._store.settle(claim, 0)
                raise
        return claim

    async def _find_place(self, response_id: str, place: str | None) -> None:
        if place is None and self._store.shared and self._stored.place_of(response_id) is None:
            await asyncio.sleep(SECOND_LOOK_S)  # the gateway that made it may just be saying so
            place = (await self._store.arrive(None, "", response_id)).place
        if place is not None:
            self._stored.learn(response_id, place)

    def _learn(self, route: str, session: Session, fields: Mapping[str, str]) -> None:
        if (told := fields.get(PIN + route)) is not None:
            if (pin := Pin.from_text(told)) is not None:
                self._pins.learn(route, session, pin)
        elif (own := self._pins.get(route, session)) is not None:  # the store has lost it, or never had it
            self._store.remember(session.key, PIN + route, own.as_text())
        for name, pool in self._pools.items():
            if (label := fields.get(PLACE + name)) is not None:
                pool.places.learn(session.key, label)

    def leave(self, claim: Claim | None, record: Record) -> None:
        """The request has ended, whichever way; its record says what it took."""
        if claim is not None:
            self._store.settle(claim, used_tokens(record))


def estimate_tokens(signals: Signals) -> int:
    """Tokens that a request will take, as far as anybody can know before."""
    if signals.view.counting or not signals.view.body.fields:
        return 0
    if signals.protocol not in GENERATING:
        return signals.prompt_tokens
    return signals.prompt_tokens + min(ANSWER_TOKENS_GUESS, signals.max_output_tokens or ANSWER_TOKENS_GUESS)


def used_tokens(record: Record) -> int | None:
    """Tokens that it took; None when its engine didn't say."""
    if not record.sent_s or record.outcome in {"refused", "engine_error"}:
        return 0
    if record.input_tokens is None and record.output_tokens is None:
        return None
    return (record.input_tokens or 0) + (record.output_tokens or 0)


def _refused(claim: Claim, refusal: Refusal) -> RateLimited | OverTokenLimit:
    who = f"the API key {claim.api_key}" if claim.api_key else "the gateway's clients, which share one limit, together"
    limit = getattr(claim.limits, refusal.limit)
    where = f"server.limits, {refusal.limit}"
    if refusal.retry_after_s is None:
        message = f"the request takes about {claim.tokens} tokens, and {who} may use {limit} a minute ({where}): shorten it"
        return OverTokenLimit(message)
    said = _SAID[refusal.limit].format(n=limit, tokens=claim.tokens)
    return RateLimited(f"{who} {said} ({where}); retry in {refusal.retry_after_s} s", retry_after_s=refusal.retry_after_s)
