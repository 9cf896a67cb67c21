"""An engine's bytes: whatever comes, its answer ends in one way, and no next request pays for it."""

from __future__ import annotations

import asyncio
from typing import Any

from switchyard.errors import GatewayError
from switchyard.upstream.connection import Connection, StaleConnection

from .choices import LOOP, Choices, cut
from .headers import assert_sane


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
