"""The client's side of HTTP: uvicorn's protocol, with a short way for the data plane.

A request for the data plane doesn't become an ASGI scope: its bytes are gathered here and handed to the pipeline, and
the answer goes straight to the client's transport (`exchange.py`). Everything else (admin, docs, lists) takes uvicorn's
normal way to the FastAPI app. What touches uvicorn's inside stands here and in `server.py`; its version is pinned.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from switchyard.api.door import Door
from switchyard.api.endpoints import ENDPOINTS, STORED, allowed_methods
from switchyard.api.envelope import error_body
from switchyard.api.exchange import Exchange
from switchyard.errors import (
    GatewayError,
    HeadTooLarge,
    InvalidRequest,
    MethodNotAllowed,
    RequestTimeout,
    TooManyConnections,
)
from switchyard.exchange import Endpoint

MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 200
UNENDED_SLACK_BYTES = 64 * 1024  # the end of the request before may have come in the same piece
HEAD_LIMIT_S = 20.0  # for a request's head to arrive
BODY_STALL_S = 25.0  # longest pause inside a request's body
_OFFER = frozenset({b"connection", b"upgrade", b"http2-settings"})
KEEP_ALIVE_S = 75.0  # longer than the pools of common clients
WRITE_STALL_S = 300.0  # a client that takes nothing for so long is gone


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
        self._offering: list[tuple[bytes, bytes]] | None = None  # headers of a request that offered an upgrade
        self.url = b""

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
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._parse_without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            if not self._ignoring:
                cause = error.__context__
                self._answer_and_close(cause if isinstance(cause, GatewayError) else _not_http(error))
        if self._reading_head and not self._ignoring:  # the parser keeps a header to itself until it ends
            self._unended_bytes += len(data)
            if self._unended_bytes > MAX_HEAD_BYTES + UNENDED_SLACK_BYTES:
                self._answer_and_close(_too_long_a_head())

    def _parse_without_upgrade(self, rest: bytes) -> None:
        """An offer to switch protocols is not taken up: read the request again as if it had not been made.

        Java's client makes one with every request; the parser stops at its head, with the body unread.
        """
        head = [self.parser.get_method() + b" " + self.url + b" HTTP/1.1"]
        head += [name + b": " + value for name, value in self.headers if name not in _OFFER]
        self._offering = self.headers
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(b"\r\n".join([*head, b"", b""]) + rest)

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
            self._head_bytes += len(url)
            if self._head_bytes > MAX_HEAD_BYTES:
                raise _too_long_a_head()
            self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; a trailer behind a body in chunks is not one."""
        if self._ignoring or not self._reading_head:
            return
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > MAX_HEAD_BYTES or len(self.headers) >= MAX_HEADERS:
            raise _too_long_a_head()
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is complete: find out whose request this is."""
        if self._ignoring or self.parser.should_upgrade():
            return
        if self._offering is not None:  # it is known as it came
            self.headers, self._offering = self._offering, None
        version = self.parser.get_http_version()
        if version not in {"1.0", "1.1"}:
            raise InvalidRequest("HTTP/1.1 or HTTP/1.0 is spoken here")
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
        keep_alive = version != "1.0" and self.parser.should_keep_alive()
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
        if self._ignoring or self.parser.should_upgrade():
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
