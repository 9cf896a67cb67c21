"""Health is judged by real work first: an engine that answers its probes and no request is left, and comes back by working."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .client import ask, eventually
from .engine import HANG, RESET, Engine, reply, sse, stream
from .gateway import Gateway, policy, pool

Start = Callable[..., Any]


@pytest.fixture
def pair(start: Start, engine: Engine) -> tuple[Engine, Engine, Gateway]:
    """Two replicas that take turns, with little patience."""
    other = start(Engine())
    block = pool(engine, other, balance="round_robin", timeouts={"first_byte_s": 0.3, "idle_s": 0.5})
    return engine, other, start(Gateway(policy({"small": block})))


@pytest.mark.parametrize("how", ["silent", "status 500", "broken streams"])
def test_a_replica_that_only_seems_well_is_left_and_comes_back(pair: tuple[Engine, Engine, Gateway], how: str) -> None:
    ill, _, gateway = pair
    client = gateway.client()
    ill.play(
        {
            "silent": [HANG],
            "status 500": reply({"error": {"message": "x", "type": "t", "code": 500}}, 500),
            "broken streams": stream(sse({"n": 1}), RESET),
        }[how]
    )
    answers = [client.post(*ask("chat", stream=True)) for _ in range(16)]
    failed = [a for a in answers if a.status != 200 or b"[DONE]" not in a.body]
    assert len(failed) <= 4
    assert failed != []
    assert all(a.status == 200 for a in answers[-6:])
    assert gateway.metric("switchyard_replica_up") == 1
    assert any(r.path == "/health" for r in ill.requests), "its probes are fine all the while"
    ill.reset()

    def works_again() -> bool:
        assert client.post(*ask("chat")).status == 200
        return bool(ill.work)

    eventually(works_again, 20)
    eventually(lambda: gateway.metric("switchyard_replica_up") == 2, 20)


def test_clients_mistakes_and_departures_count_for_nothing(pair: tuple[Engine, Engine, Gateway]) -> None:
    gateway = pair[2]
    client = gateway.client()
    for engine in pair[:2]:
        engine.play(reply({"error": {"message": "bad", "type": "t", "param": None, "code": 400}}, 400))
    for _ in range(10):
        assert client.post(*ask("chat")).status == 400
    for engine in pair[:2]:
        engine.reset()
        engine.play([HANG])
    for _ in range(10):
        client.start(*ask("chat")).leave()
    gateway.wait_idle()
    assert gateway.metric("switchyard_replica_up") == 2


def test_the_last_replica_is_never_taken_out(start: Start, engine: Engine) -> None:
    """Better a doubtful one than none."""
    gateway = start(Gateway(policy({"small": pool(engine)})))
    client = gateway.client()
    engine.play(reply({"error": {"message": "x", "type": "t", "code": 500}}, 500))
    for _ in range(6):
        assert client.post(*ask("chat")).status == 500
    engine.play()
    assert client.post(*ask("chat")).status == 200
