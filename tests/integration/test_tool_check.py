"""`check: {tool_calls: escalate}` over sockets: a bad call never reaches the client, on any protocol, streamed or not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .client import Answer
from .engine import RESET, Engine, reply, stream
from .gateway import Gateway, Json, policy, pool

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
GOOD, BAD = '{"city": "Paris"}', '{"town": 7}'


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[Engine, Engine]]:
    with Engine("acme/small") as small, Engine("acme/big") as big:
        yield small, big


@pytest.fixture(scope="module")
def gateway(engines: tuple[Engine, Engine]) -> Iterator[Gateway]:
    small, big = engines
    route = {
        "classify": [{"type": "embedded"}], "choose": [{"p_at_least": 0.0, "use": "small"}, {"use": "big"}],
        "decide_per": "request", "otherwise": "small", "check": {"tool_calls": "escalate"},
    }  # fmt: skip
    with Gateway(policy({"small": pool(small), "big": pool(big)}, {"auto": route})) as running:
        yield running


@pytest.fixture(autouse=True)
def _forget(engines: tuple[Engine, Engine]) -> None:
    for engine in engines:
        engine.reset()


def data(*events: Any, named: bool = False) -> bytes:
    lines = []
    for event in events:
        text = event if isinstance(event, str) else json.dumps(event)
        name = f"event: {event['type']}\n" if named else ""
        lines.append(f"{name}data: {text}\n\n")
    return "".join(lines).encode()


def chat_stream(text: str, arguments: str | None, id_: str = "c-1") -> bytes:
    def chunk(delta: Json, finish: str | None = None) -> Json:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return {"id": id_, "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}

    events = [chunk({"role": "assistant", "content": ""}), chunk({"content": text})]
    if arguments is not None:
        call = {"index": 0, "id": f"call-{id_}", "type": "function", "function": {"name": "weather", "arguments": ""}}
        events.append(chunk({"tool_calls": [call]}))
        events += [chunk({"tool_calls": [{"index": 0, "function": {"arguments": a}}]}) for a in (arguments[:5], arguments[5:])]
    events.append(chunk({}, "tool_calls" if arguments is not None else "stop"))
    return data(*events, "[DONE]")


def messages_stream(text: str, arguments: str | None, id_: str = "msg_1") -> bytes:
    message = {"id": id_, "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None,
               "usage": {"input_tokens": 9, "output_tokens": 0}}  # fmt: skip
    events: list[Json] = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
        {"type": "content_block_stop", "index": 0},
    ]
    if arguments is not None:
        block = {"type": "tool_use", "id": f"toolu-{id_}", "name": "weather", "input": {}}
        events += [
            {"type": "content_block_start", "index": 1, "content_block": block},
            {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": arguments}},
            {"type": "content_block_stop", "index": 1},
        ]
    stop = "tool_use" if arguments is not None else "end_turn"
    events += [
        {"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": 4}},
        {"type": "message_stop"},
    ]
    return data(*events, named=True)


def responses_stream(text: str, arguments: str | None, id_: str = "resp_1") -> bytes:
    base = {"id": id_, "object": "response", "created_at": 1, "model": "m", "status": "in_progress", "output": []}
    place = {"item_id": f"msg-{id_}", "output_index": 0, "content_index": 0}
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {"type": "message", "id": f"msg-{id_}", "role": "assistant", "status": "completed", "content": [part]}
    events: list[Json] = [
        {"type": "response.created", "response": base},
        {"type": "response.output_item.added", "output_index": 0, "item": item | {"content": []}},
        {"type": "response.content_part.added", "part": part | {"text": ""}, **place},
        {"type": "response.output_text.delta", "delta": text, **place},
        {"type": "response.output_text.done", "text": text, **place},
        {"type": "response.content_part.done", "part": part, **place},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
    ]
    output: list[Json] = [item]
    if arguments is not None:
        call = {"type": "function_call", "id": f"fc-{id_}", "call_id": f"call-{id_}", "name": "weather", "arguments": arguments}
        where = {"item_id": f"fc-{id_}", "output_index": 1}
        events += [
            {"type": "response.output_item.added", "output_index": 1, "item": call | {"arguments": ""}},
            {"type": "response.function_call_arguments.delta", "delta": arguments, **where},
            {"type": "response.function_call_arguments.done", "arguments": arguments, **where},
            {"type": "response.output_item.done", "output_index": 1, "item": call},
        ]
        output.append(call)
    usage = {"input_tokens": 9, "output_tokens": 4, "total_tokens": 13}
    events.append({"type": "response.completed", "response": base | {"status": "completed", "output": output, "usage": usage}})
    return data(*({**e, "sequence_number": n} for n, e in enumerate(events)), named=True)


def chat_whole(text: str, arguments: str | None, id_: str = "c-1") -> Json:
    message: Json = {"role": "assistant", "content": text}
    if arguments is not None:
        call = {"id": f"call-{id_}", "type": "function", "function": {"name": "weather", "arguments": arguments}}
        message["tool_calls"] = [call]
    usage = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}
    return {"id": id_, "object": "chat.completion", "choices": [{"index": 0, "message": message}], "usage": usage}


def messages_whole(text: str, arguments: str | None, id_: str = "msg_1") -> Json:
    content: list[Json] = [{"type": "text", "text": text}]
    if arguments is not None:
        content.append({"type": "tool_use", "id": f"toolu-{id_}", "name": "weather", "input": json.loads(arguments)})
    return {"id": id_, "type": "message", "content": content, "usage": {"input_tokens": 9, "output_tokens": 4}}


def responses_whole(text: str, arguments: str | None, id_: str = "resp_1") -> Json:
    events = [json.loads(e.split("data: ", 1)[1]) for e in responses_stream(text, arguments, id_).decode().split("\n\n") if e]
    return events[-1]["response"]


STREAMS: dict[str, Callable[..., bytes]] = {"chat": chat_stream, "messages": messages_stream, "responses": responses_stream}
WHOLES: dict[str, Callable[..., Json]] = {"chat": chat_whole, "messages": messages_whole, "responses": responses_whole}


def request(kind: str, streamed: bool) -> tuple[str, Json]:
    user = [{"role": "user", "content": "Weather in Paris?"}]
    body: Json = {"model": "auto", "stream": streamed}
    if kind == "chat":
        tool: Json = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
        return "/v1/chat/completions", body | {"messages": user, "tools": [tool]}
    if kind == "messages":
        return "/v1/messages", body | {
            "messages": user,
            "max_tokens": 50,
            "tools": [{"name": "weather", "input_schema": SCHEMA}],
        }
    return "/v1/responses", body | {"input": user, "tools": [{"type": "function", "name": "weather", "parameters": SCHEMA}]}


def play(engine: Engine, kind: str, streamed: bool, text: str, arguments: str | None, id_: str) -> bytes:
    if streamed:
        content = STREAMS[kind](text, arguments, id_)
        engine.play(stream(*[content[i : i + 40] for i in range(0, len(content), 40)]))
        return content
    body = WHOLES[kind](text, arguments, id_)
    engine.play(reply(body))
    return json.dumps(body).encode()


KINDS = pytest.mark.parametrize("kind", ["chat", "messages", "responses"])
STREAMED = pytest.mark.parametrize("streamed", [True, False], ids=["stream", "whole"])


@KINDS
@STREAMED
@pytest.mark.parametrize("arguments", [GOOD, None], ids=["good call", "no call"])
def test_a_good_answer_passes_as_it_is(
    gateway: Gateway, engines: tuple[Engine, Engine], kind: str, streamed: bool, arguments: str | None
) -> None:
    small, big = engines
    content = play(small, kind, streamed, "Sure.", arguments, "resp_1")
    answer = gateway.client().post(*request(kind, streamed))
    assert answer.status == 200
    if streamed:
        assert answer.body == content
    else:
        assert answer.json() == json.loads(content)
    assert not big.work
    assert "escalation" not in gateway.record()


@KINDS
@STREAMED
def test_a_bad_call_is_taken_over_by_the_larger_pool(
    gateway: Gateway, engines: tuple[Engine, Engine], kind: str, streamed: bool
) -> None:
    small, big = engines
    play(small, kind, streamed, "Let me see. ", BAD, "resp_1")
    play(big, kind, streamed, "Here. ", GOOD, "resp_2")
    answer: Answer = gateway.client().post(*request(kind, streamed))
    assert answer.status == 200
    assert answer.complete
    assert b"town" not in answer.body
    assert b"Paris" in answer.body
    assert big.last.json()["model"] == "acme/big"
    record = gateway.record()
    assert (record["outcome"], record["pool"]) == ("ok", "big")
    assert "weather" in record["escalation"]
    assert min(ms for ms in record["ms"].values() if ms is not None) >= 0, "of the same attempt"
    if streamed:
        assert b"Let me see" in answer.body  # text is not held back
        ends = {"chat": b"data: [DONE]", "messages": b"event: message_stop", "responses": b"event: response.completed"}
        starts = {"chat": b'"role": "assistant"', "messages": b"event: message_start", "responses": b"event: response.created"}
        assert answer.body.count(ends[kind]) == 1
        assert answer.body.count(starts[kind]) == 1
    else:
        usage = answer.json()["usage"]
        assert usage.get("completion_tokens", usage.get("output_tokens")) == 8  # of both
        assert answer.header("x-switchyard-pool") == "big"
    assert gateway.metric("switchyard_escalations_total", route="auto") >= 1


@KINDS
@STREAMED
@pytest.mark.parametrize("trouble", ["refused", "broken"])
def test_when_the_larger_pool_fails_too_the_client_is_told(
    gateway: Gateway, engines: tuple[Engine, Engine], kind: str, streamed: bool, trouble: str
) -> None:
    small, big = engines
    play(small, kind, streamed, "Let me see. ", BAD, "resp_1")
    big.play(reply({"error": {"message": "no", "type": "x"}}, 400) if trouble == "refused" else [RESET])
    answer = gateway.client().post(*request(kind, streamed))
    assert b"town" not in answer.body
    if streamed:
        failures = {"chat": b'"error"', "messages": b"event: error", "responses": b"event: response.failed"}
        assert failures[kind] in answer.body
        assert b"bad_tool_call" in answer.body or b"no larger pool could take over" in answer.body
        assert b"[DONE]" not in answer.body
    else:
        assert answer.status == 502
    assert gateway.record()["outcome"] in {"broken", "refused"}


def test_the_session_goes_on_where_it_was_taken_over(engines: tuple[Engine, Engine]) -> None:
    small, big = engines
    route = {
        "classify": [{"type": "embedded"}], "choose": [{"p_at_least": 0.0, "use": "small"}, {"use": "big"}],
        "check": {"tool_calls": "escalate"},
    }  # fmt: skip
    with Gateway(policy({"small": pool(small), "big": pool(big)}, {"auto": route})) as gateway:
        play(small, "chat", True, "", BAD, "c-1")
        play(big, "chat", True, "", GOOD, "c-2")
        path, body = request("chat", True)
        client = gateway.client()
        client.post(path, body, [("x-session-id", "s1")])
        body["messages"] = [
            *body["messages"],
            {"role": "assistant", "content": None, "tool_calls": [{"id": "call-c-2", "type": "function",
             "function": {"name": "weather", "arguments": GOOD}}]},
            {"role": "tool", "tool_call_id": "call-c-2", "content": "rain"},
        ]  # fmt: skip
        answer = client.post(path, body, [("x-session-id", "s1")])
        assert answer.header("x-switchyard-pool") == "big"
