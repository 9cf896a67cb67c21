"""What stands for connections in a simulation: the gateway's sender and prober talk to engines in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import httpx

from switchyard.cluster.engine import Job
from switchyard.emulate.engine import LivingEngine
from switchyard.emulate.http import Request
from switchyard.emulate.vllm import EmulatedVllm
from switchyard.errors import BrokenStream, Unreachable
from switchyard.upstream.connection import Headers
from switchyard.upstream.pool import ConnectFailed

MARK = b'"job":'


def body_for(number: int) -> bytes:
    """The body of a request: nothing but the number of its job, and the model that the sender replaces."""
    return b'{"model":"","job":%d}' % number


class MemoryResponse:
    """An answer on its way; has of `upstream.Response` what sending and the simulation need.

    Attributes:
        status: 200, or what an engine that can't begin answers.
        job: as the engine works on it.
    """

    headers: Headers = []
    length: int | None = None
    streams = False

    def __init__(self, engine: LivingEngine, job: Job, status: int, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop
        self._done: asyncio.Future[None] = loop.create_future()
        self.job = job
        self.status = status
        self.head_s = 0.0

    async def head(self) -> None:
        """See `Response`: the head of a stream comes at once."""
        self.head_s = self._loop.time()

    def has_begun(self) -> bool:
        """Whether its first token has come."""
        return self.job.first_token_s is not None

    async def finished(self) -> None:
        """Wait for the last token.

        Raises:
            BrokenStream: the engine died.
        """
        await self._done

    def abandon(self) -> None:
        """The answer isn't wanted any more."""
        if not self._done.done():
            self._engine.leave(self.job)
            self._done.cancel()

    # ---- engine.Listener ----

    def begin(self, job: Job) -> None:
        """See `Listener`; the job knows the time itself."""

    def more(self, tokens: int) -> None:
        """See `Listener`."""

    def end(self, job: Job) -> None:
        """See `Listener`."""
        if not self._done.done():
            self._done.set_result(None)

    def lose(self, why: str) -> None:
        """See `Listener`."""
        if not self._done.done():
            self._done.set_exception(BrokenStream(why))


class MemoryConnections:
    """The connections to one engine; has of `upstream.ConnectionPool` what sending needs.

    Args:
        vllm: the engine.
        jobs: by the number in a request's body.
    """

    def __init__(self, vllm: EmulatedVllm, jobs: Mapping[int, Job]) -> None:
        self._living = vllm.living
        self._jobs = jobs
        self._loop = asyncio.get_running_loop()
        self.label = vllm.card.name
        self.host_header = b"memory"

    async def send(self, request: bytes | list[bytes], fresh: bool = False) -> MemoryResponse:
        """Hand a request to the engine.

        Raises:
            ConnectFailed: its process is not there.
        """
        if not self._living.alive:
            raise ConnectFailed(Unreachable(f"{self.label} can't be reached: Connection refused"))
        data = request if isinstance(request, bytes) else request[-1]
        job = self._jobs[int(data[data.rindex(MARK) + len(MARK) : -1])]
        loading = self._living.fault is not None and self._living.fault.kind == "loading"
        response = MemoryResponse(self._living, job, 503 if loading else 200, self._loop)
        if loading:
            response.end(job)
        else:
            self._living.submit(job, response)
        return response


class MemoryTransport(httpx.AsyncBaseTransport):
    """The way of probes to engines.

    Args:
        engines: by the URL of each.
    """

    def __init__(self, engines: Mapping[str, EmulatedVllm]) -> None:
        self._engines = engines

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """See httpx."""
        vllm = self._engines[f"http://{request.url.netloc.decode('ascii')}"]
        if not vllm.living.alive:
            raise httpx.ConnectError("Connection refused", request=request)
        wire = _MemoryWire(request)
        vllm.handle(Request(wire, request.method.encode("ascii"), request.url.path, await request.aread()))
        return await wire.done


class _MemoryWire:
    """See `http.Wire`; probes ask for no streams."""

    def __init__(self, request: httpx.Request) -> None:
        self._request = request
        self.done: asyncio.Future[httpx.Response] = asyncio.get_running_loop().create_future()

    def send_head(self, status: int, content_type: str, length: int | None, body: bytes) -> None:
        if not self.done.done():
            self.done.set_result(httpx.Response(status, headers={"content-type": content_type}, content=body))

    def send(self, data: bytes) -> None:
        raise NotImplementedError

    def end(self, request: Request) -> None:
        pass

    def reset(self) -> None:
        if not self.done.done():
            self.done.set_exception(httpx.ReadError("the connection was reset", request=self._request))
