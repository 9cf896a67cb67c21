"""Cutting a byte stream into events: nothing is lost, and where the network cut the bytes does not matter."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.upstream.relay import is_usage_only
from switchyard.upstream.sse import EventSplitter, event_data

from . import streams as s

PIECES = st.sampled_from(
    [b"data: {}", b"data:x", b"event: a", b": c", b"id", b"\n", b"\r", b"\r\n", b"\n\n", b"\r\r", b"\xff", b"\xe2", b""]
)
STREAMS = st.lists(PIECES, max_size=20).map(b"".join) | st.binary(max_size=60)


def cut(data: bytes, at: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(n % (len(data) + 1) for n in at)})
    return [data[a:b] for a, b in pairwise(places)]


def split(pieces: list[bytes]) -> tuple[list[bytes], bytes]:
    splitter = EventSplitter()
    events = [event for piece in pieces for event in splitter.feed(piece)]
    return events, splitter.rest()


def by_hand(data: bytes) -> tuple[list[bytes], bytes]:
    """The specification, on the whole stream: an event ends with an empty line; a CR at the very end may be half a CRLF."""
    events, begin, line_start = [], 0, 0
    for end in re.finditer(rb"\r\n|\r|\n", data):
        if end[0] == b"\r" and end.end() == len(data):
            break
        if end.start() == line_start:
            events.append(data[begin : end.end()])
            begin = end.end()
        line_start = end.end()
    return events, data[begin:]


@given(STREAMS, st.lists(st.integers(0, 1000), max_size=8))
def test_cuts_do_not_matter_and_nothing_is_lost(data, at):
    events, rest = split(cut(data, at))
    assert (events, rest) == by_hand(data)
    assert b"".join(events) + rest == data


@given(STREAMS)
def test_byte_by_byte_is_the_same(data):
    assert split([data[i : i + 1] for i in range(len(data))]) == by_hand(data)


@pytest.mark.parametrize(
    ("data", "events", "rest"),
    [
        (b"data: a\n\ndata: b\n\n", [b"data: a\n\n", b"data: b\n\n"], b""),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"data: a\r\n\r\n", b"data: b\r\n\r\n"], b""),
        (b"data: a\r\rdata: b\r\r\n", [b"data: a\r\r", b"data: b\r\r\n"], b""),
        (b"data: a\n\r\nx", [b"data: a\n\r\n"], b"x"),
        (b"data: a\r\r", [], b"data: a\r\r"),  # the last CR may be half a CRLF
        (b"data: a\n", [], b"data: a\n"),
        (b"\n\n", [b"\n", b"\n"], b""),
        ("data: \u2028\x85\x0b\x0c\n\n".encode(), ["data: \u2028\x85\x0b\x0c\n\n".encode()], b""),  # no line ends here
        (b"data: \xe2\x80\n\n", [b"data: \xe2\x80\n\n"], b""),
        (b"", [], b""),
    ],
)
def test_line_ends(data, events, rest):
    assert split([data]) == (events, rest)


def test_a_splitter_can_be_used_again_after_the_rest():
    splitter = EventSplitter()
    assert splitter.feed(b"data: half") == []
    assert splitter.rest() == b"data: half"
    assert splitter.feed(b"data: a\n\n") == [b"data: a\n\n"]
    assert splitter.rest() == b""


@pytest.mark.parametrize(
    ("event", "data"),
    [
        (b"data: a\n\n", b"a"),
        (b"data:a\n\n", b"a"),
        (b"data:  a\n\n", b" a"),
        (b"data: a\ndata: b\n\n", b"a\nb"),
        (b"data: a\r\ndata: b\r\n\r\n", b"a\nb"),
        (b"event: x\nid: 3\ndata: a\n\n", b"a"),
        (b": comment\n\n", b""),
        (b"data\n\n", b""),
        (b"data:\ndata:\n\n", b"\n"),
        (b"\xef\xbb\xbfdata: a\n\n", b"a"),
        (b"database: a\n\n", b""),
        (b"", b""),
    ],
)
def test_the_data_of_an_event(event, data):
    assert event_data(event) == data


@given(STREAMS)
def test_the_data_of_any_bytes(data):
    assert isinstance(event_data(data), bytes)


USAGE = b'{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}'


@pytest.mark.parametrize(
    ("event", "only"),
    [
        (s.usage(USAGE), True),
        (s.usage(USAGE, choices=b'"choices":null,'), True),
        (s.usage(USAGE, choices=b""), True),
        (s.usage(USAGE).replace(b"data: ", b"data:").replace(b"\n\n", b"\r\n\r\n"), True),
        (s.usage(b"null"), False),
        (s.chat(b'"content":"x"', b',"usage":' + USAGE), False),  # usage on every chunk: the client's text is in it
        (s.chat(b"", b',"usage":' + USAGE), False),
        (s.chat(b'"content":"x"', b',"usage":null'), False),
        (s.chat(rb'"content":"{\"usage\":{}}"'), False),
        (s.VLLM_ROLE, False),
        (s.DONE, False),
        (s.COMMENT, False),
        (b'data: {"usage":', False),
        (b'data: {"x":%b,"usage":{}}\n\n' % (b"[" * 50_000 + b"]" * 50_000), False),
        (b'data: {"usage":\xff}\n\n', False),
        (b'data: {"error":{"message":"usage"}}\n\n', False),
        (b"", False),
    ],
)
def test_the_event_that_carries_usage_alone(event, only):
    assert is_usage_only(event) is only
