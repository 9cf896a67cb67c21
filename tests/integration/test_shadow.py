"""`shadow` over sockets: clients notice nothing, the big pool is asked only while idle, and what remains are counts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from switchyard.shadowing import MAX_ANSWER_BYTES, MAX_REQUEST_BYTES, MOST_COPIES

from .client import PATHS, Client, ask, eventually
from .engine import HANG, RESET, DeadPort, Engine, Gate, head, reply, stream
from .gateway import Gateway, Json, policy, pool
from .test_tool_check import STREAMS, WHOLES

Start = Callable[..., Any]
PARIS, SAME_PARIS, ROME = '{"city": "Paris", "n": 1}', '{"n":1.0,\n"city":"Paris"}', '{"city": "Rome", "n": 1}'


def route(**shadow: Any) -> Json:
    return {
        "classify": [{"type": "embedded"}], "choose": [{"p_at_least": 0.0, "use": "small"}, {"use": "big"}],
        "decide_per": "request", "otherwise": "small", "shadow": {"share": 1.0, **shadow},
    }  # fmt: skip


@pytest.fixture
def engines() -> Iterator[tuple[Engine, Engine]]:
    with Engine("acme/small") as small, Engine("acme/big") as big:
        yield small, big


@pytest.fixture
def gateway(engines: tuple[Engine, Engine]) -> Iterator[Gateway]:
    small, big = engines
    with Gateway(policy({"small": pool(small), "big": pool(big)}, {"auto": route()})) as running:
        yield running


def results(gateway: Gateway) -> Json:
    found = Client(gateway.port).get("/admin/shadows").json()
    return found[0]["results"] if found else {}


def wait_for(gateway: Gateway, **wanted: int) -> Json:
    eventually(lambda: results(gateway) == wanted)
    return Client(gateway.port).get("/admin/shadows").json()[0]


# ---- what is compared ----


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("protocol", STREAMS)
@pytest.mark.parametrize(("big_says", "result"), [(SAME_PARIS, "same"), (ROME, "different"), (None, "different")])
def test_calls_are_compared_by_value(
    engines: tuple[Engine, Engine], gateway: Gateway, protocol: str, streamed: bool, big_says: str | None, result: str
) -> None:
    for engine, arguments in zip(engines, (PARIS, big_says), strict=True):
        if streamed:
            engine.play(stream(STREAMS[protocol]("Let me look.", arguments)))
        else:
            engine.play(reply(WHOLES[protocol]("Let me look.", arguments)))
    path, body = ask(protocol, model="auto", stream=streamed)
    answer = gateway.client().post(path, body, [("authorization", "Bearer of-the-client")])
    assert (answer.status, answer.pool) == (200, "small")
    told = (
        STREAMS[protocol]("Let me look.", PARIS) if streamed else json.dumps(WHOLES[protocol]("Let me look.", PARIS)).encode()
    )
    assert answer.body == told
    found = wait_for(gateway, **{result: 1})
    assert (found["route"], found["small"], found["big"]) == ("auto", "small", "big")
    agreement = found["agreement"]["tool_calls"]
    assert (agreement["compared"], agreement["same"]) == (1, int(result == "same"))
    assert 0 <= agreement["interval"][0] < agreement["interval"][1] <= 1
    shadow = engines[1].last
    asked = shadow.json()
    assert (asked["model"], asked.get("stream")) == ("acme/big", streamed)
    assert asked.get("store") is (False if protocol == "responses" else None)
    assert shadow.header("authorization") is None
    assert shadow.arrived_s >= engines[0].last.arrived_s
    assert gateway.record()["pool"] == "small"
    assert len(gateway.decisions()) == 1, "a shadow is no request of a client"


def test_short_texts_are_compared_and_long_ones_are_not(engines: tuple[Engine, Engine], gateway: Gateway) -> None:
    client = gateway.client()
    engines[0].play(reply(WHOLES["chat"]("The answer is 42.", None)))
    engines[1].play(reply(WHOLES["chat"]("**The answer is**: 42", None)))
    client.post(*ask("chat", model="auto"))
    wait_for(gateway, same=1)
    engines[1].play(reply(WHOLES["chat"]("43", None)))
    client.post(*ask("chat", model="auto"))
    wait_for(gateway, same=1, different=1)
    engines[1].play(reply(WHOLES["chat"]("word " * 100, None)))
    client.post(*ask("chat", model="auto"))
    found = wait_for(gateway, same=1, different=1, not_compared=1)
    assert (found["agreement"]["text"]["compared"], found["agreement"]["text"]["share"]) == (2, 0.5)
    assert found["tokens"] == {"input": 27, "output": 12}
    assert found["seconds"] > 0
    assert gateway.metric("switchyard_shadows_total", route="auto", result="same") == 1
    assert gateway.metric("switchyard_shadow_tokens_total", kind="input") == 27
    for result in ("same", "different"):
        assert gateway.metric("switchyard_shadows_compared_total", kind="text", result=result) == 1
    assert 0 < found["agreement"]["text"]["interval"][0] < 0.5 < found["agreement"]["text"]["interval"][1] < 1


# ---- nobody notices ----


def test_it_begins_when_the_client_has_its_answer(engines: tuple[Engine, Engine], gateway: Gateway) -> None:
    gate = Gate()
    first, last = STREAMS["chat"]("one", None).split(b"\n\n", 1)
    engines[0].play(stream(first + b"\n\n", gate, last))
    running = gateway.client().start(*ask("chat", model="auto", stream=True))
    running.read_until(b"chat.completion.chunk")
    assert engines[1].work == []
    gate.open()
    running.read_until(b"[DONE]")
    engines[1].wait_for(1)
    assert engines[0].last.done.is_set()


def test_a_big_pool_that_hangs_delays_nobody_and_is_left_when_somebody_comes(
    engines: tuple[Engine, Engine], gateway: Gateway
) -> None:
    _, big = engines
    client = gateway.client()
    big.play([HANG], reply(WHOLES["chat"]("for the client", None)))
    assert client.post(*ask("chat", model="auto")).status == 200
    shadow = big.wait_for(1)
    assert client.post(*ask("chat", model="auto")).status == 200  # small goes on as ever
    wait_for(gateway, busy=1)  # the limit is one
    assert not shadow.gone.is_set()
    answer = client.post(*ask("chat", model="big"))
    assert (answer.status, answer.pool) == (200, "big")
    assert shadow.gone.wait(20)
    wait_for(gateway, busy=1, left=1)
    assert len(big.work) == 2


def test_it_is_dropped_while_the_big_pool_has_anything_to_do(engines: tuple[Engine, Engine], gateway: Gateway) -> None:
    gate = Gate()
    engines[1].play([gate, *reply(WHOLES["chat"]("late", None))])
    client = gateway.client()
    running = client.start(*ask("chat", model="big"))
    engines[1].wait_for(1)
    for _ in range(3):
        assert client.post(*ask("chat", model="auto")).pool == "small"
    wait_for(gateway, busy=3)
    gate.open()
    assert running.answer().status == 200
    assert len(engines[1].work) == 1


def test_it_is_dropped_while_somebody_waits_for_the_big_pool(start: Start, engines: tuple[Engine, Engine]) -> None:
    small, big = engines
    gate = Gate()
    big.play([gate, *reply(WHOLES["chat"]("late", None))])
    one = pool(big, limits={"in_flight": 1, "queue": 5, "queue_timeout_s": 20})
    gateway: Gateway = start(Gateway(policy({"small": pool(small), "big": one}, {"auto": route()})))
    running = [gateway.client().start(*ask("chat", model="big")) for _ in range(2)]
    eventually(lambda: gateway.metric("switchyard_queued", pool="big") == 1)
    assert gateway.client().post(*ask("chat", model="auto")).pool == "small"
    wait_for(gateway, busy=1)
    gate.open()
    assert [connection.answer().status for connection in running] == [200, 200]


@pytest.mark.parametrize("fault", [[RESET], [head(200, length=100) + b"{", RESET], reply({"error": "x"}, 500)])
def test_a_broken_big_pool_does_no_harm(engines: tuple[Engine, Engine], gateway: Gateway, fault: Any) -> None:
    engines[1].play(fault)
    client = gateway.client()
    for n in range(1, 6):
        assert client.post(*ask("chat", model="auto")).status == 200
        wait_for(gateway, failed=n)
    assert gateway.metric("switchyard_replica_up", pool="big") == 1, "it is no evidence about a replica's health"
    assert gateway.metric("switchyard_errors_total") == 0


def test_a_dead_big_pool_does_no_harm(start: Start, engines: tuple[Engine, Engine]) -> None:
    dead = start(DeadPort())
    gateway: Gateway = start(Gateway(policy({"small": pool(engines[0]), "big": pool(dead)}, {"auto": route()})))
    client = gateway.client()
    for _ in range(3):
        assert client.post(*ask("chat", model="auto")).pool == "small"
    eventually(lambda: sum(results(gateway).values()) == 3)
    assert set(results(gateway)) <= {"busy", "failed"}


def test_a_gateway_that_ends_ends_its_shadows(engines: tuple[Engine, Engine]) -> None:
    small, big = engines
    big.play([HANG])
    with Gateway(policy({"small": pool(small), "big": pool(big)}, {"auto": route()}, drain_s=20)) as gateway:
        assert gateway.client().post(*ask("chat", model="auto")).status == 200
        shadow = big.wait_for(1)
        gateway.close_clients()
        gateway.terminate()
        eventually(lambda: gateway.stopped, 5)  # well before drain_s: nothing waits for a shadow
        assert shadow.gone.wait(20)


# ---- what has none ----


def test_off_by_default_and_only_for_the_small_pools_own_answers(start: Start, engines: tuple[Engine, Engine]) -> None:
    small, big = engines
    plain = {name: value for name, value in route().items() if name != "shadow"}
    gateway: Gateway = start(Gateway(policy({"small": pool(small), "big": pool(big)}, {"auto": plain, "watched": route()})))
    client = gateway.client()
    client.post(*ask("chat", model="auto"))
    client.post(*ask("chat", model="small"))
    client.post(*ask("chat", model="watched"), [("x-switchyard-pool", "big")])
    client.post(PATHS["count"], ask("count", model="watched")[1])
    client.post(*ask("completions", model="watched"))
    client.post(*ask("responses", model="watched", previous_response_id="resp_unknown"))
    assert len(big.work) == 1  # the one that asked for it
    assert results(gateway) == {}
    client.post(*ask("chat", model="watched"))
    wait_for(gateway, same=1)


def test_long_requests_are_not_kept_and_long_answers_not_compared(engines: tuple[Engine, Engine], gateway: Gateway) -> None:
    client = gateway.client()
    assert client.post(*ask("chat", "x" * MAX_REQUEST_BYTES, "auto")).status == 200
    assert client.post(*ask("chat", model="auto")).status == 200
    wait_for(gateway, same=1)
    long = STREAMS["chat"]("y" * MAX_ANSWER_BYTES, None)
    engines[0].play(stream(long))
    answer = client.post(*ask("chat", model="auto", stream=True))
    assert answer.body == long
    wait_for(gateway, same=1, not_compared=1)
    assert len(engines[1].work) == 1
    engines[0].play(reply(WHOLES["chat"]("short", None)))
    engines[1].play(reply(WHOLES["chat"]("y" * MAX_ANSWER_BYTES, None)))
    assert client.post(*ask("chat", model="auto")).status == 200
    wait_for(gateway, same=1, not_compared=2)


def test_only_a_share_is_sampled(start: Start, engines: tuple[Engine, Engine]) -> None:
    small, big = engines
    gateway: Gateway = start(
        Gateway(policy({"small": pool(small), "big": pool(big)}, {"auto": route(share=0.2, concurrency=64)}))
    )
    client = gateway.client()
    for _ in range(200):
        client.post(*ask("chat", model="auto"))
    eventually(lambda: sum(results(gateway).values()) > 0)
    assert 15 <= sum(results(gateway).values()) <= 70
    assert len(big.work) <= 70


def test_no_text_is_logged_or_kept(engines: tuple[Engine, Engine], gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    engines[1].play([RESET])
    gateway.client().post(*ask("chat", "a secret of the client", "auto"))
    wait_for(gateway, failed=1)
    assert "secret" not in caplog.text
    assert "secret" not in json.dumps(gateway.decisions()) + Client(gateway.port).get("/metrics").body.decode()
    assert gateway.inner._shadowing._tasks == {}
    assert all(not p.guests for p in gateway.inner.pools.values())


def test_memory_is_bounded_whatever_runs_at_the_same_time(engines: tuple[Engine, Engine], gateway: Gateway) -> None:
    gate = Gate()
    first, last = STREAMS["chat"]("one", None).split(b"\n\n", 1)
    engines[0].play(stream(first + b"\n\n", gate, last))
    running = [gateway.client().start(*ask("chat", model="auto", stream=True)) for _ in range(2 * MOST_COPIES)]
    for connection in running:
        connection.read_until(b"chat.completion.chunk")
    assert len(gateway.inner._shadowing._copies) == MOST_COPIES
    gate.open()
    for connection in running:
        connection.read_until(b"[DONE]")
    eventually(lambda: sum(results(gateway).values()) == MOST_COPIES)
    eventually(lambda: not gateway.inner._shadowing._copies)
