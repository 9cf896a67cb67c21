"""A wire between an agent and the gateway that keeps what was asked and with which status it was answered.

Bytes pass as they come, both ways. The gateway's decision log knows requests for model work; a tap sees everything else
too: probes, lists, wrong paths. Judging what was seen is the tests' business.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import httptools

KEPT_BYTES = 4096  # of an answer, for the message of a failed test
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")


@dataclass
class Call:
    """One request of the agent.

    Attributes:
        status: of the answer; 0 while there is none.
        answer: the beginning of the answer, head included.
    """

    method: str = ""
    target: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    status: int = 0
    answer: bytes = b""

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]


class Tap:
    """A context manager: inside, it listens and passes on.

    Args:
        port: the gateway's, on loopback.
    """

    def __init__(self, port: int) -> None:
        self.calls: list[Call] = []
        self.port = 0
        self._to = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tap")
        self._wires: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        self._server.close()
        for wire in self._wires:
            wire.cancel()
        await asyncio.gather(*self._wires, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire = self._loop.create_task(self._pass_on(reader, writer))
        self._wires.add(wire)
        wire.add_done_callback(self._wires.discard)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        gateway_reader, gateway_writer = await asyncio.open_connection("127.0.0.1", self._to)
        ear = _Ear(self.calls)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_pump(reader, gateway_writer, ear.agent_said))
                both.create_task(_pump(gateway_reader, writer, ear.gateway_said))
        finally:
            gateway_writer.close()
            writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, listener: Callable[[bytes], None]) -> None:
    """Copy until the end, or until one side is gone."""
    try:
        while data := await reader.read(65536):
            listener(data)
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        writer.close()


class _Ear:
    """Hears one connection. Agents don't pipeline: what comes back belongs to the latest request."""

    def __init__(self, calls: list[Call]) -> None:
        self._calls = calls
        self._parser = httptools.HttpRequestParser(self)
        self._call = Call()

    def agent_said(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def gateway_said(self, data: bytes) -> None:
        call = self._call
        if not call.status and (found := _STATUS.match(data)) and found[1] != b"100":
            call.status = int(found[1])
        if call.status and len(call.answer) < KEPT_BYTES:
            call.answer += data[:KEPT_BYTES]

    # ---- httptools calls these ----

    def on_message_begin(self) -> None:
        self._call = Call()

    def on_url(self, url: bytes) -> None:
        self._call.target += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._call.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._call.method = self._parser.get_method().decode()
        self._calls.append(self._call)

    def on_body(self, body: bytes) -> None:
        self._call.body += body
