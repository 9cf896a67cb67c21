"""May a request be tried again elsewhere? Pure rules and a budget; who tries is the pipeline.

A failed connect and a kept connection that died unseen cost an engine nothing and are bounded per request: once for each
other replica. Everything else (429 and 503, by which an engine says that it did not begin; an engine's death) comes out of
one budget for the whole gateway, so that trouble is not multiplied.
"""

from __future__ import annotations

from collections.abc import Iterable

BUSY = frozenset({429, 503})
"""Statuses by which an engine refuses before it begins."""
SHARE = 0.1
"""Retries may be this share of recent requests ..."""
AT_LEAST = 10
"""... or this many, where there are few requests."""
HALF_LIFE_S = 10.0
"""How quickly the past is forgotten."""

BUSY_S = 1.0
"""Others are asked first for so long when an engine that refuses doesn't say for how long."""


def retry_after_s(headers: Iterable[tuple[bytes, bytes]]) -> float:
    """Seconds that an engine's `Retry-After` asks for; a date or nonsense counts as nothing said."""
    for name, value in headers:
        if name == b"retry-after" and value.isdigit() and len(value) < 7:
            return float(value)
    return BUSY_S


class RetryBudget:
    """Counts requests and retries, both fading with `HALF_LIFE_S`."""

    def __init__(self) -> None:
        self._requests = 0.0
        self._retries = 0.0
        self._at_s = 0.0

    def note_request(self, now_s: float) -> None:
        """A request has come."""
        self._fade(now_s)
        self._requests += 1

    def take(self, now_s: float) -> bool:
        """Whether one more retry is within the budget; if so, it is counted."""
        self._fade(now_s)
        if self._retries + 1 > max(AT_LEAST, SHARE * self._requests):
            return False
        self._retries += 1
        return True

    def _fade(self, now_s: float) -> None:
        passed_s = now_s - self._at_s
        if passed_s > 0.1:  # often enough, and not for each request
            factor = 0.5 ** (passed_s / HALF_LIFE_S)
            self._requests *= factor
            self._retries *= factor
            self._at_s = now_s
