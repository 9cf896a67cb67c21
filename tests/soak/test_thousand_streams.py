"""A thousand open streams on one worker: each gets all its pieces and its end, and the gateway's memory stays small.

Memory is counted (the proportional set size, of the kernel), not timed. The engine answers in the same loop as the
clients, so that a step of the test is a step of all streams.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from integration.client import ask, request_bytes
from integration.engine import SSE_TYPE, chunk, head, reply, sse
from integration.gateway import Serve, policy, pool

from .wire import Wire, until

STREAMS = 1000
ROUNDS = 10
MOST_MB = 40.0
TOGETHER = 100


class _Engine(asyncio.Protocol):
    """One connection of the gateway: streams begin on request and go on when the test says so."""

    streams: dict[str, _Engine]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._received = bytearray()

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            lines = self._received[:end].decode().lower().split("\r\n")
            length = next((int(line.split(":")[1]) for line in lines if line.startswith("content-length:")), 0)
            if len(self._received) < end + 4 + length:
                return
            body = bytes(self._received[end + 4 : end + 4 + length])
            del self._received[: end + 4 + length]
            self._answer(lines[0], body)

    def _answer(self, first: str, body: bytes) -> None:
        if not first.startswith("post"):
            card = {"id": "acme/small", "object": "model", "max_model_len": 131_072}
            listed = "/v1/models" in first
            step = reply({"object": "list", "data": [card]} if listed else b"", 200 if listed or "/health" in first else 404)[0]
            assert isinstance(step, bytes)
            self.transport.write(step)
            return
        self.transport.write(head(200, [SSE_TYPE], chunked=True) + chunk(_event("begin")))
        self.streams[json.loads(body)["user"]] = self


def _event(text: str) -> bytes:
    """Of a chat stream, of the usual length."""
    common = {"id": "chatcmpl-0123456789", "object": "chat.completion.chunk", "created": 1, "model": "acme/small"}
    return sse({**common, "choices": [{"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}]})


@pytest.fixture
def many_files() -> Iterator[None]:
    """This process has a file for each client and one for each engine connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * STREAMS + 500
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"only {hard} open files are allowed, {wanted} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def memory_mb(pid: int) -> float:
    """Proportional set size: private pages, and a share of those that others have too."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) * 1024 / 1e6


@pytest.mark.skipif(sys.platform != "linux", reason="counts memory by /proc")
@pytest.mark.timeout(120)
def test_a_thousand_streams_lose_nothing(many_files: None, tmp_path: Path) -> None:
    asyncio.run(_thousand(tmp_path))


async def _thousand(folder: Path) -> None:
    loop = asyncio.get_running_loop()
    streams: dict[str, _Engine] = {}
    connection = type("_Bound", (_Engine,), {"streams": streams})
    server = await loop.create_server(connection, "127.0.0.1", 0, backlog=STREAMS)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    block = pool(url, model="acme/small", limits={"in_flight": 2 * STREAMS}, context=131_072, speaks=["chat"])
    gateway = await asyncio.to_thread(Serve, policy({"small": block}), folder)
    wires: list[Wire] = []
    try:
        await asyncio.to_thread(gateway.__enter__)
        await asyncio.to_thread(gateway.wait_ready)
        await _pass_through(gateway, streams, wires)
    finally:
        for wire in wires:
            await wire.leave()
        await asyncio.to_thread(gateway.stop)
        server.close()
        for stream in streams.values():
            stream.transport.abort()
        await server.wait_closed()


async def _pass_through(gateway: Serve, streams: dict[str, _Engine], wires: list[Wire]) -> None:
    await _go(gateway, streams, wires, ["warm-0", "warm-1"])  # what is made once is made before it is counted
    idle_mb = memory_mb(gateway.process.pid)
    most_mb = await _go(gateway, streams, wires, [f"client-{n}" for n in range(STREAMS)])
    print(f"{STREAMS} streams: {most_mb - idle_mb:.1f} MB over the idle gateway's {idle_mb:.1f}")
    assert most_mb - idle_mb <= MOST_MB
    assert await asyncio.to_thread(gateway.metric, "switchyard_in_flight") == 0
    assert await asyncio.to_thread(gateway.metric, "switchyard_requests_total", outcome="ok") == STREAMS + 2
    assert "Traceback" not in gateway.output


async def _go(gateway: Serve, streams: dict[str, _Engine], wires: list[Wire], names: list[str]) -> float:
    """Open these streams, send pieces on all of them, end them; gives the most memory while they were open."""
    readers: dict[str, asyncio.Task[bytes]] = {}
    for begin in range(0, len(names), TOGETHER):
        for name in names[begin : begin + TOGETHER]:
            wire = await Wire.open(gateway.port)
            wires.append(wire)
            path, body = ask("chat", "hi " * 50, stream=True, user=name)
            await wire.send(request_bytes(path, body))
            readers[name] = asyncio.create_task(_read(wire))
        begun = names[: begin + TOGETHER]
        assert await until(lambda begun=begun: streams.keys() >= set(begun), 20)
    most_mb = memory_mb(gateway.process.pid)
    for number in range(ROUNDS):
        for name in names:
            streams[name].transport.write(chunk(_event(f"{name}.{number}")))
        await asyncio.sleep(0.2)
        most_mb = max(most_mb, memory_mb(gateway.process.pid))
    assert await asyncio.to_thread(gateway.metric, "switchyard_in_flight") == len(names)
    assert not any(reader.done() for reader in readers.values())
    for name in names:
        streams[name].transport.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
    async with asyncio.timeout(30):
        bodies = await asyncio.gather(*readers.values())
    for name, body in zip(names, bodies, strict=True):
        pieces = [_event("begin"), *(_event(f"{name}.{number}") for number in range(ROUNDS))]
        assert body == b"".join(pieces) + b"data: [DONE]\n\n", name
    return most_mb


async def _read(wire: Wire) -> bytes:
    answer = await wire.rest(await wire.head())
    assert answer.status == 200, answer.body
    assert answer.complete
    return answer.body
