"""The client's side of HTTP: uvicorn's protocol, with a short way for the data plane.

A request for the data plane doesn't become an ASGI scope: its bytes are gathered here and handed to the pipeline, and
the answer goes straight to the client's transport. Everything else (admin, docs, lists) takes uvicorn's normal way to
the FastAPI app. All that touches uvicorn's inside stands in this module; its version is pinned.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import re
import secrets
import sys
import time
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import Server, ServerState

from switchyard.api.auth import Keys
from switchyard.api.endpoints import ENDPOINTS, STORED, allowed_methods
from switchyard.api.envelope import engine_error_body, error_body, stream_error
from switchyard.errors import (
    BodyTooLarge,
    Draining,
    GatewayError,
    HeadTooLarge,
    InvalidRequest,
    MethodNotAllowed,
    RequestTimeout,
    TooManyConnections,
    Unauthorized,
)
from switchyard.pipeline import Endpoint
from switchyard.upstream.connection import Headers

MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 200
UNENDED_SLACK_BYTES = 64 * 1024  # the end of the request before may have come in the same piece
HEAD_LIMIT_S = 20.0  # for a request's head to arrive
BODY_STALL_S = 25.0  # longest pause inside a request's body
KEEP_ALIVE_S = 75.0  # longer than the pools of common clients
WRITE_STALL_S = 300.0  # a client that takes nothing for so long is gone
SWEEP_S = 1.0

_SANE_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
log = logging.getLogger("switchyard.server")
_JSON = (b"content-type", b"application/json")

Run = Callable[["Exchange"], Coroutine[Any, Any, None]]


class Door:
    """What all client connections share.

    Args:
        keys: who may call.
        max_body_bytes: longest body.
        max_connections: most client connections at the same time.
        run: serves a request of the data plane.
        run_stored: serves a request for a stored response, by its id.
        count_refusal: told of every request that is refused before the pipeline sees it.
    """

    def __init__(
        self,
        keys: Keys,
        max_body_bytes: int,
        max_connections: int,
        run: Run,
        run_stored: Callable[[Exchange, str], Coroutine[Any, Any, None]],
        count_refusal: Callable[[GatewayError], None],
    ) -> None:
        self.keys = keys
        self.max_body_bytes = max_body_bytes
        self.max_connections = max_connections
        self.run = run
        self.run_stored = run_stored
        self.count_refusal = count_refusal
        self.draining = False
        self._complained_s = -math.inf
        self.connections: set[GatewayProtocol] = set()
        self._prefix = secrets.token_hex(5)
        self._numbers = itertools.count(1)

    def next_id(self) -> str:
        """A request id that no other gateway gives."""
        return f"req-{self._prefix}-{next(self._numbers):x}"

    def complain_of_crowd(self) -> None:
        """Log, once a minute at most, that connections are turned away."""
        now_s = time.monotonic()
        if now_s - self._complained_s > 60:
            self._complained_s = now_s
            log.warning("%d client connections: more are turned away (server.max_connections)", self.max_connections)

    def sweep(self, now_s: float) -> None:
        """Close connections that are past one of their limits. Called every `SWEEP_S`."""
        for connection in list(self.connections):
            connection.check_limits(now_s)


class GatewayProtocol(HttpToolsProtocol):
    """One client connection."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._door: Door = app_state["door"]
        self._exchange: Exchange | None = None
        self._ignoring = False  # what comes now is not read: the connection closes after the answer
        self._reading_head = False
        self._head_bytes = 0
        self._deadline_s = 0.0  # for the part of a request that is awaited; 0: none
        self._blocked_since_s = 0.0
        self._unended_bytes = 0
        self._unparsed_left = 0  # bytes of a body that come without the parser

    # ---- limits ----

    def check_limits(self, now_s: float) -> None:
        """Close when the client is too slow: with 408 where it is in the middle of a request."""
        if self._blocked_since_s and now_s - self._blocked_since_s > WRITE_STALL_S:
            self.transport.abort()
        elif self._deadline_s and now_s > self._deadline_s:
            if self._reading_head or self._busy():
                self._answer_and_close(RequestTimeout("the request did not arrive in time"))
            else:
                self.transport.close()

    # ---- asyncio ----

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Wait for a first request."""
        super().connection_made(transport)
        self._door.connections.add(self)
        self._deadline_s = self.loop.time() + HEAD_LIMIT_S
        if len(self._door.connections) > self._door.max_connections:
            self._door.complain_of_crowd()
            limit = self._door.max_connections
            self._answer_and_close(TooManyConnections(f"the gateway has {limit} connections already (server.max_connections)"))

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone: what runs for it stops."""
        self._door.connections.discard(self)
        if self._exchange is not None:
            self._exchange.leave()
            self._exchange = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        self._unset_keepalive_if_required()
        if self._ignoring:
            return
        if self._unparsed_left:
            self._take_unparsed(data)
            return
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._go_on_without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            if not self._ignoring:
                cause = error.__context__
                self._answer_and_close(cause if isinstance(cause, GatewayError) else _not_http(error))
        if self._reading_head and not self._ignoring:  # the parser keeps a header to itself until it ends
            self._unended_bytes += len(data)
            if self._unended_bytes > MAX_HEAD_BYTES + UNENDED_SLACK_BYTES:
                self._answer_and_close(_too_long_a_head())

    def _go_on_without_upgrade(self, rest: bytes) -> None:
        """An offer to switch protocols (Java's client makes one with every request) is not taken up.

        The parser stops at the head then: the body is read here, and the connection closes after the answer.
        """
        exchange = self._exchange
        if exchange is None:  # an upgrade that uvicorn has been asked for
            self._ignoring = True
            return
        exchange.keep_alive = False
        if self._unparsed_left and rest:
            self._take_unparsed(rest)

    def _take_unparsed(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            return
        self._deadline_s = self.loop.time() + BODY_STALL_S
        piece = data[: self._unparsed_left]
        self._unparsed_left -= len(piece)
        exchange.take(piece)
        if not self._unparsed_left:
            self._ignoring = True
            self._deadline_s = 0.0
            exchange.begin(self.server_state.tasks)

    def pause_writing(self) -> None:
        """The client reads slower than we write."""
        self._blocked_since_s = self.loop.time()
        super().pause_writing()
        if self._exchange is not None:
            self._exchange.pause()

    def resume_writing(self) -> None:
        """It has caught up."""
        self._blocked_since_s = 0.0
        super().resume_writing()
        if self._exchange is not None:
            self._exchange.resume()

    def shutdown(self) -> None:
        """The server is going down: close now, or after the running answer."""
        if self._exchange is not None:
            self._exchange.keep_alive = False
        else:
            super().shutdown()

    # ---- httptools ----

    def on_message_begin(self) -> None:
        """A request begins."""
        if self._busy():  # pipelined behind a running one: RFC 9112 9.3.2 lets us close instead
            self._ignoring = True
            if self._exchange is None:
                self.cycle.keep_alive = False
            return
        self._reading_head = True
        self._head_bytes = self._unended_bytes = 0
        self._deadline_s = self.loop.time() + HEAD_LIMIT_S
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    def _busy(self) -> bool:
        return self._exchange is not None or (self.cycle is not None and not self.cycle.response_complete)

    def on_url(self, url: bytes) -> None:
        """A piece of the target."""
        if not self._ignoring:
            self._count_head(len(url))
            self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header."""
        if self._ignoring:
            return
        self._count_head(len(name) + len(value))
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES or len(self.headers) >= MAX_HEADERS:
            raise _too_long_a_head()

    def on_headers_complete(self) -> None:
        """The head is complete: find out whose request this is."""
        if self._ignoring:
            return
        self._reading_head = False
        target = self.url
        path = target.partition(b"?")[0]
        endpoint = ENDPOINTS.get(path)
        stored = None if endpoint is not None else STORED.fullmatch(path)
        if endpoint is None and stored is None:
            self._deadline_s = self.loop.time() + BODY_STALL_S
            self._pass_to_app()
            return
        method = self.parser.get_method()
        keep_alive = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        exchange = Exchange(self, self._door, endpoint or Endpoint("/v1/responses/ID", "responses"), method, target, keep_alive)
        self._exchange = exchange
        self._deadline_s = self.loop.time() + BODY_STALL_S
        try:
            exchange.check_head(allowed_methods(endpoint))
            exchange.stored_id = stored[1].decode("ascii", "replace") if stored is not None else None
        except GatewayError as error:
            self._ignoring = True  # the body is not waited for
            exchange.keep_alive = False
            self._door.count_refusal(error)
            allow = [(b"allow", b", ".join(allowed_methods(endpoint)))] if isinstance(error, MethodNotAllowed) else []
            exchange.refuse(error, allow)
            return
        if self.expect_100_continue:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _pass_to_app(self) -> None:
        """Take uvicorn's own way, which wants its scope to be made first."""
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers.extend(headers)
        try:
            super().on_headers_complete()
        except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):
            raise InvalidRequest("the request's target can't be read") from None

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        if self._ignoring:
            return
        self._deadline_s = self.loop.time() + BODY_STALL_S
        if self._exchange is None:
            super().on_body(body)
            return
        try:
            self._exchange.take(body)
        except GatewayError as error:
            self._ignoring = True
            self._exchange.keep_alive = False
            self._door.count_refusal(error)
            self._exchange.refuse(error, [])

    def on_message_complete(self) -> None:
        """The request is complete."""
        if self._ignoring:
            return
        if self._exchange is not None and self.parser.should_upgrade():
            self._unparsed_left = self._exchange.announced_bytes
            if self._unparsed_left:
                return
        self._deadline_s = 0.0
        if self._exchange is None:
            super().on_message_complete()
        else:
            self._exchange.begin(self.server_state.tasks)

    # ---- answers ----

    def exchange_done(self, keep_alive: bool) -> None:
        """An answer is complete: the connection is free for the next request, or closes."""
        self._exchange = None
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if not keep_alive or self._ignoring:
            self.transport.close()
        else:
            self._deadline_s = self.loop.time() + KEEP_ALIVE_S

    def _answer_and_close(self, error: GatewayError) -> None:
        """Answer what can't be served as a request at all."""
        self._ignoring = True
        self._deadline_s = 0.0
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.leave()
            if exchange.answered:
                self.transport.close()
                return
        self._door.count_refusal(error)
        body = error_body("messages" if self.url.startswith(b"/v1/messages") else "chat", error)
        lines = (
            STATUS_LINE[error.status] + b"content-type: application/json",
            b"x-switchyard-error: " + error.code.encode("ascii"),
            b"x-request-id: " + self._door.next_id().encode("ascii"),
            b"content-length: %d" % len(body),
            b"connection: close\r\n\r\n",
        )
        self.transport.write(b"\r\n".join(lines) + body)
        self.transport.close()


def _too_long_a_head() -> HeadTooLarge:
    return HeadTooLarge(f"the request's head is longer than {MAX_HEAD_BYTES} bytes or {MAX_HEADERS} headers")


def _not_http(error: httptools.HttpParserError) -> InvalidRequest:
    return InvalidRequest(f"this is no valid HTTP request: {str(error)[:200]}")


class Exchange:
    """One request of the data plane and the way back to its client; see `pipeline.Exchange`."""

    def __init__(
        self, protocol: GatewayProtocol, door: Door, endpoint: Endpoint, method: bytes, target: bytes, keep_alive: bool
    ) -> None:
        self._protocol = protocol
        self._door = door
        self._transport = protocol.transport
        self.endpoint = endpoint
        self.method = method
        self.target = target
        self.headers: Headers = protocol.headers
        self.keep_alive = keep_alive
        self.stored_id: str | None = None
        self.key_name = ""
        self.client_left = False
        self.received_s = 0.0
        self.body = b""
        self._pieces: list[bytes] = []
        self._size = 0
        self._task: asyncio.Task[None] | None = None
        self._pending_head = b""
        self._answered = False
        self._complete = False
        self._chunked = False
        self._open_ended = False  # the body's length is not announced: an error event can still be put in
        self._stream = False
        self._pause: Callable[[], None] | None = None
        self._resume: Callable[[], None] | None = None
        self.request_id, self.client_request_id = self._choose_id()

    def _choose_id(self) -> tuple[str, str]:
        """Our own id, and the client's where it is short and plain: that one is echoed."""
        given = [value for name, value in self.headers if name == b"x-request-id"]
        sane = given[0].decode("ascii") if len(given) == 1 and _SANE_ID.fullmatch(given[0]) else ""
        return self._door.next_id(), sane

    @property
    def answered(self) -> bool:
        """Whether the head of an answer has been sent."""
        return self._answered

    @property
    def address(self) -> str:
        """The client's address, without its port."""
        client = self._protocol.client
        return client[0] if client else ""

    # ---- the request ----

    def check_head(self, methods: tuple[bytes, ...]) -> None:
        """Refuse what the head alone tells.

        Raises:
            Unauthorized, MethodNotAllowed, BodyTooLarge, Draining.
        """
        key_name = self._door.keys.name_of(self.headers)
        if key_name is None:
            raise Unauthorized("a valid key is needed: send Authorization: Bearer KEY, or x-api-key: KEY")
        self.key_name = key_name
        if self.method not in methods:
            raise MethodNotAllowed(f"{self.endpoint.path} takes {b', '.join(methods).decode()}")
        for name, value in self.headers:
            if name == b"content-length" and value.isdigit() and int(value) > self._door.max_body_bytes:
                raise self._too_large()
        if self._door.draining:
            raise Draining("the gateway is shutting down; ask another one", retry_after_s=5)

    @property
    def announced_bytes(self) -> int:
        """Content-Length of the request; 0 without one."""
        return next((int(v) for n, v in self.headers if n == b"content-length" and v.isdigit()), 0)

    def take(self, body: bytes) -> None:
        """A piece of the body."""
        self._size += len(body)
        if self._size > self._door.max_body_bytes:
            raise self._too_large()
        self._pieces.append(body)

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(f"the body is longer than {self._door.max_body_bytes >> 20} MiB (server.max_body_mb)")

    def begin(self, tasks: set[asyncio.Task[None]]) -> None:
        """The body is complete: serve the request."""
        pieces = self._pieces
        self.body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._pieces = []
        loop = self._protocol.loop
        self.received_s = time.monotonic()  # uvloop's own clock has whole milliseconds
        work = self._door.run(self) if self.stored_id is None else self._door.run_stored(self, self.stored_id)
        task = loop.create_task(work)
        self._task = task
        tasks.add(task)  # uvicorn's: what it waits for, and cancels, when it goes down
        task.add_done_callback(self._work_done)

    def _work_done(self, task: asyncio.Task[None]) -> None:
        """The pipeline never raises; if it does all the same, the client gets a 500 and the log the reason."""
        self._protocol.server_state.tasks.discard(task)
        # No cycles are left behind: what a request made is freed at once, and the collector finds nothing to do.
        self._task = self._pause = self._resume = None
        if task.cancelled() or task.exception() is None or self._complete or self.client_left:
            return
        self._protocol.logger.error("a request failed inside the gateway", exc_info=task.exception())
        if self._answered:
            self._transport.abort()
        else:
            self.refuse(GatewayError(f"the gateway failed on this request; its log names {self.request_id}"), [])

    def leave(self) -> None:
        """The client is gone."""
        self.client_left = True
        if self._task is not None and not self._complete:
            self._task.cancel("the client left")

    # ---- the answer ----

    def start(self, status: int, headers: Headers, length: int | None) -> None:
        """See `relay.Client`. The head goes out together with the first piece of the body."""
        self._answered = True
        lines = [STATUS_LINE.get(status) or b"HTTP/1.1 %d \r\n" % status]
        for name, value in self._protocol.server_state.default_headers:
            lines.append(name + b": " + value + b"\r\n")
        for name, value in headers:
            lines.append(name + b": " + value + b"\r\n")
            if name == b"content-type" and value.startswith(b"text/event-stream"):
                self._stream = True
        lines.append(b"x-request-id: " + (self.client_request_id or self.request_id).encode("ascii") + b"\r\n")
        self._open_ended = length is None
        if length is not None:
            lines.append(b"content-length: %d\r\n" % length)
        elif self._protocol.parser is not None and self._protocol.parser.get_http_version() == "1.0":
            self.keep_alive = False  # the end of the connection is the end of the body
        elif status not in {204, 304}:
            self._chunked = True
            lines.append(b"transfer-encoding: chunked\r\n")
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        self._pending_head = b"".join(lines)
        if length is None:  # a stream: the client sees its head at once
            self._protocol.loop.call_soon(self._flush_head)

    def _flush_head(self) -> None:
        if self._pending_head and not self.client_left:
            self._transport.write(self._pending_head)
            self._pending_head = b""

    def write(self, data: bytes) -> None:
        """See `relay.Client`."""
        if self.client_left:
            return
        framed = b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data
        if self._pending_head:
            framed = self._pending_head + framed
            self._pending_head = b""
        self._transport.write(framed)

    def finish(self) -> None:
        """See `relay.Client`."""
        if self._complete or self.client_left:
            return
        self._complete = True
        end = b"0\r\n\r\n" if self._chunked else b""
        if self._pending_head or end:
            self._transport.write(self._pending_head + end)
            self._pending_head = b""
        self._protocol.exchange_done(self.keep_alive)

    def break_off(self, error: GatewayError, between_events: bool, tail: bytes) -> None:
        """See `relay.Client`."""
        if self._complete or self.client_left:
            return
        if self._stream and self._open_ended:
            self.write(stream_error(self.endpoint.protocol, error, between_events, tail))
            self.keep_alive = False
            self.finish()
            return
        self._complete = True
        self._flush_head()
        self._transport.close()  # less than Content-Length, or no last chunk: the client sees that it is incomplete
        self._protocol.exchange_done(False)

    def on_pressure(self, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        """See `relay.Client`."""
        self._pause, self._resume = pause, resume
        if self._protocol.flow.write_paused:
            pause()

    def pause(self) -> None:
        """The client's transport is full."""
        if self._pause is not None:
            self._pause()

    def resume(self) -> None:
        """It has room again."""
        if self._resume is not None and not self._complete:
            self._resume()

    def refuse(self, error: GatewayError, headers: Headers) -> None:
        """See `pipeline.Exchange`."""
        own: Headers = [_JSON, (b"x-switchyard-error", error.code.encode("ascii")), *headers]
        own.append((b"x-should-retry", b"true" if error.retryable else b"false"))  # the official SDKs follow it
        if error.retry_after_s is not None:
            own.append((b"retry-after", b"%d" % error.retry_after_s))
        if isinstance(error, Unauthorized):
            own.append((b"www-authenticate", b"Bearer"))
        self._whole(error.status, own, error_body(self.endpoint.protocol, error))

    def pass_error(self, status: int, headers: Headers, body: bytes) -> None:
        """See `pipeline.Exchange`."""
        content_type = next((v for n, v in headers if n == b"content-type"), b"").decode("latin-1")
        wrapped = engine_error_body(self.endpoint.protocol, status, content_type, body)
        if wrapped is not None:
            headers = [_JSON, *(h for h in headers if h[0] not in {b"content-type", b"content-encoding"})]
            body = wrapped
        self._whole(status, headers, body)

    def _whole(self, status: int, headers: Headers, body: bytes) -> None:
        if self.client_left:
            return
        self.start(status, headers, len(body))
        self.write(body)
        self.finish()


def make_server(app: Any, door: Door, drain_delay_s: float, drain_s: float) -> Server:
    """The server around the control plane's ASGI app, with the data plane in front of it.

    Args:
        app: ASGI app whose lifespan state has the same door under `door`.
        door: shared by all connections.
        drain_delay_s: after a signal, time until the listener closes; /readyz is 503 already.
        drain_s: time that running requests have after that; then they end with an error.
    """
    config = Config(
        app, http=GatewayProtocol, loop="uvloop" if sys.platform != "win32" else "asyncio", ws="none", lifespan="on",
        log_config=None, access_log=False, server_header=False, proxy_headers=False, timeout_keep_alive=int(KEEP_ALIVE_S),
        timeout_graceful_shutdown=max(1, math.ceil(drain_s)),
    )  # fmt: skip
    return _DrainingServer(config, door, drain_delay_s)


class _DrainingServer(Server):
    """Ends in steps: not ready at once, no listener after the delay, then what runs may end. A second signal ends at once."""

    def __init__(self, config: Config, door: Door, drain_delay_s: float) -> None:
        super().__init__(config)
        self._door = door
        self._drain_delay_s = drain_delay_s
        self._close_at_s = 0.0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal; unlike uvicorn's own, it is not raised again at the end: draining is a good end, with exit code 0."""
        if self._door.draining:
            self.should_exit = self.force_exit = True
        self._door.draining = True
        self._close_at_s = time.monotonic() + self._drain_delay_s

    async def on_tick(self, counter: int) -> bool:
        """See uvicorn; called ten times a second."""
        if self._door.draining and time.monotonic() >= self._close_at_s:
            self.should_exit = True
        return await super().on_tick(counter)
