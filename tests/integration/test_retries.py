"""A request is tried again only where the engine can't have begun: a refused connection, or a kept one that had died."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from .client import ask, error_of, eventually
from .engine import CLOSE, HANG, RESET, DeadPort, DeafPort, Engine, head, named, reply, sse, stream
from .gateway import Gateway, policy, pool

Start = Callable[..., Any]
FIRST_BYTE = {"first_byte_s": 1.5, "connect_s": 1}


def attempts(gateway: Gateway) -> list[str]:
    return gateway.record()["attempts"]


def test_a_refused_replica_is_passed_over(start: Start, engine: Engine) -> None:
    dead = start(DeadPort())
    gateway = start(Gateway(policy({"small": pool(dead, engine, model="m", balance="round_robin")})))
    client = gateway.client()
    for _ in range(6):
        answer = client.post(*ask("chat"))
        assert (answer.status, answer.replica) == (200, engine.url.removeprefix("http://"))
    assert len(engine.work) == 6


def test_a_replica_that_dies_between_requests_is_passed_over(start: Start, engine: Engine) -> None:
    """Before any probe has seen it: the request itself finds out, and its record names both tries."""
    other = start(Engine())
    block = pool(engine, other, balance="round_robin", health={"every_s": 60})
    gateway = start(Gateway(policy({"small": block})))
    client = gateway.client()
    assert {client.post(*ask("chat")).replica for _ in range(4)} == {e.url.removeprefix("http://") for e in (engine, other)}
    other.shut()
    assert [client.post(*ask("chat")).status for _ in range(4)] == [200] * 4
    assert max(len(r["attempts"]) for r in gateway.decisions()) == 2
    assert gateway.metric("switchyard_replica_up", replica=other.url.removeprefix("http://")) == 0


def test_it_comes_back_by_itself(start: Start, engine: Engine) -> None:
    gateway = start(Gateway(policy({"small": pool(engine)})))
    client = gateway.client()
    engine.shut()
    answer = client.post(*ask("chat"))
    assert (answer.status, answer.code) == (502, "upstream_unreachable")
    assert int(answer.header("retry-after") or 0) > 0
    engine.listen()
    eventually(lambda: gateway.metric("switchyard_replica_up") == 1)
    assert client.post(*ask("chat")).status == 200


@pytest.mark.parametrize("kind", ["chat", "messages", "responses", "embeddings"])
def test_when_all_are_dead_the_error_says_so(start: Start, kind: str) -> None:
    one, two = start(DeadPort()), start(DeadPort())
    gateway = start(Gateway(policy({"small": pool(one, two)}), ready=False))
    answer = gateway.client().post(*ask(kind))
    assert (answer.status, answer.code) == (502, "upstream_unreachable")
    error = error_of(kind, answer.json())
    assert "small" in error["message"]
    assert "2 replicas" in error["message"]
    assert len(attempts(gateway)) == 2


def test_a_port_that_takes_no_connection(start: Start, engine: Engine) -> None:
    deaf = start(DeafPort())
    block = pool(deaf, engine, model="m", balance="round_robin", timeouts=FIRST_BYTE)
    gateway = start(Gateway(policy({"small": block, "alone": pool(deaf, timeouts=FIRST_BYTE)}), ready=False))
    client = gateway.client()
    assert [client.post(*ask("chat")).status for _ in range(3)] == [200] * 3
    answer = client.post(*ask("chat", model="alone"))
    assert (answer.status, answer.code) == (504, "upstream_timeout")


@pytest.mark.parametrize("end", [CLOSE, RESET], ids=["close", "reset"])
def test_a_kept_connection_that_died_is_replaced_once(start: Start, engine: Engine, end: Any) -> None:
    gateway = start(Gateway(policy({"small": pool(engine)})))
    client = gateway.client()
    fine = reply({"ok": True})
    engine.play(fine, [end], fine)
    assert client.post(*ask("chat", "one")).status == 200
    path, body = ask("chat", "two")
    answer = client.post(path, body)
    assert (answer.status, answer.json()) == (200, {"ok": True})
    first, died, again = engine.work
    assert first.connection == died.connection != again.connection
    assert died.body == again.body


def test_a_fresh_connection_that_dies_is_not_tried_again(start: Start, engine: Engine) -> None:
    gateway = start(Gateway(policy({"small": pool(engine)})))
    engine.play([CLOSE])
    answer = gateway.client().post(*ask("chat"))
    assert (answer.status, answer.code) == (502, "upstream_unreachable")
    assert len(engine.work) == 1


def test_two_dead_connections_are_the_end(start: Start, engine: Engine) -> None:
    other = start(Engine())
    gateway = start(Gateway(policy({"small": pool(engine)})))
    client = gateway.client()
    engine.play(reply({}), [CLOSE])
    client.post(*ask("chat"))
    answer = client.post(*ask("chat"))
    assert (answer.status, answer.code) == (502, "upstream_unreachable")
    assert len(engine.work) == 3
    assert other.work == []


def test_an_engine_that_closes_idle_connections(start: Start, engine: Engine) -> None:
    """Requests that meet the very moment of the close succeed all the same."""
    gateway = start(Gateway(policy({"small": pool(engine)})))
    client = gateway.client()
    engine.play(lambda _: [*reply({}), 0.05, CLOSE])
    connection = client.open()
    for n in range(40):
        connection.ask(*ask("chat"))
        assert connection.answer().status == 200, n
        connection.silent(0.04 + 0.0005 * n)


def test_after_a_first_byte_never(start: Start, engine: Engine) -> None:
    """Be it on a kept connection: a byte came, so it had begun."""
    other = start(Engine())
    gateway = start(Gateway(policy({"small": pool(engine, other, balance="round_robin")})))
    client = gateway.client()
    fine = reply({"ok": True})
    for e in (engine, other):
        e.play(fine, [b"HTTP/1.1 200 OK\r\ncont", CLOSE])
    for _ in range(2):
        assert client.post(*ask("chat")).status == 200
    for _ in range(2):
        answer = client.post(*ask("chat"))
        assert (answer.status, answer.code) == (502, "upstream_unreachable")
    assert (len(engine.work), len(other.work)) == (2, 2)


def test_a_broken_stream_is_not_begun_anew(start: Start, engine: Engine) -> None:
    other = start(Engine())
    gateway = start(Gateway(policy({"small": pool(engine, other)})))
    for e in (engine, other):
        e.play(stream(sse({"n": 1}), RESET))
    answer = gateway.client().post(*ask("chat", stream=True))
    assert answer.status == 200
    assert answer.body.startswith(sse({"n": 1}))
    assert len(engine.work) + len(other.work) == 1


@pytest.mark.parametrize("stream_", [False, True])
@pytest.mark.parametrize("kind", ["chat", "messages", "responses"])
def test_a_first_byte_that_is_late_is_not_tried_again(start: Start, engine: Engine, kind: str, stream_: bool) -> None:
    """The engine may have prefilled for minutes: another one would begin from nothing."""
    other = start(Engine())
    gateway = start(Gateway(policy({"small": pool(engine, other, timeouts=FIRST_BYTE)})))
    for e in (engine, other):
        e.play([HANG])
    answer = gateway.client().post(*ask(kind, stream=stream_))
    assert (answer.status, answer.code) == (504, "upstream_timeout")
    assert "1.5 s" in error_of(kind, answer.json())["message"]
    assert len(engine.work) + len(other.work) == 1
    assert (engine.work or other.work)[0].gone.wait(20)


@pytest.mark.parametrize("status", [400, 401, 404, 422, 500, 502, 504])
def test_an_engines_refusal_is_final(start: Start, engine: Engine, status: int) -> None:
    other = start(Engine())
    gateway = start(Gateway(policy({"small": pool(engine, other)})))
    for e in (engine, other):
        e.play(reply({"error": {"message": "no", "type": "t", "param": None, "code": status}}, status))
    answer = gateway.client().post(*ask("chat"))
    assert answer.status == status
    assert answer.json()["error"]["message"] == "no"
    assert len(engine.work) + len(other.work) == 1


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_engine_is_worth_another_try(start: Start, engine: Engine, status: int) -> None:
    """It says that it did not begin. When all are busy, the client reads it in the engine's words."""
    other = start(Engine())
    gateway = start(Gateway(policy({"small": pool(engine, other, balance="round_robin"), "alone": pool(engine)})))
    client = gateway.client()
    busy = reply({"error": {"message": "busy", "type": "t", "code": status}}, status, [("retry-after", "7")])
    engine.play(busy)
    assert [client.post(*ask("chat")).status for _ in range(4)] == [200] * 4
    answer = client.post(*ask("chat", model="alone"))
    assert (answer.status, answer.header("retry-after")) == (status, "7")
    assert answer.json()["error"]["message"] == "busy"


def test_ids_differ_between_tries(start: Start, engine: Engine) -> None:
    """vLLM puts the id into its answer, and would meet one twice."""
    gateway = start(Gateway(policy({"small": pool(engine)})))
    client = gateway.client()
    engine.play(reply({}), [CLOSE], reply({}))
    for _ in range(2):
        assert client.post(*ask("chat")).status == 200
    ids = [r.header("x-request-id") for r in engine.work]
    assert len(set(ids)) == 3, ids


def test_each_limit_is_its_own(start: Start, engine: Engine) -> None:
    """A long total doesn't make the first byte late, and a slow stream is no late first byte."""
    limits = {"first_byte_s": 1.5, "idle_s": 5, "total_s": 3}
    gateway = start(Gateway(policy({"small": pool(engine, timeouts=limits)})))
    engine.play(stream(*(step for n in range(120) for step in (sse({"n": n}), 0.05))))
    answer = gateway.client().post(*ask("chat", stream=True))
    assert answer.status == 200
    assert sse({"n": 9}) in answer.body
    assert sse({"n": 119}) not in answer.body
    assert "within 3 s" in error_of("chat", json.loads(answer.events()[-1][1]))["message"]


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("kind", ["chat", "messages", "responses"])
def test_a_long_prefill_behind_an_early_head_is_no_pause_in_an_answer(
    start: Start, engine: Engine, kind: str, replicas: int
) -> None:
    """vLLM sends the head of a stream at once, and on Responses two events; then it reads a long prompt, or has no room."""
    engines = [engine, *(start(Engine()) for _ in range(replicas - 1))]
    announced = named({"type": "response.created", "x": "y" * 100_000}, {"type": "response.in_progress"})
    before = [announced[:70_000], 0.05, announced[70_000:]] if kind == "responses" else []
    last = {"chat": sse({"n": 1}, done=True), "messages": named({"type": "message_stop"})}.get(
        kind, named({"type": "response.output_item.added"}, {"type": "response.completed"})
    )
    for each in engines:
        each.play(stream(*before, 2.5, last))
    gateway = start(Gateway(policy({"small": pool(*engines, timeouts={"first_byte_s": 60, "idle_s": 1})})))
    answer = gateway.client().post(*ask(kind, stream=True))
    assert (answer.status, answer.body) == (200, b"".join(b for b in before if isinstance(b, bytes)) + last)
    for each in engines:
        each.play(stream(*before, last[:-10], HANG))
    answer = gateway.client().post(*ask(kind, stream=True))
    assert (answer.status, b"sent nothing for 1 s" in answer.body) == (200, True)


def test_no_answer_in_http_is_the_engines_fault(start: Start, engine: Engine) -> None:
    gateway = start(Gateway(policy({"small": pool(engine)})))
    for raw in (b"SSH-2.0-OpenSSH_9\r\n\r\n", head(101, [("upgrade", "h2c"), ("connection", "upgrade")]), b"\x16\x03\x01\x02"):
        engine.play([raw, 0.05, CLOSE])
        answer = gateway.client().post(*ask("chat"))
        assert (answer.status, answer.code) == (502, "upstream_unreachable"), raw
