"""A scriptable engine on loopback: answers like vLLM (`answers.py`), or exactly the bytes, pauses and ends a test asks for.

It runs in a thread of its own, so that tests stay plain functions. It keeps the bytes of each request and knows when
the gateway went away. It looks at no request's meaning: that is `answers.py`.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Any, Self

Pairs = Iterable[tuple[str, str]]
JSON_TYPE = ("content-type", "application/json")
SSE_TYPE = ("content-type", "text/event-stream; charset=utf-8")
GENERATION = {
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/rerank", "/v1/score",
    "/v1/messages/count_tokens", "/tokenize",
}  # fmt: skip


class End(Enum):
    """How an answer can end, other than completely."""

    RESET = "a TCP reset"
    CLOSE = "close the connection here"
    HANG = "say nothing more until the gateway goes away"


RESET, CLOSE, HANG = End.RESET, End.CLOSE, End.HANG


class Gate:
    """A step that waits until the test opens it."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def open(self) -> None:
        self._event.set()

    async def passed(self) -> None:
        while not self._event.is_set():  # noqa: ASYNC110 (it is opened in another thread)
            await asyncio.sleep(0.003)


Step = bytes | float | End | Gate
Script = Iterable[Step] | Callable[["Request"], Iterable[Step]]


# ---- scripts ----


def head(status: int = 200, headers: Pairs = (), *, length: int | None = None, chunked: bool = False) -> bytes:
    """A status line and headers."""
    lines = [f"HTTP/1.1 {status} Whatever", *(f"{name}: {value}" for name, value in headers)]
    lines += [f"content-length: {length}"] if length is not None else []
    lines += ["transfer-encoding: chunked"] if chunked else []
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def chunk(data: bytes) -> bytes:
    """A piece of a body in chunked framing; nothing for an empty piece, which would be the end."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


def reply(body: bytes | dict[str, Any] | list[Any], status: int = 200, headers: Pairs = (JSON_TYPE,)) -> list[Step]:
    """A complete answer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return [head(status, headers, length=len(data)) + data]


def stream(*steps: Step, headers: Pairs = (SSE_TYPE,)) -> list[Step]:
    """A stream of these pieces, each a chunk and a write of its own; complete unless a step ends it before."""
    framed = [chunk(step) if isinstance(step, bytes) else step for step in steps]
    return [head(200, headers, chunked=True), *framed, b"0\r\n\r\n"]


def sse(*events: Any, done: bool = False) -> bytes:
    """Events of an OpenAI stream: texts as they are, anything else as JSON."""
    texts = [e if isinstance(e, str) else json.dumps(e) for e in events] + (["[DONE]"] if done else [])
    return "".join(f"data: {text}\n\n" for text in texts).encode()


def named(*events: dict[str, Any]) -> bytes:
    """Events of a Messages or Responses stream, each under the name of its type."""
    return "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events).encode()


# ---- requests ----


@dataclass
class Request:
    """A request as it came.

    Attributes:
        connection: number of the connection it came over.
        gone: set when the gateway closed the connection before the answer was complete.
        done: set when the answer was complete.
        sent: bytes of the answer that have left us.
    """

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    connection: int
    arrived_s: float = field(default_factory=time.monotonic)
    gone: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)
    sent: int = 0

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    def all(self, name: str) -> list[str]:
        """Every value of a header."""
        return [value for key, value in self.headers if key.lower() == name]

    def header(self, name: str) -> str | None:
        return next(iter(self.all(name)), None)

    def json(self) -> Any:
        return json.loads(self.body)


class Engine:
    """One engine. A context manager: inside, it listens.

    Args:
        model: the name it serves.
        context: what /v1/models says; None for an engine that doesn't say.
        speaks: paths under /v1 that it has; all of them when left out.
        key: the key it wants, in the health checks too.
    """

    def __init__(
        self, model: str = "acme/small", *, context: int | None = 131_072, speaks: Iterable[str] = (), key: str | None = None
    ) -> None:
        self.model = model
        self.context = context
        self.speaks = frozenset(speaks)
        self.key = key
        self.yes = 0.9  # what it says when it is asked as a judge
        self.healthy = True
        self.requests: list[Request] = []
        self.faults: list[str] = []
        self.stored: dict[str, dict[str, Any]] = {}
        self.port = 0
        self.opened = 0
        self.connections: set[_Connection] = set()
        self._scripts: list[Script] = []
        self._at: dict[str, Script] = {}
        self._server: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"engine {model}")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    # ---- what tests do ----

    def play(self, *scripts: Script) -> None:
        """Answer the next requests for model work with these, one each; the last one goes for all that follow."""
        self._scripts = list(scripts)

    def play_at(self, path: str, script: Script) -> None:
        """Answer every request for one path with this."""
        self._at[path] = script

    def reset(self) -> None:
        """Forget scripts and requests."""
        self._scripts = []
        self._at = {}
        self.requests = []
        self.yes = 0.9
        self.healthy = True

    @property
    def work(self) -> list[Request]:
        """Requests for model work: no probes, no lists."""
        return [r for r in self.requests if r.path in GENERATION or r.path.startswith("/v1/responses/")]

    @property
    def last(self) -> Request:
        assert self.work, "the engine has seen no request for model work"
        return self.work[-1]

    def wait_for(self, count: int = 1, within_s: float = 5) -> Request:
        """Wait until so many requests have come; the last of them."""
        deadline = time.monotonic() + within_s
        while len(self.work) < count:
            assert time.monotonic() < deadline, f"the engine saw {len(self.work)} requests, {count} were expected"
            time.sleep(0.003)
        return self.work[count - 1]

    # ---- life ----

    def __enter__(self) -> Self:
        self._thread.start()
        self.listen()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.shut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        assert error is not None or not self.faults, self.faults

    def listen(self) -> None:
        """Take connections, on the same port as before."""
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)

    def shut(self) -> None:
        """Refuse connections, and reset those that are open."""
        asyncio.run_coroutine_threadsafe(self._shut(), self._loop).result(10)

    async def _listen(self) -> None:
        self._server = await self._loop.create_server(lambda: _Connection(self), "127.0.0.1", self.port, backlog=512)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _shut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        while True:  # a connection may still be on its way in
            for connection in list(self.connections):
                connection.reset()
            await asyncio.sleep(0.01)
            running = asyncio.all_tasks() - {asyncio.current_task()}
            if not running and not self.connections:
                return
            await asyncio.wait(running or {asyncio.ensure_future(asyncio.sleep(0))}, timeout=0.1)

    def script_for(self, request: Request) -> Iterable[Step]:
        """What to do about a request."""
        from .answers import answer

        script: Script | None = self._at.get(request.path)
        if script is None and request.path in GENERATION and self._scripts:
            script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
        if script is None:
            return answer(self, request)
        return script(request) if callable(script) else script


class _Connection(asyncio.Protocol):
    """One connection of the gateway."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._received = bytearray()
        self._transport: asyncio.Transport
        self._writable = asyncio.Event()
        self._number = 0
        self.task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=64 * 1024)
        sock: socket.socket = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._writable.set()
        self._engine.opened += 1
        self._number = self._engine.opened
        self._engine.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._engine.connections.discard(self)
        if self.task is not None:
            self.task.cancel()

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self.task is None:
            self._begin()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def reset(self) -> None:
        """Close with RST."""
        sock: socket.socket = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def _begin(self) -> None:
        """Answer the next request, if it is complete."""
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return
        first, *rest = bytes(self._received[:end]).decode("latin-1").split("\r\n")
        headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in rest)]
        length = next((int(value) for name, value in headers if name.lower() == "content-length"), 0)
        if len(self._received) < end + 4 + length:
            return
        method, target, _ = first.split(" ")
        request = Request(method, target, headers, bytes(self._received[end + 4 : end + 4 + length]), self._number)
        del self._received[: end + 4 + length]
        self._engine.requests.append(request)
        self.task = asyncio.get_running_loop().create_task(self._answer(request))

    async def _answer(self, request: Request) -> None:
        try:
            for step in self._engine.script_for(request):
                if isinstance(step, bytes):
                    await self._write(request, step)
                elif isinstance(step, Gate):
                    await step.passed()
                elif isinstance(step, End):
                    await self._end(step)
                else:
                    await asyncio.sleep(step)
        except asyncio.CancelledError:
            request.gone.set()
            return
        except Exception as error:  # noqa: BLE001 (a fault of the test's script, or a body that answers.py can't deal with)
            self._engine.faults.append(repr(error))
            self.reset()
            return
        request.done.set()
        self.task = None
        self._begin()

    async def _write(self, request: Request, data: bytes) -> None:
        self._transport.write(data)
        await self._writable.wait()
        request.sent += len(data)
        await asyncio.sleep(0)

    async def _end(self, how: End) -> None:
        if how is RESET:
            await asyncio.sleep(0.02)  # a reset overtakes bytes that were sent, and is to come after them
            self.reset()
        elif how is CLOSE:
            self._transport.close()
        await asyncio.Event().wait()


class DeadPort:
    """A port that refuses connections and that nobody else can take meanwhile."""

    def __enter__(self) -> Self:
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._socket.close()


class DeafPort(DeadPort):
    """A port whose connections never come up: its queue is full, and further handshakes are left without an answer."""

    def __enter__(self) -> Self:
        super().__enter__()
        self._socket.listen(0)
        self._fillers = [socket.socket() for _ in range(4)]
        for filler in self._fillers:
            filler.setblocking(False)
            filler.connect_ex(self._socket.getsockname())
        time.sleep(0.05)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for filler in self._fillers:
            filler.close()
        super().__exit__(kind, error, trace)
