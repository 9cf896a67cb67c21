"""The server's HTTP front in memory: client bytes in, exchanges and answers out, held against a parser of our own.

No socket: the real protocol class on a transport that keeps what is written. The parser here follows RFC 9112 to the
letter. What it refuses must not be served; what it reads must be exactly what the pipeline would get.
"""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import dataclass, field
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from switchyard.api.auth import Keys
from switchyard.api.door import Door
from switchyard.api.exchange import Exchange
from switchyard.api.protocol import GatewayProtocol
from switchyard.errors import Unreachable
from switchyard.upstream.headers import to_engine

from .wire import Message, read_answers, read_requests

MAX_BODY = 4096
KEY = "sk-fuzz"
TICKS = 30


class _Transport(asyncio.Transport):
    """Keeps what is written; closing is told to the protocol in the next round of the loop, as real ones do."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self.protocol: GatewayProtocol
        self.written = bytearray()
        self.closing = False
        self.aborted = False
        self.lost = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 5), "sockname": ("127.0.0.1", 4000)}.get(name, default)

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: Any) -> None:
        if not self.closing:
            self.written += data

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            self._loop.call_soon(self.lose)

    def abort(self) -> None:
        self.aborted = True
        self.close()

    def lose(self) -> None:
        """The connection is gone."""
        if not self.lost:
            self.closing = self.lost = True
            self.protocol.connection_lost(None)

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


@dataclass
class _Seen:
    """What has reached the two applications behind the front.

    Attributes:
        served: requests that the pipeline got, as method, target, headers and body.
        heads: for each answer of the control plane, whether it has no body.
        running: requests at work.
    """

    served: list[tuple[bytes, bytes, list[tuple[bytes, bytes]], bytes]] = field(default_factory=list)
    controlled: list[tuple[str, bytes]] = field(default_factory=list)
    running: int = 0


class _Noticed(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(logging.Formatter().format(record))


class Front:
    """Doors and protocols over a loop of their own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._config = Config(
            self._control,
            http=GatewayProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
        )
        self._config.load()

    def feed(self, pieces: list[bytes], *, keyed: bool, mood: int, leaves: bool) -> None:
        """One connection: these pieces, then silence or the client's end; checks all that came of it."""
        noticed = _Noticed()
        logging.getLogger().addHandler(noticed)
        try:
            self.loop.run_until_complete(self._feed(pieces, keyed, mood, leaves))
        finally:
            logging.getLogger().removeHandler(noticed)
        assert not noticed.lines, noticed.lines[0]

    async def _feed(self, pieces: list[bytes], keyed: bool, mood: int, leaves: bool) -> None:
        seen = self._seen = _Seen()
        self._mood = mood
        door = Door(Keys([KEY] if keyed else [], None), MAX_BODY, 10, self._serve, self._serve_stored, lambda error: None)
        state = ServerState()
        protocol = GatewayProtocol(self._config, state, {"door": door}, self.loop)
        transport = _Transport(self.loop)
        transport.protocol = protocol
        protocol.connection_made(transport)
        for piece in pieces:
            if transport.closing:
                break
            protocol.data_received(piece)
            for _ in range((0, 2, TICKS)[mood % 3]):
                await asyncio.sleep(0)
        for _ in range(TICKS if not leaves else 0):
            await asyncio.sleep(0)
        silent_s = self.loop.time() + 1000
        if not transport.closing:
            busy = seen.running or state.tasks
            door.sweep(silent_s)
            if protocol.timeout_keep_alive_task is not None:  # uvicorn's own, after an answer of the control plane
                protocol.timeout_keep_alive_handler()
            if not busy:
                assert transport.closing, "a silent client keeps its connection for ever"
        transport.lose()
        for _ in range(TICKS):
            await asyncio.sleep(0)
        assert not seen.running, "a request goes on without its client"
        assert not state.tasks, "a task is left"
        assert not door.connections
        protocol._unset_keepalive_if_required()
        _check(b"".join(pieces), bytes(transport.written), seen, keyed)

    async def _serve_stored(self, exchange: Exchange, id_: str) -> None:
        assert re.fullmatch("[A-Za-z0-9_.-]{1,200}", id_)
        await self._serve(exchange)

    async def _serve(self, exchange: Exchange) -> None:
        seen = self._seen
        seen.served.append((exchange.method, exchange.target, list(exchange.headers), exchange.body))
        seen.running += 1
        try:
            assert exchange._protocol.timeout_keep_alive_task is None, "a timer of the last request will cut this one"
            await self._answer(exchange)
        finally:
            seen.running -= 1

    async def _answer(self, exchange: Exchange) -> None:
        mood = (self._mood + len(self._seen.served)) % 6
        if mood % 2:
            await asyncio.sleep(0)
        if mood == 0:
            exchange.refuse(Unreachable("the engine is away"), [])
        elif mood == 1:
            exchange.pass_error(418, [(b"content-type", b"text/html")], b"<b>no</b>")
        elif mood in {2, 3}:
            exchange.start(200, [(b"content-type", b"application/json")], 4)
            exchange.write(b"go")
            await asyncio.sleep(0)
            exchange.write(b"od")
            exchange.finish()
        else:
            exchange.start(200, [(b"content-type", b"text/event-stream")], None)
            exchange.write(b"data: 1\n\n")
            await asyncio.sleep(0)
            if mood == 4:
                exchange.finish()
            else:
                exchange.break_off(Unreachable("the engine is away"), True, b"")

    async def _control(self, scope: Any, receive: Any, send: Any) -> None:
        """The control plane's place: reads the body and says how long it was."""
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        self._seen.controlled.append((scope["method"], body))
        head_only = b"1" if scope["method"] == "HEAD" else b"0"
        headers = [(b"content-length", b"2"), (b"x-head-only", head_only)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})


def _check(sent: bytes, written: bytes, seen: _Seen, keyed: bool) -> None:
    """Requests as the strict parser reads them, answers that any client can read."""
    asked, problem = read_requests(sent)
    data_plane = [m for m in asked if m.for_data_plane]
    assert len(seen.served) <= len(data_plane), (
        f"served {seen.served[len(data_plane)]!r}, which a strict parser does not see: {problem}"
    )
    wanted = iter(data_plane)
    for method, target, headers, body in seen.served:
        # Refused on their head (key, method, length), some are never served; the others come in order.
        message = next((m for m in wanted if (m.method, m.target, m.body) == (method, target, body)), None)
        assert message is not None, (method, target, body, data_plane)
        headers = [(name, value.rstrip(b" \t")) for name, value in headers]
        assert headers == message.headers, (headers, message.headers)
        assert not keyed or any(KEY.encode() in value for _, value in message.headers), "served without a key"
        assert len(body) <= MAX_BODY
        _check_forwarded(message)
    answers = read_answers(written)
    assert len(answers) <= len(asked) + 1, "more answers than requests"
    for answer in answers[:-1]:
        assert answer.complete, "an answer in the middle is cut"
        assert answer.headers.get(b"connection") != b"close", "something follows an answer that closes"


def _check_forwarded(message: Message) -> None:
    """What goes on to an engine is one request with the same body."""
    body = message.body
    raw = to_engine(message.method, message.target, message.headers, host=b"engine:80", length=len(body), key=None) + body
    again, problem = read_requests(raw)
    assert not problem, (problem, raw)
    assert len(again) == 1, again
    assert (again[0].method, again[0].target, again[0].body) == (message.method, message.target, body)


_front: Front | None = None


def front(data: bytes) -> None:
    """Any bytes of a client: nothing fails, nothing but proper requests is served, nothing is left behind."""
    global _front
    if _front is None:
        _front = Front()
    flags = data[0] if data else 0
    sizes = data[1:4]
    stream = data[4:]
    pieces, at = [], 0
    for size in sizes:
        pieces.append(stream[at : at + size])
        at += size
    pieces.append(stream[at:])
    _front.feed([p for p in pieces if p], keyed=bool(flags & 1), mood=flags >> 2, leaves=bool(flags & 2))


def close_front() -> None:
    """No more inputs come."""
    global _front
    if _front is not None:
        _front.loop.close()
        _front = None
