"""Several gateways on one real Redis: they agree on conversations, places, limits, replicas, and go on without it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from redis_server import RedisServer

from switchyard.config.secrets import Secrets

from .client import ask, eventually
from .engine import Engine
from .gateway import Gateway, Json, policy, pool

Start = Callable[..., Any]
KEYS = Secrets(("one", "two"), "admin")
BUDGET_MS = 250  # generous, since other load must not decide what these tests see


def shared(redis: RedisServer, pools: dict[str, Json], routes: dict[str, Json] | None = None, **server: Any) -> Json:
    return policy(pools, routes, state=redis.url, state_budget_ms=BUDGET_MS, **server)


def two(start: Start, policy_: Json, **how: Any) -> tuple[Gateway, Gateway]:
    pair = start(Gateway(policy_, **how)), start(Gateway(policy_, **how))
    for gateway in pair:
        eventually(lambda g=gateway: g.metric("switchyard_state_up") == 1)
    return pair


def test_a_conversation_that_one_has_decided_stays_where_it_is_at_the_other(
    start: Start, redis: RedisServer, engine: Engine
) -> None:
    big = start(Engine("acme/big"))
    rules = [{"when": {"header.x-hard": "yes"}, "use": "big", "for": "5 turns"}]
    route = {"rules": rules, "choose": [{"use": "small"}]}
    a, b = two(start, shared(redis, {"small": pool(engine), "big": pool(big)}, {"auto": route}))
    named = [("x-switchyard-session-id", "talk-1")]
    assert a.client().post(*ask("chat", model="auto"), [*named, ("x-hard", "yes")]).pool == "big"
    answer = b.client().post(*ask("chat", model="auto"), named)
    assert answer.pool == "big"
    assert "holds the session" in answer.reason
    told = b.client().post("/v1/decision", ask("chat", model="auto")[1], named).json()
    assert told["pool"] == "big"
    assert b.client().post(*ask("chat", model="auto"), [("x-switchyard-session-id", "talk-2")]).pool == "small"


def test_a_stored_response_is_found_by_the_other(start: Start, redis: RedisServer) -> None:
    engines = [start(Engine()) for _ in range(3)]
    a, b = two(start, shared(redis, {"small": pool(*engines, balance="random")}))
    for _ in range(6):
        first = a.client().post(*ask("responses"))
        follow = b.client().post(*ask("responses", previous_response_id=first.json()["id"]))
        assert follow.replica == first.replica
        assert "stored there" in follow.reason
    got = b.client().get(f"/v1/responses/{first.json()['id']}")
    assert (got.status, got.replica) == (200, first.replica)


def test_limits_count_for_all(start: Start, redis: RedisServer, engine: Engine) -> None:
    limits = {"default": {"requests_per_minute": 40}}
    policy_ = shared(redis, {"small": pool(engine)}, api_keys_env="KEYS", admin_key_env="ADMIN", limits=limits)
    pair = two(start, policy_, keys=KEYS)
    clients = [gateway.client("one") for gateway in pair]
    statuses = Counter(clients[n % 2].post(*ask("chat")).status for n in range(60))
    assert statuses == {200: 40, 429: 20}
    assert pair[1].client("two").post(*ask("chat")).status == 200


def test_a_judge_s_answer_is_asked_for_once(start: Start, redis: RedisServer, engine: Engine) -> None:
    judge, big = start(Engine("acme/judge")), start(Engine("acme/big"))
    route = {
        "classify": [{"type": "model", "pool": "judge", "deadline_ms": 5000}],
        "choose": [{"p_at_least": 0.5, "use": "small"}, {"use": "big"}],
        "decide_per": "request",
    }
    pools = {"small": pool(engine), "big": pool(big), "judge": pool(judge)}
    a, b = two(start, shared(redis, pools, {"auto": route}))
    assert a.client().post(*ask("chat", "the same words", "auto")).pool == "small"
    a.wait_idle()
    assert b.client().post(*ask("chat", "the same words", "auto")).pool == "small"
    assert len(judge.work) == 1
    assert b.metric("switchyard_classifier_questions_total", result="cached") == 1


def test_an_ejection_and_a_drain_reach_the_other(start: Start, redis: RedisServer) -> None:
    engines = [start(Engine()) for _ in range(3)]
    a, b = two(start, shared(redis, {"small": pool(*engines, balance="random")}))
    label = engines[0].url.removeprefix("http://")

    def state_at(gateway: Gateway) -> str:
        return gateway.ready().json()["pools"]["small"]["replicas"][label]["state"]

    assert a.client().post(f"/admin/pools/small/replicas/{label}/drain").status == 200
    eventually(lambda: state_at(b) == "draining")
    late = start(Gateway(shared(redis, {"small": pool(*engines, balance="random")})))
    eventually(lambda: state_at(late) == "draining")
    redis.command("FLUSHALL")
    later = start(Gateway(shared(redis, {"small": pool(*engines, balance="random")})))
    eventually(lambda: state_at(later) == "draining")
    assert b.client().post(f"/admin/pools/small/replicas/{label}/undrain").status == 200
    for gateway in (a, late, later):
        eventually(lambda g=gateway: state_at(g) == "ready")
    engines[0].play([b"HTTP/1.1 500 broken\r\ncontent-length: 0\r\n\r\n"])
    body = {"model": "small", "prompt": "hi", "max_tokens": 1}
    eventually(lambda: a.client().post("/v1/completions", body) and state_at(a) == "ejected")
    eventually(lambda: state_at(b) == "ejected")
    engines[0].play()
    for gateway in (a, b):
        eventually(lambda g=gateway: state_at(g) == "ready", 20)


def late(gateway: Gateway) -> float:
    return gateway.metric("switchyard_state_questions_total", result="late")


@pytest.mark.parametrize("how", ["killed", "hung"])
def test_redis_goes_for_a_while_under_load_and_no_request_fails(start: Start, engine: Engine, how: str) -> None:
    with RedisServer() as redis:
        limits = {"default": {"requests_per_minute": 100_000, "concurrent_requests": 100}}
        pair = two(start, policy({"small": pool(engine)}, state=redis.url, limits=limits))
        results: list[tuple[int, float]] = []
        ended = threading.Event()

        def load(gateway: Gateway, number: int) -> None:
            client, count = gateway.client(), 0
            while not ended.is_set():
                count += 1
                began = time.monotonic()
                answer = client.post(*ask("chat"), [("x-switchyard-session-id", f"{number}-{count % 5}")])
                results.append((answer.status, time.monotonic() - began))
                time.sleep(0.02)

        threads = [threading.Thread(target=load, args=(pair[n % 2], n)) for n in range(6)]
        for thread in threads:
            thread.start()
        try:
            time.sleep(1)
            redis.pause() if how == "hung" else redis.kill()
            for gateway in pair:
                eventually(lambda g=gateway: g.metric("switchyard_state_up") == 0)
            waited = [late(gateway) for gateway in pair]
            time.sleep(6)
            assert [late(gateway) for gateway in pair] == waited, "while it is gone nobody waits"
            assert all(g.ready().status == 200 for g in pair)
            redis.resume() if how == "hung" else redis.start()
            for gateway in pair:
                eventually(lambda g=gateway: g.metric("switchyard_state_up") == 1)
            before = [g.metric("switchyard_state_questions_total", result="answered") for g in pair]
            for gateway, count in zip(pair, before, strict=True):
                eventually(lambda g=gateway, c=count: g.metric("switchyard_state_questions_total", result="answered") > c)
        finally:
            ended.set()
            for thread in threads:
                thread.join()
        assert Counter(status for status, _ in results) == {200: len(results)}
        assert len(results) > 200
        for gateway in pair:
            assert "shared" in gateway.ready().json()["state"]
