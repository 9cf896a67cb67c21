"""Five hundred clients of five keys queue for one engine, and half of them leave: order, fairness, and not one place lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from switchyard.config.secrets import Secrets

from .client import Connection, ask, eventually
from .engine import Engine, Gate, reply
from .gateway import Gateway, policy, pool

Start = Callable[..., Any]
KEYS = tuple(f"sk-{n}" for n in range(5))
CLIENTS = 500


def test_500_queued_clients_of_which_half_leave(start: Start, engine: Engine) -> None:
    limits = {"in_flight": 4, "queue": 600, "queue_timeout_s": 50}
    policy_ = policy({"small": pool(engine, limits=limits)}, api_keys_env="KEYS", admin_key_env="ADMIN")
    gateway = start(Gateway(policy_, keys=Secrets(KEYS, "admin")))
    gates = [Gate() for _ in range(4)]
    engine.play(*[[gate, *reply({})] for gate in gates], reply({}))
    random = Random(11)
    clients = [gateway.client(key) for key in KEYS]
    running = [clients[0].start(*ask("chat", f"first {n}")) for n in range(4)]
    engine.wait_for(4)
    # The first key is greedy: its requests all come before anybody else's.
    order = [KEYS[0]] * 100 + random.sample([k for k in KEYS[1:] for _ in range(100)], 400)
    waiting: list[tuple[str, int, Connection]] = []
    for number, key in enumerate(order):
        waiting.append((key, number, clients[KEYS.index(key)].start(*ask("chat", f"{KEYS.index(key)} {number}"))))
        if number % 50 == 49:
            eventually(lambda n=number: gateway.metric("switchyard_queued") == n + 1)
    leaving = {number for key in KEYS for number in random.sample([n for k, n, _ in waiting if k == key], 50)}
    for _, number, connection in waiting:
        if number in leaving:
            connection.leave()
    eventually(lambda: gateway.metric("switchyard_queued") == CLIENTS - len(leaving))
    for gate in gates:
        gate.open()
    assert [c.answer().status for c in running] == [200] * 4
    assert {c.answer().status for _, number, c in waiting if number not in leaving} == {200}
    seen = [r.json()["messages"][0]["content"].split() for r in engine.work[4:]]
    numbers = [int(number) for _, number in seen]
    assert len(seen) == CLIENTS - len(leaving)
    assert not leaving & set(numbers), "a client that left while queued never reaches an engine"
    for n in range(5):  # each key's own requests came in their order, but for those that run side by side
        mine = [number for (key, _), number in zip(seen, numbers, strict=True) if key == str(n)]
        assert all(abs(mine.index(v) - i) <= 4 for i, v in enumerate(sorted(mine)))
    for upto in (50, 100, 200):
        got = Counter(key for key, _ in seen[:upto])
        assert max(got.values()) / min(got.values()) <= 1.2, got
    gateway.wait_idle()
    assert [r.in_flight for p in gateway.inner.pools.values() for r in p.replicas] == [0]


def test_titles_and_what_calls_itself_background_wait_behind(start: Start, engine: Engine) -> None:
    gateway = start(Gateway(policy({"small": pool(engine, limits={"in_flight": 1})})))
    gate = Gate()
    engine.play([gate, *reply({})], reply({}))
    client = gateway.client()
    first = client.start(*ask("chat", "first"))
    engine.wait_for(1)
    told = [
        ("header", {}, [("x-switchyard-priority", "background")]),
        ("flex", {"service_tier": "flex"}, []),
        ("subagent", {}, [("x-openai-subagent", "review")]),
        ("person", {}, []),
    ]
    connections = [first]
    for number, (text, more, headers) in enumerate(told, 1):
        connections.append(client.start(*ask("chat", text, **more), headers))
        eventually(lambda n=number: gateway.metric("switchyard_queued") == n)
    gate.open()
    assert [c.answer().status for c in connections] == [200] * 5
    order = [r.json()["messages"][0]["content"] for r in engine.work]
    assert order[:2] == ["first", "person"]
    assert set(order[2:]) == {"header", "flex", "subagent"}


def test_a_greedy_key_can_t_keep_the_queue_for_itself(start: Start, engine: Engine) -> None:
    limits = {"in_flight": 1, "queue": 3}
    policy_ = policy({"small": pool(engine, limits=limits)}, api_keys_env="KEYS", admin_key_env="ADMIN")
    gateway = start(Gateway(policy_, keys=Secrets(("greedy", "modest"), "admin")))
    gate = Gate()
    engine.play([gate, *reply({})], reply({}))
    greedy, modest = gateway.client("greedy"), gateway.client("modest")
    connections = [greedy.start(*ask("chat"))]
    engine.wait_for(1)
    for n in range(3):
        connections.append(greedy.start(*ask("chat")))
        eventually(lambda n=n: gateway.metric("switchyard_queued") == n + 1)
    assert greedy.post(*ask("chat")).code == "pool_saturated"
    other = modest.start(*ask("chat"))
    turned_away = connections.pop().answer()
    assert (turned_away.status, turned_away.code) == (429, "pool_saturated")
    assert int(turned_away.header("retry-after") or 0) > 0
    gate.open()
    assert [c.answer().status for c in [*connections, other]] == [200] * 4
