"""What an answer tells on its way through: first token, usage, id; and events cut out of a byte stream.

Lines end at CR, LF or CRLF and nowhere else, on bytes, before any decoding (the SSE specification).
"""

from __future__ import annotations

import re
import time

import msgspec

TAIL_BYTES = 16 * 1024  # usage stands at the end of an answer; Responses repeats the whole answer before it
_CARRY_BYTES = 64

_FIRST_TOKEN = {
    "chat": re.compile(rb'"(?:content|reasoning|reasoning_content|arguments|name|refusal)"\s*:\s*"[^"]'),
    "completions": re.compile(rb'"text"\s*:\s*"[^"]'),
    "messages": re.compile(rb'"(?:text|thinking|partial_json)"\s*:\s*"[^"]|"type"\s*:\s*"tool_use"'),
    "responses": re.compile(rb'"delta"\s*:\s*"[^"]|"type"\s*:\s*"function_call"'),
}
_LAST_EVENTS = (b"data: [DONE]", b"data:[DONE]", b"event: message_stop", b"event: response.completed")
_USAGE = re.compile(rb'"usage"\s*:\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')
_ID = re.compile(rb'"id"\s*:\s*"(resp_[^"\\]{1,200})"')


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None


_USAGE_DECODER = msgspec.json.Decoder(_Usage)


class Usage(msgspec.Struct, frozen=True):
    """Tokens as the engine counted them; None where it did not say."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None


class AnswerReader:
    """Looks at the pieces of an answer without changing or holding them.

    Args:
        protocol: endpoint family of the answer.
        stream: whether it is an event stream; only then there is a first token to wait for.

    Attributes:
        first_token_s: monotonic time at which the first reasoning, text or tool piece came; 0 before.
        received_bytes: bytes seen.
    """

    __slots__ = ("_carry", "_first", "_head", "_parts", "_size", "first_token_s", "received_bytes")

    def __init__(self, protocol: str, stream: bool) -> None:
        self._first = _FIRST_TOKEN.get(protocol) if stream else None
        self._carry = b""
        self._head = b""
        self._parts: list[bytes] = []
        self._size = 0
        self.first_token_s = 0.0
        self.received_bytes = 0

    def see(self, data: bytes) -> None:
        """A piece that just came."""
        self.received_bytes += len(data)
        if self._first is not None:
            self._look_for_token(data)
        self._parts.append(data)
        self._size += len(data)
        if self._size > 2 * TAIL_BYTES:
            tail = b"".join(self._parts)
            if not self._head:
                self._head = tail[:TAIL_BYTES]
            self._parts = [tail[-TAIL_BYTES:]]
            self._size = len(self._parts[0])

    def _look_for_token(self, data: bytes) -> None:
        assert self._first is not None
        text = self._carry + data
        if self._first.search(text):
            self.first_token_s = time.monotonic()
            self._first = None
            self._carry = b""
        else:
            self._carry = text[-_CARRY_BYTES:]

    @property
    def tail(self) -> bytes:
        """The last bytes seen."""
        return b"".join(self._parts)

    @property
    def between_events(self) -> bool:
        """Whether the stream stands at the end of an event (or has not begun)."""
        end = self.tail[-4:]
        return not end or end.endswith((b"\n\n", b"\r\r", b"\r\n\r\n"))

    @property
    def has_ended(self) -> bool:
        """Whether the stream's own last event has been seen, though the body may go on."""
        return any(mark in self.tail[-TAIL_BYTES:] for mark in _LAST_EVENTS)

    def usage(self) -> Usage:
        """The last usage report; the parts that Messages sends apart are put together."""
        tail = self.tail
        usage = Usage()
        for text in (self._head, tail) if self._head else (tail,):
            first = text.find(b'"usage"')  # much quicker than the expression
            for match in _USAGE.finditer(text, first) if first >= 0 else ():
                found = _read_usage(match[1])
                if found is not None:
                    usage = Usage(
                        usage.input_tokens if found.input_tokens is None else found.input_tokens,
                        usage.output_tokens if found.output_tokens is None else found.output_tokens,
                        usage.cached_tokens if found.cached_tokens is None else found.cached_tokens,
                    )
        return usage

    def response_id(self) -> str | None:
        """The id of a stored answer of the Responses endpoint."""
        found = _ID.search(self._head or self.tail)
        return found[1].decode("ascii", "replace") if found else None


def _read_usage(text: bytes) -> Usage | None:
    try:
        found = _USAGE_DECODER.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    details = found.prompt_tokens_details or found.input_tokens_details
    cached = found.cache_read_input_tokens if details is None else details.cached_tokens
    return Usage(
        found.input_tokens if found.prompt_tokens is None else found.prompt_tokens,
        found.output_tokens if found.completion_tokens is None else found.completion_tokens,
        cached,
    )


_LINE_END = re.compile(rb"\r\n|\r|\n")


class EventSplitter:
    """Cuts a byte stream into complete events, bytes unchanged; joined they are the stream.

    An event ends with an empty line. A CR at the very end waits for its LF.
    """

    def __init__(self) -> None:
        self._pending = bytearray()
        self._at = 0  # where looking goes on
        self._line_start = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The events that are complete with these bytes."""
        self._pending += data
        pending = self._pending
        events: list[bytes] = []
        begin = 0
        while (match := _LINE_END.search(pending, self._at)) is not None:
            if match[0] == b"\r" and match.end() == len(pending):
                break
            empty = match.start() == self._line_start
            self._at = self._line_start = match.end()
            if empty:
                events.append(bytes(pending[begin : match.end()]))
                begin = match.end()
        if match is None:
            self._at = len(pending)
        if begin:
            del pending[:begin]
            self._at -= begin
            self._line_start -= begin
        return events

    def rest(self) -> bytes:
        """What is left when the stream ends: an event without its empty line."""
        left = bytes(self._pending)
        self._pending.clear()
        self._at = self._line_start = 0
        return left


def event_data(event: bytes) -> bytes:
    """The data of an event: its data lines without the field name, joined by LF; empty for comments."""
    lines = _LINE_END.split(event.removeprefix(b"\xef\xbb\xbf"))
    data = [line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")]
    return b"\n".join(data)
