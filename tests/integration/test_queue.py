"""Places and queue: how many run, how many wait, what the others are told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from .client import Answer, ask, error_of, eventually
from .engine import HANG, Engine, Gate, reply, sse, stream
from .gateway import Gateway, policy, pool

Start = Callable[..., Any]


@pytest.fixture
def narrow(start: Start, engine: Engine) -> Gateway:
    """One place, two that may wait, for half a second."""
    limits = {"in_flight": 1, "queue": 2, "queue_timeout_s": 0.5}
    gateway: Gateway = start(Gateway(policy({"small": pool(engine, limits=limits)})))
    return gateway


@pytest.mark.parametrize("kind", ["chat", "messages", "responses"])
def test_a_full_queue_and_a_long_wait(narrow: Gateway, engine: Engine, kind: str) -> None:
    client = narrow.client()
    engine.play([HANG])
    running = client.start(*ask(kind))
    engine.wait_for(1)
    waiting = [client.start(*ask(kind)) for _ in range(2)]
    eventually(lambda: narrow.metric("switchyard_queued") == 2)
    refused = client.post(*ask(kind))
    assert (refused.status, refused.code) == (429, "pool_saturated")
    assert int(refused.header("retry-after") or 0) > 0
    error = error_of(kind, refused.json())
    assert error["type"] == "rate_limit_error"
    assert "small" in error["message"]
    for connection in waiting:
        answer = connection.answer()
        assert (answer.status, answer.code) == (503, "queue_timeout")
        assert int(answer.header("retry-after") or 0) > 0
        assert "0.5 s" in error_of(kind, answer.json())["message"]
    assert len(engine.work) == 1
    running.leave()
    narrow.wait_idle()
    engine.play()
    assert client.post(*ask(kind)).status == 200, "every place is free again"


def test_the_place_is_held_to_the_end_of_the_body(narrow: Gateway, engine: Engine) -> None:
    client = narrow.client()
    gate = Gate()
    engine.play(stream(sse({"n": 1}), gate, sse({"n": 2})), reply({"second": True}))
    first = client.start(*ask("chat", stream=True))
    begun = first.head()
    second = client.start(*ask("chat"))
    assert second.silent(0.2)
    assert len(engine.work) == 1
    assert narrow.metric("switchyard_in_flight") == 1
    gate.open()
    assert first.rest(begun).complete
    assert second.answer().json() == {"second": True}


def test_first_come_first_served(start: Start, engine: Engine) -> None:
    gateway = start(Gateway(policy({"small": pool(engine, limits={"in_flight": 1, "queue": 50, "queue_timeout_s": 20})})))
    client = gateway.client()
    gate = Gate()
    engine.play([gate, *reply({})], reply({}))
    connections = []
    for n in range(12):
        connections.append(client.start(*ask("chat", str(n))))
        if n:
            eventually(lambda n=n: gateway.metric("switchyard_queued") == n)
        else:
            engine.wait_for(1)
    gate.open()
    assert [c.answer().status for c in connections] == [200] * 12
    assert [r.json()["messages"][0]["content"] for r in engine.work] == [str(n) for n in range(12)]
    assert gateway.record()["ms"]["queue"] > 0


def test_no_queue_at_all(start: Start, engine: Engine) -> None:
    gateway = start(Gateway(policy({"small": pool(engine, limits={"in_flight": 1, "queue": 0})})))
    client = gateway.client()
    engine.play([HANG])
    client.start(*ask("chat"))
    engine.wait_for(1)
    assert client.post(*ask("chat")).status == 429


def test_pools_don_t_wait_for_each_other(start: Start, engine: Engine) -> None:
    other = start(Engine("acme/other"))
    limits = {"in_flight": 100, "queue": 100}
    gateway = start(Gateway(policy({"small": pool(engine, limits=limits), "other": pool(other)})))
    client = gateway.client()
    engine.play([HANG])
    for _ in range(120):
        client.start(*ask("chat", stream=True))
    engine.wait_for(100)
    eventually(lambda: gateway.metric("switchyard_queued", pool="small") == 20)
    begun = time.monotonic()
    assert client.post(*ask("chat", model="other")).status == 200
    assert time.monotonic() - begun < 10


def test_all_leave_at_once(start: Start, engine: Engine) -> None:
    """Those who run and those who wait: every place is free again."""
    gateway = start(Gateway(policy({"small": pool(engine, limits={"in_flight": 5, "queue": 100})})))
    client = gateway.client()
    engine.play([HANG])
    stuck = [client.start(*ask("chat", stream=True)) for _ in range(60)]
    engine.wait_for(5)
    eventually(lambda: gateway.metric("switchyard_queued") == 55)
    for connection in stuck:
        connection.leave()
    gateway.wait_idle()


def test_a_replica_that_comes_back_takes_from_the_queue(start: Start, engine: Engine) -> None:
    other = start(Engine())
    limits = {"in_flight": 1, "queue": 10, "queue_timeout_s": 10}
    gateway = start(Gateway(policy({"small": pool(engine, other, limits=limits)})))
    client = gateway.client()
    other.shut()
    eventually(lambda: gateway.metric("switchyard_replica_up") == 1)
    engine.play([HANG])
    held = client.start(*ask("chat"))
    engine.wait_for(1)
    waiting = client.start(*ask("chat"))
    eventually(lambda: gateway.metric("switchyard_queued") == 1)
    other.listen()
    assert waiting.answer().status == 200
    held.leave()


@pytest.mark.parametrize("balance", ["prefix", "least_tokens", "p2c", "round_robin", "random"])
def test_load_counts_from_the_choice_to_the_end(start: Start, engine: Engine, balance: str) -> None:
    """Twenty at once, each slow: both replicas get their part, whichever way the pool balances."""
    other = start(Engine())
    gateway = start(Gateway(policy({"small": pool(engine, other, balance=balance)})))
    client = gateway.client()
    gate = Gate()
    for e in (engine, other):
        e.play([gate, *reply({})])
    connections = [client.start(*ask("chat", f"{n}")) for n in range(20)]
    eventually(lambda: len(engine.work) + len(other.work) == 20)
    assert gateway.metric("switchyard_in_flight") == 20
    gate.open()
    assert all(c.answer().status == 200 for c in connections)
    least = {"round_robin": 10, "least_tokens": 8, "p2c": 4}.get(balance, 2)
    assert min(len(engine.work), len(other.work)) >= least
    gateway.wait_idle()


def test_many_at_once_and_some_leave(start: Start, engine: Engine) -> None:
    """Whatever comes and goes, every answer is the right one, and at the end everything is free."""
    limits = {"in_flight": 4, "queue": 200, "queue_timeout_s": 20}
    gateway = start(Gateway(policy({"small": pool(engine, limits=limits)})))
    engine.play(lambda r: [0.005, *reply({"echo": r.json()["messages"][0]["content"]})])
    wrong: list[Answer] = []

    def talk(who: int) -> None:
        client = gateway.client()
        for n in range(12):
            connection = client.start(*ask("chat", f"{who}-{n}"))
            if n % 4 == 3:
                connection.leave()
                continue
            answer = connection.answer()
            if answer.status != 200 or answer.json() != {"echo": f"{who}-{n}"}:
                wrong.append(answer)
            connection.leave()

    threads = [threading.Thread(target=talk, args=(who,)) for who in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    gateway.wait_idle()


def test_more_connections_than_allowed(start: Start, engine: Engine) -> None:
    gateway = start(Gateway(policy({"small": pool(engine)}, max_connections=5)))
    client = gateway.client()
    eventually(lambda: not gateway.inner.door.connections)
    kept = [client.start(*ask("chat")) for _ in range(5)]
    assert [c.answer().status for c in kept] == [200] * 5
    one_more = client.start(*ask("chat"), timeout_s=3)
    assert one_more.answer().status == 503
    kept[0].leave()
    eventually(lambda: client.post(*ask("chat")).status == 200)
    kept[1].ask(*ask("chat"))
    assert kept[1].answer().status == 200
