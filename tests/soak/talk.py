"""What is said in the soak: bodies of the three protocols, the answers that belong to them, and how to read those."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from integration.client import Answer, error_of
from integration.engine import named, sse

Json = dict[str, Any]
PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}
MODELS = ("acme/small", "acme/big", "acme/narrow")
TOOL = {"type": "object", "properties": {"step": {"type": "integer"}}}


class Wrong(Exception):
    """An answer is not what it must be."""


def words(id_: str, count: int, width: int = 0) -> list[str]:
    """The words of an answer: no two requests have one in common."""
    return [f"{id_}.{i}".ljust(width, "x") for i in range(count)]


# ---- requests ----


class Conversation:
    """A growing history in one protocol; `body` gives the next request."""

    def __init__(self, kind: str, tools: int) -> None:
        self.kind = kind
        self._items: list[Json] = []
        self._tools = tools
        self._called = ""

    def say(self, content: Any) -> None:
        """The human speaks."""
        self._items.append({"role": "user", "content": content})

    def hear(self, text: str) -> None:
        """The model has spoken."""
        self._items.append({"role": "assistant", "content": text})

    def called(self, name: str, step: int, result: str) -> None:
        """The model has called a tool; this came of it."""
        arguments = {"step": step}
        if self.kind == "chat":
            function = {"name": name, "arguments": json.dumps(arguments)}
            call = {"id": f"call_{step}", "type": "function", "function": function}
            self._items.append({"role": "assistant", "content": None, "tool_calls": [call]})
            self._items.append({"role": "tool", "tool_call_id": f"call_{step}", "content": result})
        elif self.kind == "messages":
            block = {"type": "tool_use", "id": f"toolu_{step}", "name": name, "input": arguments}
            answer = {"type": "tool_result", "tool_use_id": f"toolu_{step}", "content": result}
            self._items.append({"role": "assistant", "content": [block]})
            self._items.append({"role": "user", "content": [answer]})
        else:
            common = {"call_id": f"call_{step}"}
            self._items.append({"type": "function_call", **common, "name": name, "arguments": json.dumps(arguments)})
            self._items.append({"type": "function_call_output", **common, "output": result})

    def fields(self, *, stream: bool) -> Json:
        """The body without its model."""
        tools = [self._tool(f"tool_{n}") for n in range(self._tools)]
        fields: Json = {"tools": tools} if tools else {}
        fields |= {"stream": True} if stream else {}
        if self.kind == "responses":
            return {"input": self._items, "store": False, **fields}
        return {"messages": self._items, "max_tokens": 256, **fields}

    def _tool(self, name: str) -> Json:
        if self.kind == "messages":
            return {"name": name, "description": "Does a step.", "input_schema": TOOL}
        described = {"name": name, "description": "Does a step.", "parameters": TOOL}
        return {"type": "function", "function": described} if self.kind == "chat" else {"type": "function", **described}


def picture(size: int) -> Json:
    """A chat part with an image of about so many bytes."""
    return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBORw0KGgo" * (size // 11)}}


# ---- answers, as the engine makes them ----


def whole(kind: str, model: str, said: list[str], call: int | None) -> Json:
    """A whole answer: the words, or the call of a tool."""
    text = " ".join(said)
    if kind == "chat":
        function = {"name": "tool_0", "arguments": json.dumps({"step": call})}
        calls = [] if call is None else [{"id": f"call_{call}", "type": "function", "function": function}]
        message = {"role": "assistant", "content": text if call is None else None, "tool_calls": calls}
        choice = {"index": 0, "message": message, "finish_reason": "stop" if call is None else "tool_calls"}
        return {
            "id": "c",
            "object": "chat.completion",
            "created": 1,
            "model": model,
            "choices": [choice],
            "usage": _usage(said),
        }
    if kind == "messages":
        block: Json = {"type": "text", "text": text}
        if call is not None:
            block = {"type": "tool_use", "id": f"toolu_{call}", "name": "tool_0", "input": {"step": call}}
        stop = "end_turn" if call is None else "tool_use"
        usage = {"input_tokens": 9, "output_tokens": len(said)}
        return {"id": "m", "type": "message", "role": "assistant", "model": model, "content": [block], "stop_reason": stop,
                "stop_sequence": None, "usage": usage}  # fmt: skip
    item: Json = {"type": "message", "id": "i", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    if call is not None:
        item = {"type": "function_call", "id": "i", "call_id": f"call_{call}", "name": "tool_0"}
        item["arguments"] = json.dumps({"step": call})
    usage = {"input_tokens": 9, "output_tokens": len(said), "total_tokens": 9 + len(said)}
    return {"id": "resp_1", "object": "response", "created_at": 1, "model": model, "status": "completed", "output": [item],
            "usage": usage}  # fmt: skip


def _usage(said: list[str]) -> Json:
    return {"prompt_tokens": 9, "completion_tokens": len(said), "total_tokens": 9 + len(said)}


def events(kind: str, model: str, said: list[str], call: int | None, usage: bool) -> Iterator[bytes]:
    """The events of a streamed answer, one for each word."""
    end = whole(kind, model, said, call)
    spoken = [word if not i else f" {word}" for i, word in enumerate(said)]
    if kind == "chat":
        yield from _chat_events(end, spoken, call, usage)
    elif kind == "messages":
        block = end["content"][0]
        yield named({"type": "message_start", "message": {**end, "content": [], "stop_reason": None}})
        empty = {"type": "text", "text": ""} if call is None else {**block, "input": {}}
        yield named({"type": "content_block_start", "index": 0, "content_block": empty})
        deltas = [{"type": "text_delta", "text": word} for word in spoken]
        if call is not None:
            deltas = [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
        for delta in deltas:
            yield named({"type": "content_block_delta", "index": 0, "delta": delta})
        yield named({"type": "content_block_stop", "index": 0})
        yield named({"type": "message_delta", "delta": {"stop_reason": end["stop_reason"]}, "usage": end["usage"]})
        yield named({"type": "message_stop"})
    else:
        number = 0
        yield named(
            {"type": "response.created", "sequence_number": 0, "response": {**end, "status": "in_progress", "output": []}}
        )
        deltas = [{"type": "response.output_text.delta", "delta": word} for word in spoken]
        if call is not None:
            deltas = [{"type": "response.function_call_arguments.delta", "delta": json.dumps({"step": call})}]
        for number, delta in enumerate(deltas, 1):
            yield named({**delta, "item_id": "i", "output_index": 0, "sequence_number": number})
        yield named({"type": "response.completed", "sequence_number": number + 1, "response": end})


def _chat_events(end: Json, spoken: list[str], call: int | None, usage: bool) -> Iterator[bytes]:
    def part(delta: Json, finish: str | None = None) -> bytes:
        common = {"id": end["id"], "object": "chat.completion.chunk", "created": 1, "model": end["model"]}
        return sse({**common, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    yield part({"role": "assistant", "content": ""})
    if call is None:
        for word in spoken:
            yield part({"content": word})
    else:
        yield part({"tool_calls": [{"index": 0, **end["choices"][0]["message"]["tool_calls"][0]}]})
    yield part({}, end["choices"][0]["finish_reason"])
    if usage:
        yield sse({"id": end["id"], "object": "chat.completion.chunk", "choices": [], "usage": end["usage"]})
    yield b"data: [DONE]\n\n"


# ---- reading ----


def read(kind: str, answer: Answer, said: list[str], call: int | None) -> str:
    """How an answer ended: `good`, `event` (the protocol's own error), `cut` or `error STATUS`.

    Raises:
        Wrong: it is none of these: content that isn't right, a truncated success, an error in another shape.
    """
    stream = (answer.header("content-type") or "").startswith("text/event-stream")
    if answer.status != 200:
        if not answer.complete:
            raise Wrong(f"an error answer of status {answer.status} is cut")
        try:
            error_of(kind, answer.json())
        except (AssertionError, KeyError, TypeError, ValueError) as problem:
            raise Wrong(f"status {answer.status} in another shape ({problem!r}): {answer.body[:200]!r}") from None
        return f"error {answer.status}"
    if stream:
        return _read_stream(kind, answer, said, call)
    if not answer.complete:
        return "cut"
    wanted = whole(kind, answer.json()["model"], said, call)
    if answer.json() != wanted:
        raise Wrong(f"another answer came: {answer.body[:300]!r}")
    return "good"


def _read_stream(kind: str, answer: Answer, said: list[str], call: int | None) -> str:
    if not answer.complete:
        raise Wrong(f"a stream ends without its last chunk, after {answer.body[-200:]!r}")
    found = answer.events()
    if not found:
        raise Wrong("a stream without any event")
    failed = _is_error(kind, *found[-1])
    problem = ""
    for model in MODELS:
        wanted = _expected(kind, model, said, call)
        if not (problem := _difference(found[:-1], wanted) if failed else _first_difference(found, wanted)):
            return "event" if failed else "good"
        if model in answer.body.decode():
            break
    raise Wrong(problem)


def _first_difference(found: list[tuple[str, str]], wanted: list[tuple[str, str]]) -> str:
    if found == wanted:
        return ""
    place = next((i for i, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b), min(len(found), len(wanted)))
    return f"{len(found)} events came, {len(wanted)} were sent; they differ at {place}: {found[place : place + 1]!r}"


def _difference(body: list[tuple[str, str]], wanted: list[tuple[str, str]]) -> str:
    """What is wrong with what came before an error; the last event may be half, since it is closed before the error.

    All events may have come: then only the end of the framing was missing.
    """
    if len(body) > len(wanted):
        return "an error came after more than the answer"
    if not body:
        return ""
    (name, data), (right_name, right_data) = body[-1], wanted[len(body) - 1]
    if body[:-1] == wanted[: len(body) - 1] and name == right_name and right_data.startswith(data):
        return ""
    return f"before the error something else came: {body[-1]!r}"


def _expected(kind: str, model: str, said: list[str], call: int | None) -> list[tuple[str, str]]:
    whole_stream = b"".join(events(kind, model, said, call, usage=False))
    return Answer(200, [], whole_stream).events()


def _is_error(kind: str, name: str, data: str) -> bool:
    if kind == "chat":
        return data.startswith('{"error"') and bool(error_of(kind, json.loads(data)))
    if kind == "messages":
        return name == "error" and bool(error_of(kind, json.loads(data)))
    return name == "response.failed" and bool(json.loads(data)["response"]["error"]["message"])
