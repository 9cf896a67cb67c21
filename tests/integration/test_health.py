"""Health is judged by real work first: an engine that answers its probes and no request is left, and comes back by working."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from .client import ask, eventually
from .engine import HANG, RESET, DeadPort, Engine, Gate, reply, sse, stream
from .figures import Figures
from .gateway import Gateway, policy, pool

Start = Callable[..., Any]
DEAD = {"error": {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "param": None, "code": 500}}
"""What vLLM sends in a stream when a rank dies; the stream then ends as any other."""


@pytest.fixture
def pair(start: Start, engine: Engine) -> tuple[Engine, Engine, Gateway]:
    """Two replicas that take turns, with little patience."""
    other = start(Engine())
    block = pool(engine, other, balance="round_robin", timeouts={"first_byte_s": 2, "idle_s": 2})
    return engine, other, start(Gateway(policy({"small": block})))


@pytest.mark.parametrize("how", ["silent", "status 500", "broken streams", "errors in streams"])
def test_a_replica_that_only_seems_well_is_left_and_comes_back(pair: tuple[Engine, Engine, Gateway], how: str) -> None:
    ill, _, gateway = pair
    client = gateway.client()
    ill.play(
        {
            "silent": [HANG],
            "status 500": reply({"error": {"message": "x", "type": "t", "code": 500}}, 500),
            "broken streams": stream(sse({"n": 1}), RESET),
            "errors in streams": stream(sse({"n": 1}, DEAD)),
        }[how]
    )
    answers = [client.post(*ask("chat", stream=True)) for _ in range(16)]
    failed = [a for a in answers if a.status != 200 or b"[DONE]" not in a.body or b"error" in a.body]
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


def test_an_error_in_a_stream_is_the_engine_s_word(pair: tuple[Engine, Engine, Gateway]) -> None:
    """It reaches the client as it is, and the record says that the answer broke off; a client's mistake is no fault."""
    ill, other, gateway = pair
    for engine in (ill, other):
        engine.play(stream(sse({"n": 1}, DEAD), sse("[DONE]")))
    answer = gateway.client().post(*ask("chat", stream=True))
    assert answer.events()[1:] == [("message", json.dumps(DEAD)), ("message", "[DONE]")]
    gateway.wait_idle()
    assert (gateway.record()["outcome"], gateway.record()["error"]) == ("broken", "upstream_broken")
    for engine in (ill, other):
        engine.play(stream(sse({"error": {"message": "bad", "type": "BadRequestError", "code": 400}})))
    for _ in range(8):
        gateway.client().post(*ask("chat", stream=True))
    gateway.wait_idle()
    assert (gateway.record()["outcome"], gateway.record()["error"]) == ("engine_error", "")
    assert gateway.metric("switchyard_replica_up") == 2


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


# ---- probes, figures, one token ----

FAULT = reply({"error": {"message": "x", "type": "t", "code": 500}}, 500)


def watched(start: Start, *engines: Engine, **health: Any) -> Gateway:
    """A gateway whose replicas take turns and are looked at often."""
    often = {"every_s": 0.1, "stall_s": 1.0, "token_every_s": 0} | health
    return start(Gateway(policy({"small": pool(*engines, balance="round_robin", health=often)})))


def state_of(gateway: Gateway, engine: Engine) -> tuple[str, str]:
    (found,) = gateway.client().get("/admin/pools").json()["pools"]
    return next((r["state"], r["reason"]) for r in found["replicas"] if r["url"] == engine.url)


def stays_ready(gateway: Gateway, engine: Engine, for_s: float) -> None:
    until_s = time.monotonic() + for_s
    while time.monotonic() < until_s:
        assert state_of(gateway, engine)[0] == "ready", state_of(gateway, engine)
        time.sleep(0.05)


@pytest.mark.parametrize("says", [2, 0], ids=["it says that it works on them", "it denies that it has work"])
def test_a_good_health_path_in_front_of_a_dead_engine_is_seen_through(start: Start, engine: Engine, says: int) -> None:
    """As when a peer rank dies: health 200, requests begin and never go on. No client has to run into a time-out."""
    other = start(Engine())
    figures = Figures(running=2, step=1).attach(engine)
    gateway = watched(start, engine, other)
    eventually(lambda: gateway.metric("switchyard_foreign_requests") == 2)
    figures.running, figures.step = says, 0
    engine.play([HANG])
    stuck = [gateway.client().start(*ask("chat")) for _ in range(2)]
    engine.wait_for()
    eventually(lambda: state_of(gateway, engine)[0] == "ejected")
    assert "nothing has moved for" in state_of(gateway, engine)[1]
    seen = len(engine.work)
    assert [gateway.client().post(*ask("chat")).status for _ in range(6)] == [200] * 6
    assert len(engine.work) <= seen + 1, "but for a token"
    engine.reset()
    figures.attach(engine).running = 0
    eventually(lambda: state_of(gateway, engine)[0] == "ready", 20)
    for connection in stuck:
        connection.leave()


def test_a_busy_engine_is_never_ejected(start: Start, engine: Engine) -> None:
    """Its health path is slow, its answers take for ever, but something moves."""
    figures = Figures(running=5, waiting=9, step=1).attach(engine)
    gateway = watched(start, engine, start(Engine()))
    engine.play_at("/health", [0.7, *reply(b"")])
    engine.play([HANG])
    connections = [gateway.client().start(*ask("chat")) for _ in range(2)]
    engine.wait_for()
    stays_ready(gateway, engine, 3.5)
    figures.step = 0
    eventually(lambda: state_of(gateway, engine)[0] == "ejected")  # that the test can tell
    for connection in connections:
        connection.leave()


@pytest.mark.parametrize("has_figures", [True, False])
def test_a_prefill_of_100_000_tokens_is_no_stall(start: Start, engine: Engine, has_figures: bool) -> None:
    """Nothing moves while it goes on, not even the health path of an engine that does both in one thread."""
    figures = Figures().attach(engine)
    if not has_figures:
        engine.play_at("/metrics", [HANG])
    gateway = watched(start, engine, start(Engine()))
    engine.play([HANG])
    long = [gateway.client().start(*ask("chat", "word " * 100_000)) for _ in range(2)]  # one of them comes here
    engine.wait_for()
    figures.running = 1
    engine.play_at("/health", [HANG])
    stays_ready(gateway, engine, 4)
    for connection in long:
        connection.leave()
    if not has_figures:  # that the test can tell: with the prompt gone, patience ends
        eventually(lambda: state_of(gateway, engine)[0] == "ejected")


def test_figures_that_are_always_zero_prove_nothing(start: Start, engine: Engine) -> None:
    """As behind a proxy that answers /metrics itself: a long answer without a stream is no stall."""
    Figures().attach(engine)
    gateway = watched(start, engine, start(Engine()))
    engine.play([HANG])
    connections = [gateway.client().start(*ask("chat")) for _ in range(2)]
    engine.wait_for()
    stays_ready(gateway, engine, 2.5)
    for connection in connections:
        connection.leave()


def test_an_engine_that_says_nothing_at_all_is_left(start: Start, engine: Engine) -> None:
    """As one that is stopped: the kernel takes connections, nobody answers. Found without any client."""
    gateway = watched(start, engine, start(Engine()))
    for path in ("/health", "/metrics"):
        engine.play_at(path, [HANG])
    eventually(lambda: state_of(gateway, engine)[0] == "ejected")
    assert "nothing has come from it for" in state_of(gateway, engine)[1]
    engine.reset()
    eventually(lambda: state_of(gateway, engine)[0] == "ready", 20)


def test_an_idle_replica_that_fails_is_found_before_a_client_finds_it(start: Start, engine: Engine) -> None:
    gateway = watched(start, engine, start(Engine()), token_every_s=0.5)
    eventually(lambda: any(r.path == "/v1/chat/completions" and r.json()["max_tokens"] == 1 for r in engine.work))
    assert state_of(gateway, engine)[0] == "ready"
    engine.play(FAULT)
    eventually(lambda: state_of(gateway, engine)[0] == "ejected")
    assert "one token: status 500" in state_of(gateway, engine)[1]
    engine.reset()
    eventually(lambda: state_of(gateway, engine)[0] == "ready", 20)


def test_an_engine_without_completions_is_asked_for_an_embedding(start: Start, engine: Engine) -> None:
    health = {"every_s": 0.1, "token_every_s": 0.3}
    start(Gateway(policy({"small": pool(engine, speaks=["embeddings"], health=health)})))
    assert engine.wait_for().path == "/v1/embeddings"


def test_without_token_probes_an_idle_replica_is_left_alone(start: Start, engine: Engine) -> None:
    gateway = watched(start, engine, start(Engine()))
    stays_ready(gateway, engine, 1)
    assert engine.work == []


def test_after_two_failures_a_token_takes_the_third_clients_place(start: Start, engine: Engine) -> None:
    other = start(Engine())
    gateway = watched(start, engine, other, token_every_s=60)
    engine.play(FAULT)
    answers = [gateway.client().post(*ask("chat")).status for _ in range(4)]
    assert answers.count(500) == 2
    eventually(lambda: state_of(gateway, engine)[0] == "ejected")


def test_an_engine_that_refuses_is_asked_last_until_its_time_is_over(start: Start, engine: Engine) -> None:
    """Retry-After is honoured by trying another first, and so its fast refusals attract nothing."""
    other = start(Engine())
    gateway = watched(start, engine, other)
    engine.play(reply({"error": {"message": "busy"}}, 503, [("content-type", "application/json"), ("retry-after", "20")]))
    assert [gateway.client().post(*ask("chat")).status for _ in range(10)] == [200] * 10
    assert len(engine.work) == 1
    assert state_of(gateway, engine)[0] == "ready"


def test_a_loading_engine_is_no_error_and_begins_slowly(start: Start, engine: Engine) -> None:
    other = start(Engine())
    engine.play_at("/health", reply(b"", 503))
    gateway = watched(start, engine, other)
    eventually(lambda: state_of(gateway, engine) == ("loading", "the engine says 503"))
    assert [gateway.client().post(*ask("chat")).status for _ in range(4)] == [200] * 4
    assert engine.work == []
    engine.reset()
    eventually(lambda: state_of(gateway, engine)[0] == "ready")
    (found,) = gateway.client().get("/admin/pools").json()["pools"]
    limits = {r["url"]: r["limit"] for r in found["replicas"]}
    assert limits[engine.url] < limits[other.url] == 48


def test_work_from_elsewhere_is_seen_and_ours_is_not_counted_twice(start: Start, engine: Engine) -> None:
    other = start(Engine())
    busy = Figures(running=6, waiting=2, step=1).attach(engine)
    Figures(step=1).attach(other)
    block = pool(engine, other, balance="least_tokens", health={"every_s": 0.1})
    gateway = start(Gateway(policy({"small": block})))
    eventually(lambda: gateway.metric("switchyard_foreign_requests") == 8)
    assert {gateway.client().post(*ask("chat")).replica for _ in range(6)} == {other.url.removeprefix("http://")}
    busy.running, busy.waiting = 3, 0
    gate = Gate()
    for each in (engine, other):
        each.play([gate, *reply({"choices": []})])
    held = [gateway.client().start(*ask("chat")) for _ in range(12)]
    eventually(lambda: len(engine.work) + len(other.work) >= 18)
    busy.running = len(engine.work)
    eventually(lambda: gateway.metric("switchyard_foreign_requests") == 0)
    gate.open()
    assert {connection.answer().status for connection in held} == {200}


def test_errors_name_the_machines(start: Start) -> None:
    with DeadPort() as dead:
        block = pool(model="m", replicas=[{"url": dead.url, "name": "qwen-3", "nodes": ["s5", "s6"]}])
        gateway = start(Gateway(policy({"small": block}), ready=False))
        message = gateway.client().post(*ask("chat")).json()["error"]["message"]
    assert "qwen-3 (on s5, s6) can't be reached" in message


def test_a_conversation_is_followed_by_hit_and_repin(start: Start, engine: Engine) -> None:
    other = start(Engine())
    gateway = start(Gateway(policy({"small": pool(engine, other)})))
    client = gateway.client()

    def turn() -> tuple[str | None, str | None]:
        path, body = ask("chat")
        answer = client.post(path, body, [("x-session-id", "s-1")])
        return answer.header("x-switchyard-affinity"), answer.replica

    first, second = turn(), turn()
    assert (first[0], second) == ("miss", ("hit", first[1]))
    (engine if engine.url.endswith(str(first[1])) else other).shut()
    moved = turn()
    assert (moved[0], moved[1] != first[1]) == ("repin", True)
    assert turn() == ("hit", moved[1])
    for result, count in {"miss": 1, "hit": 2, "repin": 1}.items():
        assert gateway.metric("switchyard_affinity_total", pool="small", result=result) == count
    assert gateway.record()["affinity"] == "hit"
