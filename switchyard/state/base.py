"""What a store of shared state offers, and the words for it. `memory.py` keeps it in the process, `redis.py` shares it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from switchyard.config.server import KeyLimits

Limit = Literal["requests_per_minute", "tokens_per_minute", "concurrent_requests"]


@dataclass(slots=True, eq=False)
class Claim:
    """What one request takes of its API key's limits; given to `Store.settle` when it has ended.

    Attributes:
        api_key: name of the key; empty on an open gateway, whose clients share one.
        limits: of that key.
        tokens: estimated tokens, prompt and answer.
        id: the request's, unlike that of any other request of any gateway.
        second: when it came, by the process's clock.
        shared_second: when the shared store granted it, by that one's clock; None when it didn't.
        ended: whether it was settled.
        used_tokens: what it took in the end; None when nobody knows.
    """

    api_key: str
    limits: KeyLimits
    tokens: int
    id: str
    second: int = 0
    shared_second: int | None = None
    ended: bool = False
    used_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A claim was not granted.

    Attributes:
        limit: the one that it would exceed.
        retry_after_s: when it may fit; None when it never will.
    """

    limit: Limit
    retry_after_s: int | None


@dataclass(frozen=True, slots=True)
class Known:
    """What a store says when a request arrives.

    Attributes:
        refusal: why its key may not send it; None when it may.
        session: fields that were remembered for its session; None when nobody could be asked.
        place: where the response that it follows is kept; None when that is not known.
    """

    refusal: Refusal | None = None
    session: Mapping[str, str] | None = field(default=None)
    place: str | None = None


class Store(Protocol):
    """State that outlives a request. Nothing here raises, and nothing waits longer than a few milliseconds."""

    @property
    def shared(self) -> bool:
        """Whether other gateways see it, too."""

    async def arrive(self, claim: Claim | None, session: str, response_id: str | None) -> Known:
        """A request has come: claim its part of the limits, and fetch what is known for it."""

    def settle(self, claim: Claim, used_tokens: int | None) -> None:
        """It has ended.

        Args:
            claim: as it was granted.
            used_tokens: what it took in the end; None when nobody knows, then the estimate stands.
        """

    def remember(self, session: str, name: str, value: str) -> None:
        """Keep a field of a session."""

    def remember_place(self, response_id: str, place: str) -> None:
        """Keep where a stored response is."""
