"""Records as the pipeline fills them in."""

from typing import Any

from switchyard.telemetry.record import Record

DECISION = {
    "route": "auto", "pool": "small", "fallbacks": ("big",), "kind": "score", "reasons": ("p 0.70 >= 0.6 by embedded",),
    "p": 0.7, "classifier": "embedded", "degraded": False,
}  # fmt: skip


def record_of(**how: Any) -> Record:
    """A good streamed answer; times in round numbers."""
    fields: dict[str, Any] = {
        "id": "req-1", "path": "/v1/chat/completions", "protocol": "chat", "began_s": 100.0, "model": "auto", "route": "auto",
        "stream": True, "session": "0123456789abcdef", "session_source": "x-session-id", "signals": {"turns": 2},
        "decision": DECISION, "pool": "small", "replica": "small-1", "attempts": [("small", "small-1")],
        "status": 200, "outcome": "ok",
        "decided_s": 100.002, "admitted_s": 100.5, "sent_s": 100.501, "first_byte_s": 100.9, "first_token_s": 101.0,
        "ended_s": 103.0, "request_bytes": 500, "answer_bytes": 900, "input_tokens": 40, "output_tokens": 12,
        "cached_tokens": 30,
    }  # fmt: skip
    return Record(**{**fields, **how})
