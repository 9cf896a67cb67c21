"""One HTTP/1.1 connection to an engine, and the answer that is coming over it.

Bytes are handed on as they arrive: no task, queue or coroutine step per piece. Who reads decides where they go: into
memory (`Response.read`) or straight to a client (`Response.pipe`). Time limits are checked by the pool's sweeper, not
by a timer per request.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import Protocol, cast

import httptools

from switchyard.errors import BrokenStream, GatewayError, Unreachable, UpstreamTimeout

Headers = list[tuple[bytes, bytes]]
BUFFER_LIMIT = 256 * 1024  # bytes kept for a reader that has not come yet; then the engine waits
MAX_HEAD_BYTES = 64 * 1024
_ANNOUNCES = b"event: response."
_ANSWERS = re.compile(rb"(?:\A|\n)event: (?!response\.(?:created|queued|in_progress)[\r\n])[^\r\n]*[\r\n]")  # whole lines
_LINE_BYTES = 64  # of a line that has not ended: more than any event's name takes


class StaleConnection(Exception):
    """A reused connection ended before a single byte came: the engine had closed it. Safe to try once more."""


class Sink(Protocol):
    """Takes an answer's body as it arrives. Called from inside the event loop; must not block."""

    def feed(self, data: bytes) -> None:
        """A piece of the body."""

    def end(self) -> None:
        """The body is complete."""

    def fail(self, error: GatewayError) -> None:
        """The body broke off."""


class Response:
    """An answer on its way.

    Attributes:
        status: HTTP status, once `head` has returned.
        headers: names in lower case, in the engine's order.
        length: value of Content-Length; None when the body ends otherwise.
        is_stream: whether it is an event stream.
        head_s: monotonic time at which the first byte came; 0 before.
    """

    __slots__ = (
        "_announced", "_buffer", "_buffered", "_client_waits", "_connection",
        "_ended", "_error", "_has_begun", "_head", "_line", "_more", "_sink", "head_s", "headers", "is_stream", "length",
        "status",
    )  # fmt: skip

    def __init__(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        self._connection = connection
        self._head: asyncio.Future[None] = loop.create_future()
        self._more: asyncio.Future[None] | None = None  # somebody looks at the body before it goes anywhere
        self._buffer: list[bytes] = []
        self._buffered = 0
        self._sink: Sink | None = None
        self._ended = False
        self._client_waits = False
        self._error: Exception | None = None
        self.status = 0
        self.headers: Headers = []
        self.length: int | None = None
        self.is_stream = False
        self.head_s = 0.0
        self._has_begun = False
        self._announced = False
        self._line = b""  # the beginning of a line that a piece has cut

    def has_begun(self) -> bool:
        """Whether there is something of the body; but for events by which a response is only announced.

        vLLM sends those, as the head of any stream, before it has read the prompt.
        """
        return self._has_begun

    def head(self) -> asyncio.Future[None]:
        """Status and headers, to be waited for.

        Raises:
            StaleConnection: nothing came, on a connection that had served before.
            Unreachable, UpstreamTimeout: no usable answer.
        """
        return self._head

    @property
    def buffered(self) -> int:
        """Bytes of the body that wait for who takes them."""
        return self._buffered

    def opening(self, pieces: int | None = None) -> bytes:
        """The first pieces of the body, or all that has come, while nobody has taken it."""
        return b"".join(self._buffer[:pieces])

    async def more(self) -> bool:
        """Wait until more of the body has come, which stays here for who takes it; False when there is no more.

        Raises:
            GatewayError: it broke off.
        """
        if self._error is not None:
            raise _as_broken(self._error)
        if self._ended:
            return False
        self._more = asyncio.get_running_loop().create_future()
        await self._more
        return True

    def pipe(self, sink: Sink) -> None:
        """Send the body, from its first byte, to the sink."""
        self._sink = sink
        for data in self._buffer:
            sink.feed(data)
        self._buffer.clear()
        if self._ended:
            self._sink = None
            sink.end()
        elif self._error is not None:
            sink.fail(_as_broken(self._error))
        elif not self._client_waits:
            self._connection.resume()

    async def read(self, limit: int) -> bytes:
        """The whole body, cut at `limit` bytes.

        Raises:
            GatewayError: it broke off.
        """
        collector = _Collector(asyncio.get_running_loop(), limit)
        self.pipe(collector)
        return await collector.done

    def pause(self) -> None:
        """Stop taking bytes from the engine: the client is behind. Of no effect once all have come: the connection goes on."""
        if self._ended:
            return
        self._client_waits = True
        self._connection.pause()

    def resume(self) -> None:
        """Go on taking bytes."""
        if self._ended:
            return
        self._client_waits = False
        self._connection.resume()

    def abandon(self) -> None:
        """Close the connection if the answer is not complete: the engine stops working for it. May be called twice."""
        if not self._ended:
            self._connection.abort()

    # ---- called by the connection ----

    def take_head(self, status: int, headers: Headers, length: int | None, is_stream: bool) -> None:
        """Status and headers are complete."""
        self.status, self.headers, self.length, self.is_stream = status, headers, length, is_stream
        if not self._head.done():
            self._head.set_result(None)

    def take(self, data: bytes) -> None:
        """A piece of the body came."""
        if not self._has_begun:
            self._look_for_answer(data)
        if self._sink is not None:
            self._sink.feed(data)
            return
        self._buffer.append(data)
        self._buffered += len(data)
        if self._more is not None:
            self._tell_who_looks()
        if self._buffered > BUFFER_LIMIT:
            self._connection.pause()

    def _look_for_answer(self, data: bytes) -> None:
        """Whether these bytes are more than an announcement. Pieces end anywhere, also in the middle of an event's name."""
        text = self._line + data
        if not self._announced:
            if len(text) < len(_ANNOUNCES) and _ANNOUNCES.startswith(text):
                self._line = text
                return
            self._announced = text.startswith(_ANNOUNCES)
        self._has_begun = not self._announced or _ANSWERS.search(text) is not None
        if not self._has_begun:
            self._line = text[text.rfind(b"\n") + 1 :][:_LINE_BYTES]

    def take_end(self) -> None:
        """The body is complete."""
        self._ended = True
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.end()
        self._tell_who_looks()

    def take_error(self, error: Exception) -> None:
        """Nothing more will come."""
        if self._ended or self._error is not None:
            return
        self._error = error
        if not self._head.done():
            self._head.set_exception(error)
            self._head.exception()  # somebody may have stopped waiting: no warning then
        elif self._sink is not None:
            self._sink.fail(_as_broken(error))
        self._tell_who_looks()

    def _tell_who_looks(self) -> None:
        more, self._more = self._more, None
        if more is not None and not more.done():
            more.set_result(None)


class _Collector:
    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self.done: asyncio.Future[bytes] = loop.create_future()
        self._body = bytearray()
        self._limit = limit

    def feed(self, data: bytes) -> None:
        if len(self._body) < self._limit:
            self._body += data[: self._limit - len(self._body)]

    def end(self) -> None:
        if not self.done.done():
            self.done.set_result(bytes(self._body))

    def fail(self, error: GatewayError) -> None:
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()


class Owner(Protocol):
    """The pool that a connection belongs to.

    Attributes:
        heard_s: when bytes last came from the engine.
    """

    heard_s: float

    def give_back(self, connection: Connection) -> None:
        """The answer is complete and the connection can serve again."""

    def forget(self, connection: Connection) -> None:
        """The connection is closed."""


class Connection(asyncio.Protocol):
    """Sends one request at a time and reads its answer. Made and owned by `ConnectionPool`."""

    def __init__(self, owner: Owner, label: str, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self._label = label
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._headers: Headers = []
        self._head_bytes = 0
        self._keep = False
        self._bodyless = False
        self._paused = False
        self._lost = False
        self._unasked = False  # bytes came that no request has asked for
        self.response: Response | None = None
        self.served = 0
        self.sent_s = 0.0  # when the request was written
        self.moved_s = 0.0  # when bytes last came, or when it became idle

    @property
    def usable(self) -> bool:
        """Whether a request may be sent on it."""
        return not self._lost and self.response is None and self._transport is not None and not self._transport.is_closing()

    @property
    def waiting_for_client(self) -> bool:
        """Whether the pause is ours: the engine is not late then."""
        return self._paused

    def send(self, request: bytes | list[bytes]) -> Response:
        """Write a request and give back its answer-to-be."""
        assert self._transport is not None
        response = Response(self, self._loop)
        self.response = response
        self._headers = []
        self._head_bytes = 0
        self.sent_s = self.moved_s = self._loop.time()
        if isinstance(request, list):
            self._transport.writelines(request)
        else:
            self._transport.write(request)
        return response

    def abort(self) -> None:
        """Close at once, without waiting for what is still to be written."""
        if self._transport is not None:
            self._transport.abort()

    def fail(self, error: GatewayError) -> None:
        """Give up on the answer, for a reason of our own, and close."""
        response = self.response
        if response is not None:
            response.take_error(error)
        self.abort()

    def pause(self) -> None:
        """Stop reading."""
        if not self._paused and self._transport is not None and not self._lost:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Go on reading."""
        if self._paused and self._transport is not None and not self._lost:
            self._paused = False
            self.moved_s = self._loop.time()
            self._transport.resume_reading()

    # ---- asyncio ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        response = self.response
        if response is None:  # bytes without a question: whatever this engine does, it is not HTTP/1.1
            self.abort()
            return
        self.moved_s = self._owner.heard_s = self._loop.time()
        if not response.head_s:
            response.head_s = time.monotonic()  # the loop's clock has whole milliseconds
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.fail(Unreachable(f"{self._label} answered with a protocol switch"))
        except httptools.HttpParserError as error:
            self.fail(Unreachable(f"{self._label} did not answer in HTTP: {str(error)[:120]}"))
        if self._unasked:  # what came behind the answer would be taken for the next one
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever waits."""
        self._lost = True
        self._owner.forget(self)
        response = self.response
        if response is None:
            return
        if exc is None and response.status and response.length is None and not self._bodyless and self._ends_with_close:
            self._complete()
            return
        if not response.head_s and self.served:
            response.take_error(StaleConnection())
        elif not response.status:
            response.take_error(Unreachable(f"{self._label} closed the connection without an answer"))
        else:
            response.take_error(BrokenStream(f"{self._label} broke off in the middle of the answer"))

    # ---- httptools ----

    def on_message_begin(self) -> None:
        """An answer begins."""
        self._unasked = self.response is None

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header of the answer; a trailer behind its body is not one."""
        if self.response is None or self.response.status:
            return
        self._headers.append((name.lower(), value))
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > MAX_HEAD_BYTES:
            raise httptools.HttpParserError(f"more than {MAX_HEAD_BYTES} bytes of headers")

    def on_headers_complete(self) -> None:
        """Status and headers are there."""
        status = self._parser.get_status_code()
        if status < 200:  # 100 Continue and the like: the answer is still to come
            self._headers = []
            return
        self._keep = self._parser.should_keep_alive()  # only right in here
        length: int | None = None
        chunked = is_stream = False
        for name, value in self._headers:
            if name == b"content-length" and value.isdigit():
                length = int(value)
            elif name == b"transfer-encoding":
                chunked = True
            elif name == b"content-type":
                is_stream = is_stream or value.lower().startswith(b"text/event-stream")
        self._bodyless = status in {204, 304}
        self._ends_with_close = length is None and not chunked
        if self.response is not None:
            self.response.take_head(status, self._headers, None if chunked else length, is_stream)

    def on_body(self, body: bytes) -> None:
        """A piece of the body, without its framing."""
        if self.response is not None:
            self.response.take(body)

    def on_message_complete(self) -> None:
        """The answer is complete."""
        if self.response is not None and self.response.status:
            self._complete()

    def _complete(self) -> None:
        response = self.response
        assert response is not None
        self.response = None
        self.served += 1
        self.moved_s = self._loop.time()
        if self._keep and not self._lost:
            if self._paused:
                self.resume()
            self._owner.give_back(self)
        else:
            self.abort()
        response.take_end()

    _ends_with_close = False


def _as_broken(error: Exception) -> GatewayError:
    """What a client is told inside a stream that has begun."""
    if isinstance(error, UpstreamTimeout | BrokenStream):
        return error
    return BrokenStream(str(error) or "the engine broke off in the middle of the answer")
