"""What must hold for any bytes: one function for each part of the gateway that reads bytes of others.

A target takes bytes, uses the first few of them to choose (cuts, protocol, flags), and fails by raising. Hypothesis
(test_*.py) and atheris (atheris_driver.py) call the same functions; what once failed is kept in kept.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import httptools
import msgspec

from switchyard.api.envelope import engine_error_body, error_body, stream_error
from switchyard.config.vocabulary import SIGNALS
from switchyard.errors import LEAVES, BrokenStream, GatewayError, InvalidRequest
from switchyard.routing.classify.embedded import EmbeddedClassifier
from switchyard.routing.classify.model import read_probability
from switchyard.routing.classify.scorer import Scorer, read_weights
from switchyard.routing.request import Body, RequestView
from switchyard.routing.session import identify
from switchyard.routing.signals import Signals
from switchyard.telemetry.record import Record
from switchyard.upstream.connection import Connection, StaleConnection
from switchyard.upstream.headers import to_client, to_engine
from switchyard.upstream.relay import HideUsage, Relay, is_usage_only
from switchyard.upstream.sse import AnswerReader, EventSplitter, event_data

from .front import front

PROTOCOLS = ("chat", "completions", "messages", "responses", "embeddings", "rerank", "score", "tokenize")
LOOP = asyncio.new_event_loop()
_EMBEDDED = EmbeddedClassifier(Scorer(read_weights()))
"""For what wants futures and a clock; it runs only where a target says so."""


class Choices:
    """Takes small numbers from the front of the bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def below(self, limit: int) -> int:
        if self._at >= len(self._data):
            return 0
        self._at += 1
        return self._data[self._at - 1] % limit

    def cuts(self) -> list[int]:
        """Sizes of four pieces; what is left is a fifth."""
        return [self.below(256) for _ in range(4)]

    def rest(self) -> bytes:
        return self._data[self._at :]


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    """The data in pieces of these sizes (empty ones left out); no sizes: byte by byte."""
    if not sizes:
        return [data[i : i + 1] for i in range(len(data))]
    pieces, at = [], 0
    for size in sizes:
        pieces.append(data[at : at + size])
        at += size
    return [p for p in (*pieces, data[at:]) if p]


# ---- event streams ----


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


# ---- an engine's bytes ----


class Transport(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.closing = False
        self.written: list[bytes] = []

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.written.append(b"".join(list_of_data))

    def abort(self) -> None:
        self.closing = True

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class _Owner:
    def __init__(self) -> None:
        self.given_back = 0
        self.forgotten = 0

    def give_back(self, connection: Connection) -> None:
        self.given_back += 1

    def forget(self, connection: Connection) -> None:
        self.forgotten += 1


class _Sink:
    def __init__(self) -> None:
        self.body = bytearray()
        self.ended = ""

    def feed(self, data: bytes) -> None:
        assert not self.ended
        self.body += data

    def end(self) -> None:
        assert not self.ended
        self.ended = "complete"

    def fail(self, error: GatewayError) -> None:
        assert not self.ended
        self.ended = error.code


NEXT_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 4\r\n\r\nnext"


def engine(data: bytes) -> None:
    """Whatever an engine sends: the answer ends in one way, the same however it is cut; no next request pays for it."""
    choices = Choices(data)
    served, sizes = choices.below(2), choices.cuts()
    answer = choices.rest()[:20_000]
    whole = _ask_engine([answer], served)
    for pieces in (cut(answer, sizes), cut(answer, [])):
        again = _ask_engine(pieces, served)
        # An answer that isn't HTTP is refused, whichever piece shows it; how far it got before may differ.
        if "complete" in {whole[0], again[0]}:
            assert again == whole, (again, whole)


def _ask_engine(pieces: list[bytes], served: int) -> tuple[str, int, bytes]:
    """How it ended, status and body."""
    owner = _Owner()
    connection = Connection(owner, "engine", LOOP)
    transport = Transport()
    connection.connection_made(transport)
    connection.served = served
    response = connection.send(b"GET / HTTP/1.1\r\n\r\n")
    sink: _Sink | None = None
    for piece in pieces:
        if transport.closing:
            break
        connection.data_received(piece)
        if sink is None and response.status:
            sink = _Sink()
            response.pipe(sink)
    kept = owner.given_back == 1 and connection.usable
    if kept:
        _ask_again(connection)
    connection.connection_lost(None)
    assert owner.forgotten == 1
    assert owner.given_back <= 1 + kept
    if not response.status:
        assert response._head.done(), "nobody told the one who waits for a head"
        error = response._head.exception()
        assert isinstance(error, GatewayError | StaleConnection), error
        assert not isinstance(error, StaleConnection) or (served and not b"".join(pieces)), "stale, yet it had answered"
        return type(error).__name__, 0, b""
    assert response._head.exception() is None
    assert sink is not None
    assert sink.ended, "the answer neither ended nor failed"
    assert 200 <= response.status <= 999
    for name, value in response.headers:
        assert_sane(name, value)
    return sink.ended, response.status, bytes(sink.body)


def _ask_again(connection: Connection) -> None:
    """A connection that is given back answers the next request with the next answer."""
    response = connection.send(b"GET / HTTP/1.1\r\n\r\n")
    connection.data_received(NEXT_ANSWER)
    sink = _Sink()
    response.pipe(sink)
    assert (response.status, bytes(sink.body), sink.ended) == (200, b"next", "complete"), (
        "what one answer left got into the next"
    )


# ---- headers ----

TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
HOP_BY_HOP = {
    b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade",
    b"proxy-authenticate",
}  # fmt: skip
CREDENTIALS = {b"authorization", b"proxy-authorization", b"x-api-key", b"api-key", b"x-goog-api-key", b"cookie"}


def assert_sane(name: bytes, value: bytes) -> None:
    """Nothing that could end a line is in a header that the parser let through."""
    assert TOKEN.fullmatch(name), name
    assert not re.search(rb"[\r\n\0]", value), (name, value)


class _Head:
    """Headers as a parser gives them, in lower case."""

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.complete:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.complete = True


def headers(data: bytes) -> None:
    """No header of a client or an engine ends a line, names a hop, or carries a credential to the other side."""
    choices = Choices(data)
    key = "sk-pool" if choices.below(2) else None
    lines = choices.rest()[:8000]
    asked = _parse_head(httptools.HttpRequestParser, b"POST /v1/chat/completions?x=1 HTTP/1.1\r\n", lines)
    if asked is not None:
        _check_to_engine(asked, key)
    answered = _parse_head(httptools.HttpResponseParser, b"HTTP/1.1 200 OK\r\n", lines)
    if answered is not None:
        named = _named_by_connection(answered)
        for name, value in to_client(answered):
            assert_sane(name, value)
            assert name not in HOP_BY_HOP | named | {b"content-length"}, name


def _parse_head(parser: type, first: bytes, lines: bytes) -> list[tuple[bytes, bytes]] | None:
    head = _Head()
    with contextlib.suppress(httptools.HttpParserError, httptools.HttpParserUpgrade):
        parser(head).feed_data(first + lines + b"\r\n\r\n")
    return head.headers if head.complete else None


def _named_by_connection(found: list[tuple[bytes, bytes]]) -> set[bytes]:
    named = {part.strip().lower() for name, value in found if name == b"connection" for part in value.split(b",")}
    return named - {b"close", b"keep-alive", b""}


def _check_to_engine(asked: list[tuple[bytes, bytes]], key: str | None) -> None:
    for name, value in asked:
        assert_sane(name, value)
    raw = to_engine(
        b"POST", b"/v1/chat/completions?x=1", asked, host=b"engine:80", length=12, key=key, extra=(b"x-request-id: r-1",)
    )
    assert raw.endswith(b"\r\n\r\n")
    first, *rest = raw[:-4].split(b"\r\n")
    assert first == b"POST /v1/chat/completions?x=1 HTTP/1.1"
    sent: list[tuple[bytes, bytes]] = []
    for line in rest:
        assert b"\r" not in line
        assert b"\n" not in line
        name, colon, value = line.partition(b": ")
        assert colon, line
        assert_sane(name, value)
        sent.append((name, value))
    own = {b"host": b"engine:80", b"content-length": b"12", b"x-request-id": b"r-1"}
    if key is not None:
        own[b"authorization"] = b"Bearer sk-pool"
    for name, value in own.items():
        assert [v for n, v in sent if n == name] == [value], name
    passed = [pair for pair in sent if pair[0] not in own]
    named = _named_by_connection(asked)
    for name, _ in passed:
        assert name not in HOP_BY_HOP | CREDENTIALS | named | {b"expect"}, name
    kept = [pair for pair in asked if pair in passed]
    assert passed == kept, "a header was changed, or its order"


# ---- bodies ----

SIGNAL_NAMES = tuple(SIGNALS)


def body(data: bytes) -> None:
    """Any bytes are refused, or read without trouble and patched exactly."""
    choices = Choices(data)
    protocol = PROTOCOLS[choices.below(len(PROTOCOLS))]
    flags = choices.below(8)
    raw = choices.rest()
    carried: dict[str, str] = {}
    if flags & 1:  # the first line is the value of a header that tells the session
        line, _, raw = raw.partition(b"\n")
        name = ("x-codex-turn-metadata", "x-session-id", "user-agent", "x-claude-code-agent-id")[flags >> 1]
        carried[name] = line.decode("latin-1")
    text = raw.decode("utf-8", "surrogateescape")
    value, problem = _oracle(text)
    valid_utf8 = not re.search("[\udc80-\udcff]", text)
    try:
        found = Body(raw)
    except InvalidRequest:
        deep = raw.count(b"[") + raw.count(b"{") > 300  # where the limit of depth lies is the decoder's business
        assert problem or deep or not valid_utf8, f"refused, though it is a JSON object with unique keys: {raw!r}"
        return
    assert not problem, f"taken, though {problem}: {raw!r}"
    if value is not None:
        _check_patches(found, raw, value)
    _read_all(RequestView(protocol, found, carried, "", "127.0.0.1", protocol == "messages" and bool(flags & 4)))


class _Number(str):
    """A number as it is written."""

    __slots__ = ()


class _Pairs(list[Any]):
    """An object with its pairs in order, repeated keys included."""


def _oracle(text: str) -> tuple[dict[str, Any] | None, str]:
    """The object that the text stands for, by Python's own reader, and what is wrong with it; neither when it is too deep."""

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is no JSON")

    try:
        value = json.loads(text, parse_float=_Number, parse_int=_Number, parse_constant=refuse, object_pairs_hook=_Pairs)
    except RecursionError:
        return None, ""
    except ValueError as error:
        return None, f"it is no JSON: {error}"
    if not isinstance(value, _Pairs):
        return None, "it is no object"
    names = [_as_read(name) for name, _ in value]
    if len(set(names)) < len(names):
        return None, "a key is there twice"
    return dict(value), ""


def _as_read(name: str) -> str:
    """A name as the gateway sees it: halves of surrogate pairs that were escaped are all one."""
    return re.sub("[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]", "\ufffd", name)


CHANGES: tuple[dict[str, bytes], ...] = (
    {},
    {"model": b'"acme/small"'},
    {"model": b'"acme/small"', "max_tokens": b"16"},
    {"stream_options": b'{"include_usage":true}', "model": b'"m"'},
)


def _check_patches(found: Body, raw: bytes, value: dict[str, Any]) -> None:
    for changes in CHANGES:
        patched = found.patched(changes)
        new, problem = _oracle(patched.decode("utf-8", "surrogateescape"))
        assert not problem, problem
        if new is None:  # too deep for Python's reader from here
            continue
        wanted = dict(value)
        wanted.update({name: _oracle_value(text) for name, text in changes.items()})
        assert list(new.items()) == list(wanted.items()), (changes, patched)
        if len(changes) <= 1:  # one place changed: what is before and after it is as it was
            allowed = len(changes.get("model", b"")) + (len(b',"model":') if "model" not in value else 0)
            before = _common(raw, patched)
            after = _common(raw[::-1][: len(raw) - before], patched[::-1][: len(patched) - before])
            assert before + after >= len(patched) - allowed, (raw, patched)
    assert found.patched({}) == raw


def _oracle_value(text: bytes) -> Any:
    pairs, _ = _oracle('{"x":' + text.decode() + "}")
    assert pairs is not None
    return pairs["x"]


def _common(one: bytes, other: bytes) -> int:
    limit = min(len(one), len(other))
    if one[:limit] == other[:limit]:
        return limit
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _read_all(view: RequestView) -> None:
    """All that routing reads, each fact on its own: one that is refused keeps none of the others from being read."""
    signals = Signals(view)
    session_key = ""
    for read in _readings(view, signals):
        try:
            read()
        except GatewayError:
            continue
    try:
        session_key = identify(signals).key
        assert re.fullmatch("[0-9a-f]{16}", session_key)
        assert identify(Signals(view)).key == session_key
    except GatewayError:
        pass
    known = signals.known()
    for name, value in known.items():
        kind = {"bool": bool, "int": int, "float": float, "text": str}[SIGNALS[name].kind]
        assert type(value) is kind, (name, value)
    record = Record("req-1", "/v1/x", view.protocol, 1.0, signals=known, session=session_key)
    line = msgspec.json.encode(record.as_line())
    assert b"\n" not in line
    json.loads(line)


def _readings(view: RequestView, signals: Signals) -> Iterator[Callable[[], Any]]:
    yield lambda: view.items
    yield lambda: view.tool_names
    for name in ("model", "previous_response_id", "stream_options", "metadata"):
        yield lambda name=name: view.body.value(name)
    for name in SIGNAL_NAMES:
        yield lambda name=name: signals.get(name)
    yield lambda: signals.opening
    yield lambda: signals.last_human_text.encode()
    yield lambda: signals.system_text.encode()
    yield lambda: _run(_EMBEDDED.score(signals))


def _run(coroutine: Any) -> Any:
    """A coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    finally:
        coroutine.close()
    raise AssertionError("it waits for something")


# ---- errors ----


def envelope(data: bytes) -> None:
    """Any engine's error gets the endpoint's shape; an error in a stream is one event that clients can read."""
    choices = Choices(data)
    protocol = PROTOCOLS[choices.below(len(PROTOCOLS))]
    status = (400, 401, 404, 413, 422, 429, 500, 503, 599)[choices.below(9)]
    kind = ("application/json", "text/html", "", "text/plain; charset=x")[choices.below(4)]
    between, leaf = bool(choices.below(2)), LEAVES[choices.below(len(LEAVES))]
    raw = choices.rest()[:20_000]
    wrapped = engine_error_body(protocol, status, kind, raw)
    _check_shape(protocol, json.loads(raw if wrapped is None else wrapped), own=wrapped is not None)
    error = leaf(raw[:300].decode("utf-8", "replace"))
    _check_shape(protocol, json.loads(error_body(protocol, error)), own=True)
    read_probability(raw)
    _check_event(protocol, stream_error(protocol, error, between, raw), between)


def _check_shape(protocol: str, shaped: Any, own: bool) -> None:
    assert isinstance(shaped, dict)
    found = shaped["error"]
    if own:
        assert isinstance(found["message"], str)
    assert isinstance(found["type"], str)
    if protocol == "messages":
        assert shaped["type"] == "error"
    elif own:
        assert set(found) == {"message", "type", "param", "code"}


def _check_event(protocol: str, event: bytes, between: bool) -> None:
    splitter = EventSplitter()
    events = [e for e in splitter.feed(event) if e.strip()]
    assert not splitter.rest()
    assert len(events) == 1
    assert event.startswith(b"\n\n") != between
    value = json.loads(event_data(events[0]))
    if protocol == "responses":
        assert value["type"] == "response.failed"
        assert value["response"]["status"] == "failed"
        assert value["sequence_number"] >= 0
    else:
        _check_shape(protocol, value, own=True)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "sse": sse, "engine": engine, "headers": headers, "body": body, "envelope": envelope, "front": front,
}  # fmt: skip
