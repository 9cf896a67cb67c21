"""An engine fails after its answer has begun: the client always sees it, in the protocol's own form, never a normal end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .client import PROTOCOLS, Answer, ask, error_of, read_events, request_bytes
from .engine import CLOSE, HANG, RESET, SSE_TYPE, End, Engine, Step, chunk, head, named, reply, sse, stream
from .gateway import Gateway, policy, pool

Start = Callable[..., Any]
ENDS = pytest.mark.parametrize("end", [CLOSE, RESET, HANG], ids=lambda e: e.name.lower())
KINDS = pytest.mark.parametrize("kind", PROTOCOLS)

GOOD = {
    "chat": sse(
        {"choices": [{"index": 0, "delta": {"content": "one"}}]}, {"choices": [{"index": 0, "delta": {"content": "two"}}]}
    ),
    "responses": named(
        {"type": "response.created", "sequence_number": 0, "response": {"id": "resp_abc", "status": "in_progress"}},
        {"type": "response.output_text.delta", "sequence_number": 1, "item_id": "msg_1", "delta": "one"},
    ),
    "messages": named(
        {"type": "message_start", "message": {"id": "msg_1", "usage": {"input_tokens": 1}}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "one"}},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine() as engine:
        yield engine


@pytest.fixture(scope="module")
def gateway(engine: Engine) -> Iterator[Gateway]:
    limits = {"idle_s": 1}
    pools = {
        "small": pool(engine, timeouts=limits),
        "asking": pool(engine, timeouts=limits, usage="ask"),
        "patient": pool(engine),
    }
    with Gateway(policy(pools)) as gateway:
        yield gateway


@pytest.fixture(autouse=True)
def _fresh(engine: Engine) -> None:
    engine.reset()


def failure(kind: str, answer: Answer) -> dict[str, Any]:
    """The error at the end of a stream; fails unless it is the last event and of the protocol's shape."""
    assert answer.complete, "the stream itself has to end well, or clients don't read its last event"
    name, data = answer.events()[-1]
    found = json.loads(data)
    if kind == "chat":
        assert name == "message"
        return error_of(kind, found)
    if kind == "messages":
        assert name == "error"
        return error_of(kind, found)
    assert (name, found["type"]) == ("response.failed", "response.failed")
    assert found["response"]["status"] == "failed"
    return found


@ENDS
@KINDS
@pytest.mark.parametrize("model", ["small", "asking"])
def test_between_events(gateway: Gateway, engine: Engine, kind: str, end: End, model: str) -> None:
    engine.play(stream(GOOD[kind], end))
    answer = gateway.client().post(*ask(kind, model=model, stream=True))
    assert answer.status == 200
    assert answer.body.startswith(GOOD[kind])
    assert len(answer.events()) == 3
    error = failure(kind, answer)
    if kind == "responses":
        assert error["response"]["id"] == "resp_abc"
        assert error["sequence_number"] == 2
        assert error["response"]["error"]["message"]
    elif kind == "chat":
        assert error["code"] == ("upstream_timeout" if end is HANG else "upstream_broken")
    record = gateway.record()
    assert (record["outcome"], record["status"]) == ("broken", 200)


@KINDS
@pytest.mark.parametrize("half", [b'data: {"cho', b"data", b"event: x\n", b'data: {"whole":1}\n', b'data: {"whole":1}\r'])
def test_inside_an_event(gateway: Gateway, engine: Engine, kind: str, half: bytes) -> None:
    """The error is never glued onto what was left half."""
    engine.play(stream(GOOD[kind], half, RESET))
    answer = gateway.client().post(*ask(kind, stream=True))
    assert answer.body.startswith(GOOD[kind] + half)
    assert read_events(GOOD[kind]) == answer.events()[:2]
    failure(kind, answer)


@KINDS
def test_inside_an_event_that_is_held_back(gateway: Gateway, engine: Engine, kind: str) -> None:
    """Where events are taken out, only whole ones have been sent: the half one is not sent at all, or closed."""
    engine.play(stream(GOOD[kind], b'data: {"cho', RESET))
    answer = gateway.client().post(*ask(kind, model="asking", stream=True))
    assert answer.events()[:2] == read_events(GOOD[kind])
    failure(kind, answer)


@KINDS
def test_before_any_event(gateway: Gateway, engine: Engine, kind: str) -> None:
    """The head has gone out already, so the error is an event."""
    engine.play(stream(0.1, RESET))
    answer = gateway.client().post(*ask(kind, stream=True))
    assert answer.status == 200
    assert len(answer.events()) == 1
    failure(kind, answer)


@KINDS
def test_an_engines_own_error_event_goes_on_as_it_is(gateway: Gateway, engine: Engine, kind: str) -> None:
    content = GOOD[kind] + sse({"error": {"message": "EngineDead", "type": "x", "code": 500}}, done=True)
    engine.play(stream(content))
    answer = gateway.client().post(*ask(kind, stream=True))
    assert (answer.complete, answer.body) == (True, content)


@KINDS
@pytest.mark.parametrize("end", [RESET, HANG], ids=["reset", "hang"])
def test_a_stream_that_would_end_with_the_connection(gateway: Gateway, engine: Engine, kind: str, end: End) -> None:
    """Without chunks a clean close is a good end, and a reset or a silence isn't."""
    engine.play([head(200, [SSE_TYPE, ("connection", "close")]), GOOD[kind], 0.05, end])
    answer = gateway.client().post(*ask(kind, stream=True))
    assert answer.events()[:2] == read_events(GOOD[kind])
    failure(kind, answer)


@KINDS
def test_a_client_of_http_1_0(gateway: Gateway, engine: Engine, kind: str) -> None:
    """Where the end of the connection is the end of the stream, only an event can tell."""
    engine.play(stream(GOOD[kind], RESET))
    connection = gateway.client().open()
    path, body = ask(kind, stream=True)
    connection.send(request_bytes(path, body, version="1.0"))
    answer = connection.answer()
    assert answer.body.startswith(GOOD[kind])
    failure(kind, answer)


@pytest.mark.parametrize("steps", [[CLOSE], [RESET], [b'{"half":', RESET], [b'{"half":', HANG]])
@pytest.mark.parametrize("chunked", [True, False])
@KINDS
def test_a_whole_answer_that_breaks_off(gateway: Gateway, engine: Engine, kind: str, steps: list[Step], chunked: bool) -> None:
    """No stream, so no event: the framing tells that something is missing; or, when nothing was sent, a proper error."""
    pieces = [chunk(s) if chunked and isinstance(s, bytes) else s for s in steps]
    json_head = head(200, [("content-type", "application/json")], chunked=chunked, length=None if chunked else 1000)
    engine.play([json_head, 0.02, *pieces])
    answer = gateway.client().post(*ask(kind))
    assert answer.status in {502, 504} or not answer.complete
    record = gateway.record()
    assert record["outcome"] == "broken"
    assert record["error"] in {"upstream_broken", "upstream_timeout"}


def test_a_pause_within_the_limit_is_no_failure(gateway: Gateway, engine: Engine) -> None:
    content = GOOD["chat"] + sse({}, done=True)
    engine.play(stream(*(step for n in range(0, len(content), 60) for step in (content[n : n + 60], 0.3))))
    answer = gateway.client().post(*ask("chat", stream=True))
    assert (answer.complete, answer.body) == (True, content)


def test_comments_keep_a_stream_alive(gateway: Gateway, engine: Engine) -> None:
    """A prefill that takes long, with a ping now and then: forwarded, and no first token."""
    pings = [step for _ in range(6) for step in (b": ping\n\n", 0.3)]
    engine.play(stream(*pings, GOOD["chat"], sse({}, done=True)))
    answer = gateway.client().post(*ask("chat", stream=True))
    assert answer.body == b": ping\n\n" * 6 + GOOD["chat"] + sse({}, done=True)
    assert gateway.record()["ms"]["first_token"] > 1500


def test_the_first_token_is_no_empty_role(gateway: Gateway, engine: Engine) -> None:
    role = sse({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    engine.play(stream(role, 1, sse({"choices": [{"index": 0, "delta": {"reasoning": "hm"}}]}), 2, GOOD["chat"]))
    gateway.client().post(*ask("chat", model="patient", stream=True))
    ms = gateway.record()["ms"]
    assert ms["first_byte"] < 900
    assert 900 < ms["first_token"] < 2900


def test_a_broken_stream_is_counted_once(gateway: Gateway, engine: Engine) -> None:
    before = gateway.metric("switchyard_errors_total", code="upstream_broken")
    engine.play(stream(GOOD["chat"], RESET))
    gateway.client().post(*ask("chat", stream=True))
    assert gateway.metric("switchyard_errors_total", code="upstream_broken") == before + 1
    assert gateway.metric("switchyard_attempts_total") >= 1


def test_the_connection_closes_after_a_broken_stream(gateway: Gateway, engine: Engine) -> None:
    """What a client may still believe about its connection ends with the stream."""
    engine.play(stream(GOOD["chat"], RESET), reply({}))
    connection = gateway.client().start(*ask("chat", stream=True))
    connection.answer()
    assert connection.closed(20)


# ---- the gateway itself goes down ----


@KINDS
def test_the_drain_limit_ends_streams_in_the_protocols_form(start: Start, kind: str) -> None:
    engine = start(Engine())
    gateway = start(Gateway(policy({"small": pool(engine)}, drain_s=1)))
    engine.play(stream(GOOD[kind], HANG))
    connection = gateway.client().start(*ask(kind, stream=True))
    begun = connection.head()
    gateway.terminate()
    answer = connection.rest(begun)
    assert answer.events()[:2] == read_events(GOOD[kind])
    assert "shutting down" in str(failure(kind, answer))
    assert engine.last.gone.wait(20)


def test_a_response_that_the_drain_limit_ends_keeps_its_id(start: Start) -> None:
    """Its failure belongs to the response that had begun."""
    engine = start(Engine())
    gateway = start(Gateway(policy({"small": pool(engine)}, drain_s=1)))
    engine.play(stream(GOOD["responses"], HANG))
    connection = gateway.client().start(*ask("responses", stream=True))
    begun = connection.head()
    gateway.terminate()
    failed = failure("responses", connection.rest(begun))
    assert (failed["response"]["id"], failed["sequence_number"]) == ("resp_abc", 2)
