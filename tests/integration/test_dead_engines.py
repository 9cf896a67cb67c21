"""An engine dies with requests on it: who has had nothing of an answer goes elsewhere, once; who has had some hears of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from .client import ask, eventually
from .engine import CLOSE, HANG, RESET, SSE_TYPE, Engine, Gate, Request, Step, chunk, head, named, reply, sse, stream
from .gateway import Gateway, policy, pool

Start = Callable[..., Any]
DEAD = {
    "message": "EngineCore encountered an issue. See stack trace (above) for the root cause.", "type": "InternalServerError",
    "param": None, "code": 500,
}  # fmt: skip
UNREADABLE = "2 validation errors for ChatCompletionStreamResponse\nmodel\n  Field required [type=missing, input_value={...}]"
BEGINS = [
    {"type": f"response.{what}", "response": {"id": "resp_1", "status": "in_progress"}} for what in ("created", "in_progress")
]
LAST_WORDS: dict[str, tuple[str, bool, list[Step]]] = {
    "chat": ("chat", False, reply({"error": DEAD}, 500)),
    "messages": ("messages", False, reply({"type": "error", "error": {"type": DEAD["type"], "message": DEAD["message"]}}, 500)),
    "responses": ("responses", False, reply({"error": DEAD}, 500)),
    "embeddings": ("embeddings", False, reply({"error": DEAD}, 500)),
    "a stream of chat": ("chat", True, stream(sse({"error": DEAD}), sse("[DONE]"))),
    "a stream of completions": ("completions", True, stream(sse({"error": DEAD}, done=True))),
    "a stream of messages": (
        "messages", True, stream(named({"type": "error", "error": {"type": "internal_error", "message": UNREADABLE}})),
    ),
    "a stream of responses": ("responses", True, stream(named(BEGINS[0]), named(BEGINS[1]), RESET)),
    "an error event of responses": ("responses", True, stream(named(*BEGINS, {"type": "error", "code": "server_error"}))),
    "a stream without an event": ("chat", True, stream(0.05, RESET)),
    "half an event": ("chat", True, stream(b'data: {"error": {"mess', CLOSE)),
    "no answer": ("chat", False, [0.05, CLOSE]),
    "no answer, reset": ("messages", True, [0.05, RESET]),
}  # fmt: skip
"""What vLLM 0.32 sends, by protocol, when its engine core is killed with requests that have not begun; and mere ends."""


def dying(engine: Engine, steps: Iterable[Step]) -> Callable[[Request], Iterable[Step]]:
    """A script: these are the engine's last words, and its health path says so."""

    def script(request: Request) -> Iterable[Step]:
        engine.play_at("/health", reply(b"", 503))
        return steps

    return script


def others(start: Start, engine: Engine, count: int = 1, **settings: Any) -> tuple[list[Engine], Gateway]:
    """More replicas, and a gateway whose own probes come late: what it finds out, it finds out by asking."""
    more = [start(Engine()) for _ in range(count)]
    block = pool(engine, *more, balance="round_robin", health={"every_s": 60, "token_every_s": 0}, **settings)
    return more, start(Gateway(policy({"small": block})))


@pytest.mark.parametrize("how", LAST_WORDS)
def test_a_request_without_an_answer_goes_to_another_replica(start: Start, engine: Engine, how: str) -> None:
    kind, streams, last_words = LAST_WORDS[how]
    _, gateway = others(start, engine)
    engine.play(dying(engine, last_words))
    path, body = ask(kind, **({"stream": True} if streams else {}))
    answers = [gateway.client().post(path, body) for _ in range(2)]
    assert [(a.status, a.complete) for a in answers] == [(200, True)] * 2
    assert all(b"EngineCore" not in a.body and b"event: error" not in a.body for a in answers)
    gateway.wait_idle()
    name = engine.url.removeprefix("http://")
    (moved,) = [r for r in gateway.decisions() if len(r["attempts"]) == 2]
    assert moved["attempts"][0] == f"small/{name}"
    assert (moved["died"], moved["outcome"], moved["replica"] != name) == ([f"small/{name}"], "ok", True)
    (shown,) = [a for a in answers if f"{name} died" in a.reason]
    assert shown.replica == moved["replica"]
    assert gateway.metric("switchyard_attempts_total", replica=name) == 1
    assert gateway.metric("switchyard_moved_requests_total", pool="small") == 1
    assert gateway.metric("switchyard_replica_up", replica=name) == 0, "all know at once"
    assert len(engine.work) == 1


def test_a_request_that_kills_engines_kills_two_at_most(start: Start, engine: Engine) -> None:
    more, gateway = others(start, engine, 3)
    everybody = [engine, *more]
    for each in everybody:
        each.play(dying(each, reply({"error": DEAD}, 500)))
    answer = gateway.client().post(*ask("chat"))
    assert (answer.status, answer.json()["error"]) == (500, DEAD)
    assert sum(len(each.work) for each in everybody) == 2
    assert len(gateway.record()["attempts"]) == 2


def test_more_deaths_than_the_retry_budget_has_reach_the_clients(start: Start, engine: Engine) -> None:
    """Ten tries where there are few requests; trouble is not multiplied."""
    (other,), gateway = others(start, engine)
    gate = Gate()
    for each in (engine, other):
        each.play([gate, *reply({"ok": True})])
    engine.play(lambda request: [gate, *dying(engine, reply({"error": DEAD}, 500))(request)])
    held = [gateway.client().start(*ask("chat")) for _ in range(40)]
    eventually(lambda: len(engine.work) == 20, 20)
    gate.open()
    statuses = [connection.answer().status for connection in held]
    assert set(statuses) == {200, 500}
    assert statuses.count(500) <= 10, "of twenty, ten are tried once more; later ones again, when the budget has recovered"


@pytest.mark.parametrize("kind", ["chat", "messages", "responses"])
def test_an_answer_that_has_begun_stays_where_it_is(start: Start, engine: Engine, kind: str) -> None:
    _, gateway = others(start, engine)
    first = {"chat": sse({"n": 1}), "messages": named({"type": "message_start", "n": 1})}.get(
        kind, named(*BEGINS, {"type": "response.output_item.added", "n": 1})
    )
    engine.play(dying(engine, stream(first, sse({"error": DEAD}, done=True))))
    answers = [gateway.client().post(*ask(kind, stream=True)) for _ in range(2)]
    (broken,) = [a for a in answers if b"EngineCore" in a.body]
    assert broken.body == first + sse({"error": DEAD}, done=True)
    assert all(len(r["attempts"]) == 1 for r in gateway.decisions())


def test_a_late_first_byte_of_a_dead_engine_is_not_tried_again(start: Start, engine: Engine) -> None:
    """Nobody knows what it does."""
    (other,), gateway = others(start, engine, timeouts={"first_byte_s": 1.5})
    for steps in ([HANG], stream(HANG)):
        before = len(other.work)
        engine.play(dying(engine, steps))
        answers = [gateway.client().post(*ask("chat", stream=True)) for _ in range(2)]
        assert sorted((a.status, a.code or "") for a in answers) == [(200, ""), (504, "upstream_timeout")]
        assert len(other.work) == before + 1


@pytest.mark.parametrize("end", [RESET, CLOSE])
def test_a_stream_that_breaks_off_before_its_first_event_is_an_error_and_no_broken_stream(
    start: Start, engine: Engine, end: Any
) -> None:
    """The engine lives: nobody knows whether it works on. Nothing was sent, so the client gets a status that says so."""
    (other,), gateway = others(start, engine)
    engine.play(stream(0.05, end))
    answers = [gateway.client().post(*ask("messages", stream=True)) for _ in range(2)]
    assert sorted((a.status, a.code or "") for a in answers) == [(200, ""), (502, "upstream_unreachable")]
    assert len(other.work) == 1


def test_so_is_one_whose_request_finds_no_other_place(start: Start, engine: Engine) -> None:
    (other,), gateway = others(start, engine)
    gate = Gate()
    for each in (engine, other):
        each.play(dying(each, stream(named(*BEGINS), gate, RESET)))
    connection = gateway.client().start(*ask("responses", stream=True))
    eventually(lambda: engine.work or other.work)
    spare = (other if engine.work else engine).url.removeprefix("http://")
    assert gateway.client().post(f"/admin/pools/small/replicas/{spare}/drain?force=true").status == 200
    gate.open()
    answer = connection.answer()
    assert (answer.status, answer.code) == (502, "upstream_unreachable")


@pytest.mark.parametrize("end", ["an answer", "none"])
def test_times_are_those_of_the_attempt_that_they_are_told_of(start: Start, engine: Engine, end: str) -> None:
    """And what a dead engine took is not the gateway's own time."""
    (other,), gateway = others(start, engine)
    engine.play(dying(engine, stream(2, sse({"error": DEAD}), sse("[DONE]"))))
    if end == "none":
        other.play([0.05, CLOSE])
    for _ in range(2):
        gateway.client().post(*ask("chat", stream=True))
    gateway.wait_idle()
    records = gateway.decisions()
    assert any(len(record["attempts"]) == 2 for record in records)
    assert all(ms >= 0 for record in records for ms in record["ms"].values() if ms is not None)
    assert gateway.metric("switchyard_overhead_seconds_sum") < 2


@pytest.mark.parametrize("at", [5, named(*BEGINS).rfind(b"event: ") + 20], ids=["first line", "second event's name"])
def test_an_announcement_in_two_pieces_is_none_the_less_one(start: Start, engine: Engine, at: int) -> None:
    """The limit between two pieces of an answer doesn't hold yet."""
    gateway = start(Gateway(policy({"small": pool(engine, timeouts={"first_byte_s": 30, "idle_s": 0.5})})))
    whole, last = named(*BEGINS), named({"type": "response.completed", "response": {}})
    engine.play(stream(whole[:at], 0.05, whole[at:], 1.5, last))
    assert gateway.client().post(*ask("responses", stream=True)).body.endswith(last)


def test_who_is_bound_to_a_replica_stays(start: Start, engine: Engine) -> None:
    (other,), gateway = others(start, engine)
    client = gateway.client()
    made = {answer.replica: answer.json()["id"] for answer in (client.post(*ask("responses")) for _ in range(2))}
    engine.play(dying(engine, reply({"error": DEAD}, 500)))
    seen = len(other.work)
    path, body = ask("responses", previous_response_id=made[engine.url.removeprefix("http://")])
    assert client.post(path, body).status == 500
    assert len(other.work) == seen


def test_a_larger_pool_takes_over_where_there_is_no_other_replica(start: Start, engine: Engine) -> None:
    big = start(Engine("acme/big"))
    pools = {"small": pool(engine, health={"every_s": 60, "token_every_s": 0}), "big": pool(big)}
    route = {"classify": [], "choose": [{"p_at_least": 0.5, "use": "small"}, {"use": "big"}]}
    rule = {"when": {"prompt_tokens": {"at_least": 0}}, "use": "small"}
    gateway = start(Gateway(policy(pools, {"auto": {**route, "rules": [rule]}})))
    engine.play(dying(engine, [CLOSE]))
    answer = gateway.client().post(*ask("chat", model="auto"))
    assert (answer.status, answer.pool) == (200, "big")
    places = [f"{name}/{e.url.removeprefix('http://')}" for name, e in (("small", engine), ("big", big))]
    assert (gateway.record()["attempts"], gateway.record()["died"]) == (places, places[:1])


# ---- looking at the first event costs nobody anything ----


def test_what_comes_before_the_first_event_is_not_kept_back_for_ever(start: Start, engine: Engine) -> None:
    """Comments keep a connection alive: they pass. An announcement that repeats a long prompt passes, too."""
    _, gateway = others(start, engine)
    long = named({"type": "response.created", "response": {"instructions": "x" * 200_000}})
    for kind, first in (("chat", b": still here\n\n"), ("responses", long)):
        gate = Gate()
        engine.play(stream(first, gate, sse({"n": 1}, done=True)))
        for _ in range(2):
            connection = gateway.client().start(*ask(kind, stream=True))
            if connection.head().replica == engine.url.removeprefix("http://"):
                connection.read_until(first[-40:])
                gate.open()
            connection.leave()
        engine.reset()


def test_a_client_that_leaves_before_the_first_event_is_noticed(start: Start, engine: Engine) -> None:
    more, gateway = others(start, engine)
    for each in (engine, *more):
        each.play(stream(HANG))
    connection = gateway.client().start(*ask("chat", stream=True))
    eventually(lambda: engine.work or more[0].work)
    connection.leave()
    assert (engine.work or more[0].work)[0].gone.wait(5)
    gateway.wait_idle()


@pytest.mark.parametrize("split", [1, 7, 30])
def test_an_event_in_small_pieces_is_the_same(start: Start, engine: Engine, split: int) -> None:
    more, gateway = others(start, engine)
    whole = sse({"choices": [{"delta": {"content": "Hi"}}]}, {"n": 2}, done=True)
    pieces = [whole[at : at + split] for at in range(0, len(whole), split)]
    for each in (engine, *more):
        steps = [step for piece in pieces for step in (chunk(piece), 0.001)]
        each.play([head(200, [SSE_TYPE], chunked=True), *steps, b"0\r\n\r\n"])
    answer = gateway.client().post(*ask("chat", stream=True))
    assert (answer.body, answer.complete) == (whole, True)
    assert json.loads(answer.events()[0][1])["choices"]
