"""Event streams: they are split, read and relayed the same, however they are cut."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from switchyard.api.envelope import stream_error
from switchyard.errors import BrokenStream, GatewayError
from switchyard.upstream.relay import HideUsage, Relay, is_usage_only
from switchyard.upstream.sse import AnswerReader, EventSplitter, event_data

from .choices import LOOP, PROTOCOLS, Choices, cut


def sse(data: bytes) -> None:
    """Events are the stream's bytes, however it is cut; reading them never fails."""
    choices = Choices(data)
    protocol = PROTOCOLS[choices.below(4)]
    sizes = choices.cuts()
    stream = choices.rest()[:20_000]
    events, rest, ends = _reference_events(stream)
    for pieces in ([stream], cut(stream, sizes), cut(stream, [])):
        splitter = EventSplitter()
        found = [e for piece in pieces for e in splitter.feed(piece)]
        left = splitter.rest()
        assert b"".join(found) + left == stream, "events are not the stream"
        if left in {b"\r", b"\n"} or (left and stream.endswith(b"\r")):  # a last CR waits for its LF
            assert b"".join(found) + left == b"".join(events) + rest
        else:
            assert (found, left) == (events, rest), (found, left, events, rest)
    for event in events:
        is_usage_only(event)
        event_data(event)
    whole = _read_answer(protocol, [stream])
    for pieces in (cut(stream, sizes), cut(stream, [])):
        again = _read_answer(protocol, pieces)
        assert again.tail == whole.tail
        assert again.received_bytes == len(stream)
        assert (again.usage(), again.response_id()) == (whole.usage(), whole.response_id())
        if not re.search(rb"\s{16}", stream):  # the carry between pieces is short
            assert bool(again.first_token_s) == bool(whole.first_token_s)
    if whole.between_events:
        assert len(stream) in {0, *ends}, "a half event was taken for a whole one"
    _relay(stream, sizes, events, rest)


def _reference_events(stream: bytes) -> tuple[list[bytes], bytes, set[int]]:
    """The specification, word by word: events, what is left, and where events end."""
    events, begin, line_start, at = [], 0, 0, 0
    ends: set[int] = set()
    while at < len(stream):
        if stream[at] not in b"\r\n":
            at += 1
            continue
        line_end = at
        at += 2 if stream[at : at + 2] == b"\r\n" else 1
        if line_end == line_start:
            ends.add(at)
            if stream[line_end:at] == b"\r" and at == len(stream):
                break  # it may be half of a CRLF
            events.append(stream[begin:at])
            begin = at
        line_start = at
    return events, stream[begin:], ends


def _read_answer(protocol: str, pieces: list[bytes]) -> AnswerReader:
    reader = AnswerReader(protocol, True)
    for piece in pieces:
        reader.see(piece)
    return reader


class _Client:
    """A client that keeps what it gets."""

    def __init__(self) -> None:
        self.got = bytearray()
        self.ended = ""

    def start(self, status: int, headers: Any, length: int | None) -> None: ...

    def write(self, data: bytes) -> None:
        assert data
        assert not self.ended
        self.got += data

    def finish(self) -> None:
        assert not self.ended
        self.ended = "complete"

    def break_off(self, error: GatewayError, between_events: bool, tail: bytes) -> None:
        assert not self.ended
        self.ended = "broken"
        self.got += stream_error("chat", error, between_events, tail)

    def on_pressure(self, pause: Callable[[], None], resume: Callable[[], None]) -> None: ...


def _relay(stream: bytes, sizes: list[int], events: list[bytes], rest: bytes) -> None:
    """Hiding usage takes out usage events and nothing else; an end before the end is told as one more event."""
    ended = LOOP.run_until_complete(_relayed(stream, sizes, broken=False))
    assert ended.ended == "complete"
    wanted = b"".join(e for e in events if not _is_usage(e)) + rest
    if not stream.endswith(b"\r"):
        assert ended.got == wanted, (bytes(ended.got), wanted)
    broken = LOOP.run_until_complete(_relayed(stream, sizes, broken=True))
    assert broken.ended == "broken"
    assert bytes(broken.got).rstrip().endswith(b"}}")


async def _relayed(stream: bytes, sizes: list[int], broken: bool) -> _Client:
    client = _Client()
    relay = Relay(client, AnswerReader("chat", True), [HideUsage()])
    for piece in cut(stream, sizes):
        relay.feed(piece)
    if broken:
        relay.fail(BrokenStream("gone"))
    else:
        relay.end()
    return client


def _is_usage(event: bytes) -> bool:
    """The same question as `is_usage_only`, by Python's own reader."""
    try:
        value = json.loads(event_data(event).decode(errors="replace"))
    except (ValueError, RecursionError):
        return False
    if not isinstance(value, dict) or value.get("usage") is None:
        return False
    return "choices" not in value or value["choices"] in (None, [])
