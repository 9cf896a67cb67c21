"""Byte streams of many clients at once against a running gateway: all end, none reaches the engine but proper requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from integration.engine import GENERATION, Engine, reply
from integration.gateway import Gateway, policy, pool

from switchyard import app
from switchyard.api import protocol, server

from .headers import CREDENTIALS, HOP_BY_HOP, assert_sane
from .test_targets import grown
from .wire import read_answers

AT_ONCE = 40
EXAMPLES = 8
LIMIT_S = 0.5
ENDED_WITHIN_S = 12.0


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine("acme/m") as engine:
        yield engine


@pytest.fixture(scope="module")
def gateway(engine: Engine) -> Iterator[Gateway]:
    """A gateway that is as strict with slow clients as ever, only sooner."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HEAD_LIMIT_S", "BODY_STALL_S"):
            patch.setattr(protocol, name, LIMIT_S)
        for module in (protocol, server):
            patch.setattr(module, "KEEP_ALIVE_S", 1.0)
        patch.setattr(app, "CLIENT_SWEEP_S", LIMIT_S / 5)
        with Gateway(policy({"m": pool(engine)})) as gateway:
            yield gateway


async def _one_client(port: int, data: bytes) -> bytes:
    """Send the pieces, read to the end of the connection; never close first."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        at = 4
        with contextlib.suppress(ConnectionError):
            for size in (*data[1:4], len(data)):
                writer.write(data[at : at + size])
                await writer.drain()
                at += size
                await asyncio.sleep(0.002)
        got = b""
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(65536):
                got += piece
        return got
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def _all_clients(port: int, inputs: list[bytes]) -> list[bytes]:
    async with asyncio.timeout(ENDED_WITHIN_S):
        return await asyncio.gather(*(_one_client(port, data) for data in inputs))


@pytest.mark.timeout(120)
def test_any_bytes_over_a_socket(gateway: Gateway, engine: Engine) -> None:
    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), phases=[Phase.generate])  # minutes to shrink
    @given(st.lists(grown("front"), min_size=AT_ONCE, max_size=AT_ONCE))
    def hold(inputs: list[bytes]) -> None:
        engine.reset()
        engine.play(reply({"id": "x", "choices": [], "output": []}))
        for data, got in zip(inputs, asyncio.run(_all_clients(gateway.port, inputs)), strict=True):
            if b"HEAD" not in data:  # their answers announce a body that doesn't come
                read_answers(got)
        gateway.wait_idle()
        gateway.check()
        check_what_the_engine_got(engine)

    hold()


def check_what_the_engine_got(engine: Engine) -> None:
    """Whole requests of the data plane and probes, with one sane head each and nothing between them."""
    for request in engine.requests:
        assert request.path in GENERATION | {"/health", "/v1/models", "/openapi.json", "/metrics"} or request.path.startswith(
            "/v1/responses/"
        ), request
        for name in ("host", "content-length") if request.body else ("host",):
            assert len(request.all(name)) == 1, request
    for request in engine.work:
        names = {name.encode() for name, _ in request.headers}
        assert not names & (HOP_BY_HOP | CREDENTIALS | {b"expect"}), request
        for name, value in request.headers:
            assert_sane(name.encode("latin-1"), value.encode("latin-1"))
        if request.method == "POST" and not request.path.startswith("/v1/responses/"):
            assert json.loads(request.body.decode("utf-8", "surrogateescape"))["model"] == "acme/m", request
    assert not any(c._received for c in engine.connections), "half a request was sent to the engine"
