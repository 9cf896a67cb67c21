"""The HTTP/1.1 side of an emulated engine: requests in, answers out, for little CPU. What is answered is not its business.

An engine must cost far less than the gateway in front of it, so there is no framework here, and a stream's events go out
in one write however many there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import httptools
import msgspec

MAX_BODY_BYTES = 64 * 1024 * 1024
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 413: "Content Too Large"}


class Wire(Protocol):
    """Where answers go: a connection, or something in memory."""

    def send_head(self, status: int, content_type: str, length: int | None, body: bytes) -> None:
        """Status and headers, with the whole body where it is there already."""

    def send(self, data: bytes) -> None:
        """Bytes of a body."""

    def end(self, request: Request) -> None:
        """The answer is complete."""

    def reset(self) -> None:
        """The answer breaks off."""


class Request:
    """A request, and the way to answer it. Exactly one of `reply` and `start` is called."""

    def __init__(self, wire: Wire, method: bytes, path: str, body: bytes) -> None:
        self._wire = wire
        self.method = method
        self.path = path
        self.body = body
        self.when_gone: Callable[[], None] | None = None
        """Called when the client leaves before the answer is complete."""

    def reply(self, status: int, body: bytes | dict[str, Any], content_type: str = "application/json") -> None:
        """Answer completely."""
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        self._wire.send_head(status, content_type, len(data), data)
        self._wire.end(self)

    def start(self) -> None:
        """Begin an event stream."""
        self._wire.send_head(200, "text/event-stream; charset=utf-8", None, b"")

    def write(self, events: bytes) -> None:
        """Send events."""
        self._wire.send(b"%x\r\n%b\r\n" % (len(events), events))

    def finish(self) -> None:
        """End the stream."""
        self._wire.send(b"0\r\n\r\n")
        self._wire.end(self)

    def break_off(self) -> None:
        """Reset the connection in the middle of whatever is going on, as a process that dies does."""
        self._wire.reset()


class Connection(asyncio.Protocol):
    """One connection of a client: one request at a time, the next ones wait in the parser.

    Args:
        handle: gets every complete request.
        open_connections: this connection is in it while it lives.
    """

    def __init__(self, handle: Callable[[Request], None], open_connections: set[Connection]) -> None:
        self._handle = handle
        self._open = open_connections
        self._transport: asyncio.Transport
        self._parser = httptools.HttpRequestParser(self)
        self._current: Request | None = None
        self._pending: list[Request] = []
        self._keep_alive = True

    # ---- asyncio ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._open.add(self)

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass
        except httptools.HttpParserError as error:
            self.send_head(400, "text/plain", None, b"")
            self.send(str(error).encode())
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        """See asyncio."""
        self._open.discard(self)
        current, self._current = self._current, None
        self._pending.clear()
        if current is not None and current.when_gone is not None:
            current.when_gone()

    # ---- the parser ----

    def on_message_begin(self) -> None:
        """A request begins."""
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._length = 0

    def on_url(self, url: bytes) -> None:
        """A piece of its target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """Its head is there."""
        self._keep_alive = self._parser.should_keep_alive()
        if self._headers.get(b"expect", b"").lower() == b"100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        """A piece of its body."""
        self._length += len(data)
        if self._length <= MAX_BODY_BYTES:
            self._body.append(data)

    def on_message_complete(self) -> None:
        """It is there."""
        path = self._url.partition(b"?")[0].decode("latin-1")
        request = Request(self, self._parser.get_method(), path, b"".join(self._body))
        if self._length > MAX_BODY_BYTES:
            request.reply(413, {"error": {"message": "the body is too large", "type": "BadRequestError", "code": 413}})
        elif self._current is not None:
            self._pending.append(request)
        else:
            self._current = request
            self._handle(request)

    # ---- answers ----

    def send_head(self, status: int, content_type: str, length: int | None, body: bytes) -> None:
        """Status line and headers, with the whole body where it is there already."""
        framing = f"content-length: {length}" if length is not None else "transfer-encoding: chunked"
        ending = "" if self._keep_alive else "connection: close\r\n"
        reason = _REASONS.get(status, "Internal Server Error" if status == 500 else "Status")
        head = f"HTTP/1.1 {status} {reason}\r\ncontent-type: {content_type}\r\n{framing}\r\nserver: emulated\r\n{ending}\r\n"
        self.send(head.encode("latin-1") + body)

    def send(self, data: bytes) -> None:
        """Bytes as they are."""
        if not self._transport.is_closing():
            self._transport.write(data)

    def end(self, request: Request) -> None:
        """An answer is complete: go on with the next request of this connection."""
        if request is not self._current:
            return
        self._current = None
        if not self._keep_alive:
            self._transport.close()
        elif self._pending:
            self._current = self._pending.pop(0)
            self._handle(self._current)

    def reset(self) -> None:
        """Drop the connection without a goodbye."""
        self._transport.abort()
