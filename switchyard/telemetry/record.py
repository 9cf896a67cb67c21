"""What happened to one request. One record feeds the decision log, the metrics and the trace; nothing else counts."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

import msgspec

KEPT = 1_000
"""Records held in memory for /admin/decisions."""


class Record(msgspec.Struct):
    """One request, filled in as it goes. Times are seconds of the monotonic clock; 0 means it never came to that.

    Attributes:
        id: the request id that the client sees.
        ended_at_s: when it ended by the wall clock, seconds of the epoch.
        outcome: ok, refused (by the gateway), engine_error, broken (in mid-answer), client_left.
        attempts: pool and replica of every try.
        affinity: `hit` when the conversation's replica was the one of its last request, `repin` when it had to move, `miss`
            when it wasn't known; empty where the pool doesn't balance by it.
        limit: the limit of its API key that it exceeded.
        escalation: why a larger pool had to take over in mid-answer.
        died: pool and replica that died with it before there was anything of an answer; it went to another.
        first_sent_s: when the first attempt was sent; `sent_s` is the one whose first byte and token are told of.
        tries: requests written to an engine; more than attempts when a kept connection had died.
        decision: what `Decision.as_record` gives.
        signals: those that were read.
        counted: prompt tokens by the tokenizers of pools, where somebody had to count.
    """

    id: str
    path: str
    protocol: str
    began_s: float
    client_id: str = ""
    key_name: str = ""
    case: str = ""
    model: str = ""
    route: str = ""
    stream: bool = False
    session: str = ""
    session_source: str = ""
    signals: dict[str, Any] = {}
    counted: dict[str, int] = {}
    prompt: str | None = None
    decision: dict[str, Any] = {}
    pool: str = ""
    replica: str = ""
    affinity: str = ""
    limit: str = ""
    escalation: str = ""
    attempts: list[tuple[str, str]] = []
    died: list[tuple[str, str]] = []
    tries: int = 0
    changed: list[str] = []
    status: int = 0
    outcome: str = ""
    error: str = ""
    decided_s: float = 0.0
    admitted_s: float = 0.0
    first_sent_s: float = 0.0
    sent_s: float = 0.0
    first_byte_s: float = 0.0
    first_token_s: float = 0.0
    ended_s: float = 0.0
    ended_at_s: float = 0.0
    request_bytes: int = 0
    answer_bytes: int = 0
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None

    def as_line(self) -> dict[str, Any]:
        """The decision record as it is written: durations in ms, unknown as null, no text of prompts unless asked for."""
        line: dict[str, Any] = {
            "id": self.id, "time": _local(self.ended_at_s), "path": self.path, "protocol": self.protocol,
            "model": self.model, "route": self.route, "stream": self.stream, "key": self.key_name, "session": self.session,
            "session_source": self.session_source, "signals": self.signals, "decision": self.decision, "pool": self.pool,
            "replica": self.replica, "affinity": self.affinity, "changed": self.changed,
            "attempts": [f"{pool}/{replica}" for pool, replica in self.attempts], "status": self.status,
            "outcome": self.outcome, "error": self.error,
            "ms": {
                "decide": _ms(self.began_s, self.decided_s), "queue": _ms(self.decided_s, self.admitted_s),
                "first_byte": _ms(self.sent_s, self.first_byte_s), "first_token": _ms(self.sent_s, self.first_token_s),
                "total": _ms(self.began_s, self.ended_s),
            },
            "bytes": {"request": self.request_bytes, "answer": self.answer_bytes},
            "tokens": {"input": self.input_tokens, "output": self.output_tokens, "cached": self.cached_tokens},
        }  # fmt: skip
        if self.counted:
            line["counted"] = self.counted
        if self.died:
            line["died"] = [f"{pool}/{replica}" for pool, replica in self.died]
        if self.limit:
            line["limit"] = self.limit
        if self.escalation:
            line["escalation"] = self.escalation
        if self.case:
            line["case"] = self.case
        if self.client_id:
            line["client_request_id"] = self.client_id
        if self.prompt is not None:
            line["prompt"] = self.prompt
        return line


def _local(at_s: float) -> str:
    """Seconds of the epoch as local time, in milliseconds."""
    second, offset = _local_second(int(at_s))
    return f"{second}.{int(at_s % 1 * 1000):03d}{offset}"


@lru_cache(maxsize=2)  # hundreds of requests end in the same second
def _local_second(at_s: int) -> tuple[str, str]:
    local = time.localtime(at_s)
    return time.strftime("%Y-%m-%dT%H:%M:%S", local), time.strftime("%z", local)


def _ms(begin_s: float, end_s: float) -> float | None:
    """Whole microseconds as ms. Rounding to digits would go by way of text."""
    return round((end_s - begin_s) * 1e6) / 1000 if begin_s and end_s else None


class Listener(Protocol):
    """Is told of every request when it has ended."""

    def note(self, record: Record) -> None:
        """Take what it needs; must be quick."""


class Recorder:
    """Closes records: keeps the latest and tells all listeners."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = tuple(listeners)
        self.latest: deque[Record] = deque(maxlen=KEPT)

    def close(self, record: Record, now_s: float) -> None:
        """A request has ended, whichever way."""
        record.ended_s, record.ended_at_s = now_s, time.time()
        self.latest.append(record)
        for listener in self._listeners:
            listener.note(record)
