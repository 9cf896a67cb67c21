"""One request of the data plane and the way back to its client: what the pipeline and the relay see of HTTP."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from switchyard.api.door import Door
from switchyard.api.envelope import engine_error_body, error_body, stream_error
from switchyard.errors import BodyTooLarge, Draining, GatewayError, MethodNotAllowed, Unauthorized
from switchyard.exchange import Endpoint
from switchyard.upstream.connection import Headers

if TYPE_CHECKING:
    from switchyard.api.protocol import GatewayProtocol

_SANE_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_JSON = (b"content-type", b"application/json")


def sane_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """A client's request id where it is one, short and plain; else nothing."""
    given = [value for name, value in headers if name == b"x-request-id"]
    return given[0].decode("ascii") if len(given) == 1 and _SANE_ID.fullmatch(given[0]) else ""


class Exchange:
    """One request of the data plane and the way back to its client; see `switchyard.exchange`."""

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
        self._answer_headers: Headers = []
        self._pause: Callable[[], None] | None = None
        self._resume: Callable[[], None] | None = None
        self.request_id, self.client_request_id = self._choose_id()

    def _choose_id(self) -> tuple[str, str]:
        """Our own id, and the client's where it is short and plain: that one is echoed."""
        return self._door.next_id(), sane_id(self.headers)

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
        if self._door.refusing:
            raise Draining("the gateway is shutting down; ask another one", retry_after_s=5)

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
        if task.cancelled() or task.exception() is None:
            return
        self._protocol.logger.error("a request failed inside the gateway", exc_info=task.exception())
        if self._complete or self.client_left:
            return
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
        lines += [name + b": " + value + b"\r\n" for name, value in self._protocol.server_state.default_headers]
        lines += [name + b": " + value + b"\r\n" for name, value in headers]
        self._answer_headers = headers
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
        if self._open_ended and any(
            n == b"content-type" and v.startswith(b"text/event-stream") for n, v in self._answer_headers
        ):
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
        """See `switchyard.exchange.Exchange`."""
        own: Headers = [_JSON, (b"x-switchyard-error", error.code.encode("ascii")), *headers]
        own.append((b"x-should-retry", b"true" if error.retryable else b"false"))  # the official SDKs follow it
        if error.retry_after_s is not None:
            own.append((b"retry-after", b"%d" % error.retry_after_s))
        if isinstance(error, Unauthorized):
            own.append((b"www-authenticate", b"Bearer"))
        self._whole(error.status, own, error_body(self.endpoint.protocol, error))

    def pass_error(self, status: int, headers: Headers, body: bytes) -> None:
        """See `switchyard.exchange.Exchange`."""
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
