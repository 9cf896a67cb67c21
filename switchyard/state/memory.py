"""State of one process: the use of each key's limits. Sessions and places are remembered where they are used."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable

from switchyard.state.base import Claim, Known, Refusal
from switchyard.state.window import Window

CONCURRENT_RETRY_S = 1  # one of the running requests may end at any time


class _Use:
    """What one key has taken."""

    __slots__ = ("requests", "running", "tokens")

    def __init__(self) -> None:
        self.requests = Window()
        self.tokens = Window()
        self.running = 0


class Ledger:
    """The use of all keys, by a clock that comes in. All limits of a claim are granted, or none is touched."""

    def __init__(self) -> None:
        self._keys: defaultdict[str, _Use] = defaultdict(_Use)

    def claim(self, claim: Claim, now_s: float) -> Refusal | None:
        """Take what a request needs; gives the limit that it would exceed."""
        use, limits = self._keys[claim.api_key], claim.limits
        per_minute = limits.tokens_per_minute
        if per_minute is not None and claim.tokens > per_minute:
            return Refusal("tokens_per_minute", None)
        if limits.concurrent_requests is not None and use.running >= limits.concurrent_requests:
            return Refusal("concurrent_requests", CONCURRENT_RETRY_S)
        if limits.requests_per_minute is not None and use.requests.total(now_s) >= limits.requests_per_minute:
            return Refusal("requests_per_minute", use.requests.room_in_s(1, limits.requests_per_minute, now_s))
        if per_minute is not None and use.tokens.total(now_s) + claim.tokens > per_minute:
            return Refusal("tokens_per_minute", use.tokens.room_in_s(claim.tokens, per_minute, now_s))
        self.take(claim, now_s)
        return None

    def take(self, claim: Claim, now_s: float) -> None:
        """Count a request that somebody else has granted."""
        use = self._keys[claim.api_key]
        use.requests.add(1, now_s)
        use.tokens.add(claim.tokens, now_s)
        use.running += 1

    def settle(self, claim: Claim, second: int, used_tokens: int | None, now_s: float) -> None:
        """It has ended: what it took more counts now, what it took less is taken back where it was taken."""
        use = self._keys[claim.api_key]
        use.running -= 1
        more = 0 if used_tokens is None else used_tokens - claim.tokens
        if more > 0:
            use.tokens.add(more, now_s)
        elif more < 0:
            use.tokens.take_back(-more, second)


class MemoryStore:
    """See `base.Store`: nothing is shared.

    Args:
        clock: seconds, rising.
    """

    shared = False

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ledger = Ledger()

    async def arrive(self, claim: Claim | None, session: str, response_id: str | None) -> Known:
        """See `base.Store`."""
        if claim is None:
            return NOTHING
        now_s = self._clock()
        claim.second = math.floor(now_s)
        refusal = self._ledger.claim(claim, now_s)
        return NOTHING if refusal is None else Known(refusal)

    def settle(self, claim: Claim, used_tokens: int | None) -> None:
        """See `base.Store`."""
        self._ledger.settle(claim, claim.second, used_tokens, self._clock())

    def remember(self, session: str, name: str, value: str) -> None:
        """See `base.Store`; the pins and moves of this process are all there is."""

    def remember_place(self, response_id: str, place: str) -> None:
        """See `base.Store`."""


NOTHING = Known()
