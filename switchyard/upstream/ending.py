"""How an event stream ended by the engine's own word: well, or with an error event. Pure.

An engine that fails when its answer has begun can't change the status any more. It says so in the last event: vLLM sends
`{"error": ...}` and `[DONE]`, on Messages `event: error`. To HTTP such an answer is as good as any.
"""

from __future__ import annotations

import msgspec

from switchyard.upstream.sse import event_data

_BLANK_LINES = (b"\n\n", b"\r\n\r\n", b"\r\r")
_STATUS = {
    "BadRequestError": 400, "invalid_request_error": 400, "invalid_prompt": 400, "not_found_error": 404,
    "request_too_large": 413, "rate_limit_error": 429, "rate_limit_exceeded": 429, "overloaded_error": 503,
}  # fmt: skip


class _Error(msgspec.Struct):
    code: int | str | None = None
    type: str | None = None


class _Response(msgspec.Struct):
    error: _Error | None = None


class _Event(msgspec.Struct):
    type: str | None = None
    code: int | str | None = None
    error: _Error | None = None
    response: _Response | None = None


_EVENT = msgspec.json.Decoder(_Event)


def error_status(tail: bytes) -> int | None:
    """The status that the engine would have answered, had it failed before it began; None when it ended well.

    Args:
        tail: the last bytes of a complete event stream.
    """
    event = _last_event(tail)
    if b'"error"' not in event:
        return None
    try:
        found = _EVENT.decode(event_data(event))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    error = found.error
    if error is None and found.type == "response.failed" and found.response is not None:
        error = found.response.error
    if error is None and found.type == "error":  # Responses has an event of this kind with the fields outside
        error = _Error(found.code)
    return None if error is None else _status(error)


def _last_event(tail: bytes) -> bytes:
    """The last event but for `[DONE]`."""
    text = tail.rstrip()
    if text.endswith(b"[DONE]"):
        text = text[: text.rfind(b"data:")].rstrip()
    return text[max(0, *(text.rfind(blank) for blank in _BLANK_LINES)) :]


def _status(error: _Error) -> int:
    if isinstance(error.code, int):
        return error.code if 400 <= error.code < 600 else 500
    return _STATUS.get(error.code or "") or _STATUS.get(error.type or "") or 500
