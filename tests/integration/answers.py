"""What the fake engine answers when a test gives it no script: vLLM's shapes, made from the request. Pure but for ids."""

from __future__ import annotations

import base64
import itertools
import json
import math
import struct
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from .engine import Step, named, reply, sse, stream

if TYPE_CHECKING:
    from .engine import Engine, Request

Json = dict[str, Any]
USAGE = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}
TEXT = "Hello from the engine"
_PATHS = (
    "chat/completions", "completions", "responses", "messages", "embeddings", "rerank", "score", "messages/count_tokens",
)  # fmt: skip
_ids = itertools.count(1)


def answer(engine: Engine, request: Request) -> Iterable[Step]:
    """The answer to any request."""
    path = request.path
    if path == "/health":
        return reply(b"", 200 if engine.healthy else 500)
    if engine.key is not None and request.header("authorization") != f"Bearer {engine.key}":
        return reply({"error": "Unauthorized"}, 401)
    if path == "/v1/models":
        card = {"id": engine.model, "object": "model", "created": 1, "owned_by": "vllm", "root": engine.model}
        card |= {"max_model_len": engine.context} if engine.context is not None else {}
        return reply({"object": "list", "data": [card]})
    if path == "/openapi.json":
        spoken = [p for p in _PATHS if not engine.speaks or p in engine.speaks]
        paths = [*(f"/v1/{p}" for p in spoken), *(["/tokenize"] if not engine.speaks else [])]
        return reply({"openapi": "3.1.0", "paths": {p: {"post": {}} for p in paths}})
    if path == "/tokenize":
        return reply({"count": 3, "max_model_len": engine.context, "tokens": [1, 2, 3]})
    if path.startswith("/v1/responses/"):
        return _stored(engine, request)
    kind = path.removeprefix("/v1/")
    if kind not in _PATHS or (engine.speaks and kind not in engine.speaks):
        return reply({"detail": "Not Found"}, 404)
    return _ANSWERS[kind](engine, request.json())


def example(schema: Json) -> Any:
    """The plainest value that a JSON Schema takes."""
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "object":
            return {name: example(inner) for name, inner in schema.get("properties", {}).items()}
        case "array":
            return [example(schema.get("items", {}))]
        case "integer":
            return 7
        case "number":
            return 1.5
        case "boolean":
            return True
        case _:
            return "Paris"


def _words(text: str) -> Iterator[str]:
    """Text as it streams: a word, with the space before it."""
    for i, word in enumerate(text.split(" ")):
        yield word if not i else f" {word}"


# ---- chat ----


def _chat(engine: Engine, body: Json) -> Iterable[Step]:
    if body.get("logprobs") and body.get("max_tokens") == 1:
        return reply(_verdict(engine, body))
    last = body["messages"][-1]
    common = {"id": f"chatcmpl-{next(_ids)}", "created": 1_788_974_814, "model": engine.model}
    calls, text = [], TEXT
    if body.get("tools") and last["role"] != "tool" and body.get("tool_choice") != "none":
        function = body["tools"][0]["function"]
        arguments = json.dumps(example(function.get("parameters", {})))
        calls = [{"id": "call_1", "type": "function", "function": {"name": function["name"], "arguments": arguments}}]
        text = ""
    elif last["role"] == "tool":
        text = f"The tool said {last['content']}"
    elif (body.get("response_format") or {}).get("type") == "json_schema":
        text = json.dumps(example(body["response_format"]["json_schema"]["schema"]))
    finish = "tool_calls" if calls else "stop"
    if not body.get("stream"):
        message = {"role": "assistant", "content": text or None, "reasoning": None, "tool_calls": calls}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
        return reply({**common, "object": "chat.completion", "choices": [choice], "usage": USAGE})

    def part(delta: Json, finish: str | None = None) -> Json:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**common, "object": "chat.completion.chunk", "choices": [choice]}

    parts = [part({"role": "assistant", "content": ""})]
    for call in calls:
        function = {"name": call["function"]["name"], "arguments": ""}
        parts.append(part({"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]}))
        written = call["function"]["arguments"]
        for piece in (written[:3], written[3:]):
            parts.append(part({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}))
    parts += [part({"content": word}) for word in _words(text)] if text else []
    parts.append(part({}, finish))
    if (body.get("stream_options") or {}).get("include_usage"):
        parts.append({**common, "object": "chat.completion.chunk", "choices": [], "usage": USAGE})
    return stream(*map(sse, parts), b"data: [DONE]\n\n")


def _verdict(engine: Engine, body: Json) -> Json:
    """One token, yes or no, with its log-probabilities."""
    yes, no = (max(p, 1e-9) for p in (engine.yes, 1 - engine.yes))
    top = [
        {"token": " Yes", "logprob": math.log(yes / 2), "bytes": None},
        {"token": "yes", "logprob": math.log(yes / 2), "bytes": None},
        {"token": "No", "logprob": math.log(no), "bytes": None},
        {"token": "maybe", "logprob": -8.0, "bytes": None},
    ]
    logprobs = {"content": [{**top[0], "top_logprobs": top}]}
    choice = {
        "index": 0, "message": {"role": "assistant", "content": "Yes"}, "logprobs": logprobs, "finish_reason": "length"
    }  # fmt: skip
    return {
        "id": "chatcmpl-v", "object": "chat.completion", "created": 1, "model": engine.model, "choices": [choice],
        "usage": USAGE,
    }  # fmt: skip


def _completions(engine: Engine, body: Json) -> Iterable[Step]:
    common = {"id": f"cmpl-{next(_ids)}", "object": "text_completion", "created": 1, "model": engine.model}

    def part(text: str, finish: str | None) -> Json:
        return {**common, "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": finish}]}

    if not body.get("stream"):
        return reply({**part(TEXT, "stop"), "usage": USAGE})
    parts = [part(word, None) for word in _words(TEXT)] + [part("", "stop")]
    if (body.get("stream_options") or {}).get("include_usage"):
        parts.append({**common, "choices": [], "usage": USAGE})
    return stream(*map(sse, parts), b"data: [DONE]\n\n")


# ---- Responses ----


def _responses(engine: Engine, body: Json) -> Iterable[Step]:
    given = body["input"]
    results = [i for i in given if i.get("type") == "function_call_output"] if isinstance(given, list) else []
    id_ = f"resp_{next(_ids)}"
    if body.get("tools") and not results:
        tool = body["tools"][0]
        item = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": tool["name"], "status": "completed",
                "arguments": json.dumps(example(tool.get("parameters", {})))}  # fmt: skip
    else:
        text = f"The tool said {results[-1]['output']}" if results else TEXT
        if ((body.get("text") or {}).get("format") or {}).get("type") == "json_schema":
            text = json.dumps(example(body["text"]["format"]["schema"]))
        item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
                "content": [{"type": "output_text", "text": text, "annotations": []}]}  # fmt: skip
    response = {
        "id": id_, "object": "response", "created_at": 1, "model": engine.model, "status": "completed", "output": [item],
        "parallel_tool_calls": True, "tool_choice": "auto", "tools": body.get("tools", []), "error": None,
        "previous_response_id": body.get("previous_response_id"),
        "usage": {"input_tokens": 9, "output_tokens": 4, "total_tokens": 13, "input_tokens_details": {"cached_tokens": 2},
                  "output_tokens_details": {"reasoning_tokens": 0}},
    }  # fmt: skip
    if body.get("store", True):
        engine.stored[id_] = response
    if not body.get("stream"):
        return reply(response)
    return stream(*(named(e | {"sequence_number": n}) for n, e in enumerate(_response_events(response, item))))


def _response_events(response: Json, item: Json) -> Iterator[Json]:
    begun = {**response, "status": "in_progress", "output": [], "usage": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    place = {"item_id": item["id"], "output_index": 0}
    if item["type"] == "message":
        text = item["content"][0]["text"]
        empty = {"type": "output_text", "text": "", "annotations": []}
        yield {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}}
        yield {"type": "response.content_part.added", **place, "content_index": 0, "part": empty}
        for word in _words(text):
            yield {"type": "response.output_text.delta", **place, "content_index": 0, "delta": word, "logprobs": []}
        yield {"type": "response.output_text.done", **place, "content_index": 0, "text": text, "logprobs": []}
        yield {"type": "response.content_part.done", **place, "content_index": 0, "part": item["content"][0]}
    else:
        written = item["arguments"]
        yield {"type": "response.output_item.added", "output_index": 0, "item": {**item, "arguments": ""}}
        yield {"type": "response.function_call_arguments.delta", **place, "delta": written}
        yield {"type": "response.function_call_arguments.done", **place, "name": item["name"], "arguments": written}
    yield {"type": "response.output_item.done", "output_index": 0, "item": item}
    yield {"type": "response.completed", "response": response}


def _stored(engine: Engine, request: Request) -> Iterable[Step]:
    id_ = request.path.split("/")[3]
    if id_ not in engine.stored:
        return reply({"error": {"message": f"no response {id_}", "type": "invalid_request_error", "code": 404}}, 404)
    if request.method == "DELETE":
        del engine.stored[id_]
        return reply({"id": id_, "object": "response", "deleted": True})
    return reply(engine.stored[id_])


# ---- Messages ----


def _messages(engine: Engine, body: Json) -> Iterable[Step]:
    content = body["messages"][-1]["content"]
    results = [p for p in content if p.get("type") == "tool_result"] if isinstance(content, list) else []
    if body.get("tools") and not results:
        tool = body["tools"][0]
        block = {"type": "tool_use", "id": "toolu_1", "name": tool["name"], "input": example(tool["input_schema"])}
    else:
        text = f"The tool said {results[-1]['content']}" if results else TEXT
        wanted = (body.get("output_config") or {}).get("format") or body.get("output_format") or {}
        if wanted.get("type") == "json_schema":
            text = json.dumps(example(wanted["schema"]))
        block = {"type": "text", "text": text}
    stop = "tool_use" if block["type"] == "tool_use" else "end_turn"
    message = {
        "id": f"msg_{next(_ids)}", "type": "message", "role": "assistant", "model": engine.model, "content": [block],
        "stop_reason": stop, "stop_sequence": None, "usage": {"input_tokens": 9, "output_tokens": 4},
    }  # fmt: skip
    if not body.get("stream"):
        return reply(message)
    return stream(*map(named, _message_events(message, block)))


def _message_events(message: Json, block: Json) -> Iterator[Json]:
    begun = {**message, "content": [], "stop_reason": None, "usage": {"input_tokens": 9, "output_tokens": 0}}
    yield {"type": "message_start", "message": begun}
    if block["type"] == "text":
        yield {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        deltas = [{"type": "text_delta", "text": word} for word in _words(block["text"])]
    else:
        yield {"type": "content_block_start", "index": 0, "content_block": {**block, "input": {}}}
        deltas = [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
    for delta in deltas:
        yield {"type": "content_block_delta", "index": 0, "delta": delta}
    yield {"type": "content_block_stop", "index": 0}
    ending = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": ending, "usage": {"output_tokens": 4}}
    yield {"type": "message_stop"}


def _count(engine: Engine, body: Json) -> Iterable[Step]:
    return reply({"input_tokens": 42})


# ---- the rest ----


def _embeddings(engine: Engine, body: Json) -> Iterable[Step]:
    texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
    vector = [0.25, -1.0, 0.5]
    given: Any = base64.b64encode(struct.pack("<3f", *vector)).decode() if body.get("encoding_format") == "base64" else vector
    found = [{"object": "embedding", "index": i, "embedding": given} for i in range(len(texts))]
    usage = {"prompt_tokens": 3, "total_tokens": 3}
    return reply({"object": "list", "data": found, "model": engine.model, "usage": usage})


def _rerank(engine: Engine, body: Json) -> Iterable[Step]:
    return reply({"id": "rerank-1", "model": engine.model, "results": [{"index": 0, "relevance_score": 0.5}]})


def _score(engine: Engine, body: Json) -> Iterable[Step]:
    return reply({"id": "score-1", "object": "list", "model": engine.model, "data": [{"index": 0, "score": 0.5}]})


_ANSWERS = {
    "chat/completions": _chat, "completions": _completions, "responses": _responses, "messages": _messages,
    "messages/count_tokens": _count, "embeddings": _embeddings, "rerank": _rerank, "score": _score,
}  # fmt: skip
