"""An engine that plays the model: it lets the agent read a file with the agent's own tool, then says what stood there.

It speaks like vLLM 0.32 on chat, Responses and Messages, streamed or not, thoughts included, and keeps no state: what
it says follows from the conversation alone. The file's path stands in the human's words, the secret word only in the
file; so an answer with the word proves that a tool's result came back through the gateway.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from integration.answers import answer
from integration.engine import Engine, Request, Step, named, reply, sse, stream

Json = dict[str, Any]

TITLE = "Reading a note"
THOUGHT = "The word stands in the file, so the file must be read first."
NOTE = "The secret word is {}"
_WORD = re.compile(r"The secret word is ([a-z]+-[a-z]+-[0-9]+)")
_FILE = re.compile(r"(/[^\s\"'`]+/note\.txt)")
_READS = (re.compile(r"read(_?file)?", re.IGNORECASE), re.compile(r".*(shell|bash|exec|command|terminal).*", re.IGNORECASE))
MAX_TRIES = 2  # a tool that fails twice will not do better the third time, and the test shall end
_ids = itertools.count(1)


class ScriptedModel(Engine):
    """One engine for agents. See `integration.engine.Engine` for what tests can ask it."""

    def script_for(self, request: Request) -> Iterable[Step]:
        """What to say to a request."""
        speak = _PROTOCOLS.get(request.path)
        return answer(self, request) if speak is None else speak(self, request.json())


@dataclass(frozen=True)
class Tool:
    """A tool of any protocol: its name, the JSON Schema of its arguments, and its description."""

    name: str
    schema: Json
    about: str = ""


@dataclass
class Talk:
    """A conversation of any protocol, as far as the script looks at it."""

    texts: list[str] = field(default_factory=list)
    human: str = ""
    results: list[str] = field(default_factory=list)
    tools: list[Tool] = field(default_factory=list)
    json_wanted: Json | None = None

    def add(self, role: str, content: Any) -> None:
        """Add a message of chat or Messages, or a message item of Responses."""
        for part in [content] if isinstance(content, str) else content or []:
            text = part if isinstance(part, str) else part.get("text", "")
            if isinstance(part, dict) and part.get("type") == "tool_result":
                self.results.append(_flat(part.get("content")))
            elif role == "tool":
                self.results.append(text)
            else:
                self.texts.append(text)
                self.human = text if role == "user" and _FILE.search(text) else self.human


@dataclass(frozen=True)
class Say:
    """What the model says: a text, or a call of a tool."""

    text: str = ""
    call: str = ""
    arguments: str = ""
    thought: str = ""


# ---- the script ----


def decide(talk: Talk) -> Say:
    """The model's next words. Pure."""
    for text in (*talk.results, *talk.texts):
        if found := _WORD.search(text):
            return Say(_final(found[1], talk))
    if not talk.tools:
        return Say(json.dumps(_titled(talk.json_wanted)) if talk.json_wanted else TITLE)
    if len(talk.results) >= MAX_TRIES:
        return Say(f"I can't find the word. The tools said: {talk.results}")
    file = _FILE.search(talk.human)
    if file is None:
        return Say("Which file do you mean?")
    if "sub-agent" in talk.human:
        return _delegate(talk, file[1])
    for wanted in _READS:
        for tool in talk.tools:
            if wanted.fullmatch(tool.name):
                return Say(call=tool.name, arguments=json.dumps(_arguments(tool.schema, file[1])), thought=THOUGHT)
    return Say(f"I have no tool that reads files, only {[t.name for t in talk.tools]}")


def _delegate(talk: Talk, path: str) -> Say:
    """Let a sub-agent do it, by whatever tool the agent has for that; one that works in the background is waited for."""
    if talk.results:
        return Say("The sub-agent is at work.")
    prompt = f"Read the file {path} with your tool and say which secret word stands in it."
    task = {"prompt": prompt, "description": "Read a note"}
    for tool in talk.tools:
        if {"prompt", "description"} <= tool.schema.get("properties", {}).keys():
            kind = re.search(r"\bgeneral(-purpose)?\b", tool.about)
            return Say(call=tool.name, arguments=json.dumps(task | {"subagent_type": kind[0] if kind else "general"}))
    return Say(f"I have no tool that starts sub-agents, only {[t.name for t in talk.tools]}")


def _final(word: str, talk: Talk) -> str:
    """The last answer; for an agent without tools, in the form in which it takes files."""
    if "answer.txt" in talk.human and not talk.tools:
        return f"Here it is.\n\nanswer.txt\n```\n{word}\n```\n"
    return f"I have read it. The secret word is {word}"


def _titled(schema: Json) -> Json:
    return dict.fromkeys(schema.get("properties", {"title": {}}), TITLE)


def _arguments(schema: Json, path: str) -> Json:
    """Arguments with which a reading tool or a shell reads a file: what the schema requires, and whatever names the file."""
    properties: Json = schema.get("properties", {})
    given: Json = {}
    for name, kind in properties.items():
        plain = name.lower().replace("_", "")
        if plain in {"path", "filepath", "file", "filename", "absolutepath"}:
            given[name] = path
        elif plain in {"cmd", "command"}:
            given[name] = ["cat", path] if kind.get("type") == "array" else f"cat {path}"
        elif name in schema.get("required", ()):
            plainest: Json = {"integer": 1, "number": 1, "boolean": False, "array": [], "object": {}}
            given[name] = plainest.get(kind.get("type"), "Read it")
    return given


def _tool(given: Json, schema: str) -> Tool:
    return Tool(given["name"], given.get(schema) or {}, given.get("description") or "")


def _flat(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(p if isinstance(p, str) else str(p.get("text", "")) for p in content or [])


def _pieces(text: str) -> Iterator[str]:
    """Text as it streams: some characters at a time."""
    for start in range(0, len(text), 9):
        yield text[start : start + 9]


# ---- chat ----


def _chat(engine: Engine, body: Json) -> Iterable[Step]:
    talk = Talk(tools=[_tool(t["function"], "parameters") for t in body.get("tools") or []])
    talk.json_wanted = ((body.get("response_format") or {}).get("json_schema") or {}).get("schema")
    for message in body["messages"]:
        talk.add(message["role"], message.get("content"))
    say = decide(talk)
    id_ = f"call_{next(_ids)}"
    finish = "tool_calls" if say.call else "stop"
    usage = {"prompt_tokens": 1000, "completion_tokens": 20, "total_tokens": 1020}
    common = {"id": f"chatcmpl-{next(_ids)}", "created": 1_788_974_814, "model": engine.model}
    if not body.get("stream"):
        call = {"id": id_, "type": "function", "function": {"name": say.call, "arguments": say.arguments}}
        message = {
            "role": "assistant", "content": say.text or None, "reasoning": say.thought or None,
            "tool_calls": [call] if say.call else [],
        }  # fmt: skip
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish, "stop_reason": None}
        return reply({**common, "object": "chat.completion", "choices": [choice], "usage": usage})

    def part(delta: Json, finish: str | None = None) -> Json:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**common, "object": "chat.completion.chunk", "choices": [choice]}

    parts = [part({"role": "assistant", "content": ""})]
    parts += [part({"reasoning": piece}) for piece in _pieces(say.thought)]
    if say.call:
        begin = {"index": 0, "id": id_, "type": "function", "function": {"name": say.call, "arguments": ""}}
        parts.append(part({"tool_calls": [begin]}))
        parts += [part({"tool_calls": [{"index": 0, "function": {"arguments": p}}]}) for p in _pieces(say.arguments)]
    parts += [part({"content": piece}) for piece in _pieces(say.text)]
    parts.append(part({}, finish))
    if (body.get("stream_options") or {}).get("include_usage"):
        parts.append({**common, "object": "chat.completion.chunk", "choices": [], "usage": usage})
    return stream(*map(sse, parts), b"data: [DONE]\n\n")


# ---- Responses ----


def _responses(engine: Engine, body: Json) -> Iterable[Step]:
    talk = Talk(tools=[_tool(t, "parameters") for t in body.get("tools") or [] if t["type"] == "function"])
    form = (body.get("text") or {}).get("format") or {}
    talk.json_wanted = form.get("schema") if form.get("type") == "json_schema" else None
    given = body["input"]
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else given:
        if item.get("type") in {"function_call_output", "custom_tool_call_output"}:
            talk.results.append(_flat(item["output"]))
        elif "role" in item:
            talk.add(item["role"], item.get("content"))
    say = decide(talk)
    items = list(_items(say))
    response = {
        "id": f"resp_{next(_ids)}", "object": "response", "created_at": 1_788_974_814, "model": engine.model,
        "status": "completed", "output": items, "parallel_tool_calls": True, "tool_choice": "auto",
        "tools": body.get("tools") or [], "error": None, "incomplete_details": None, "metadata": None,
        "usage": {"input_tokens": 1000, "output_tokens": 20, "total_tokens": 1020,
                  "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}},
    }  # fmt: skip
    if not body.get("stream"):
        return reply(response)
    return stream(*(named(e | {"sequence_number": n}) for n, e in enumerate(_response_events(response, items))))


def _items(say: Say) -> Iterator[Json]:
    """Output items of an answer."""
    if say.thought:
        thought = [{"type": "reasoning_text", "text": say.thought}]
        yield {"type": "reasoning", "id": f"rs_{next(_ids)}", "summary": [], "content": thought, "status": "completed"}
    if say.call:
        n = next(_ids)
        yield {"type": "function_call", "id": f"fc_{n}", "call_id": f"call_{n}", "name": say.call, "arguments": say.arguments,
               "status": "completed"}  # fmt: skip
    else:
        content: list[Json] = [{"type": "output_text", "text": say.text, "annotations": [], "logprobs": None}]
        yield {"type": "message", "id": f"msg_{next(_ids)}", "role": "assistant", "content": content, "status": "completed"}


def _response_events(response: Json, items: list[Json]) -> Iterator[Json]:
    begun = {**response, "status": "in_progress", "output": [], "usage": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(items):
        place = {"item_id": item["id"], "output_index": index}
        if item["type"] == "function_call":
            opened: Json = {**item, "arguments": "", "status": "in_progress"}
            yield {"type": "response.output_item.added", "output_index": index, "item": opened}
            for piece in _pieces(item["arguments"]):
                yield {"type": "response.function_call_arguments.delta", **place, "delta": piece}
            done = {"name": item["name"], "arguments": item["arguments"]}
            yield {"type": "response.function_call_arguments.done", **place, **done}
        else:
            part = item["content"][0]
            kind = "reasoning_text" if item["type"] == "reasoning" else "output_text"
            more: Json = {"logprobs": []} if kind == "output_text" else {}
            opened = {**item, "content": [], "status": "in_progress"}
            yield {"type": "response.output_item.added", "output_index": index, "item": opened}
            yield {"type": "response.content_part.added", **place, "content_index": 0, "part": {**part, "text": ""}}
            for piece in _pieces(part["text"]):
                yield {"type": f"response.{kind}.delta", **place, "content_index": 0, "delta": piece, **more}
            yield {"type": f"response.{kind}.done", **place, "content_index": 0, "text": part["text"], **more}
            yield {"type": "response.content_part.done", **place, "content_index": 0, "part": part}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": "response.completed", "response": response}


# ---- Messages ----


def _messages(engine: Engine, body: Json) -> Iterable[Step]:
    talk = Talk(tools=[_tool(t, "input_schema") for t in body.get("tools") or []])
    form = (body.get("output_config") or {}).get("format") or body.get("output_format") or {}
    talk.json_wanted = form.get("schema")
    for message in body["messages"]:
        talk.add(message["role"], message["content"])
    say = decide(talk)
    blocks: list[Json] = []
    if say.thought:
        blocks.append({"type": "thinking", "thinking": say.thought, "signature": f"{next(_ids):032x}"})
    if say.call:
        call = {"type": "tool_use", "id": f"toolu_{next(_ids)}", "name": say.call, "input": json.loads(say.arguments)}
        blocks.append(call)
    else:
        blocks.append({"type": "text", "text": say.text})
    message = {
        "id": f"msg_{next(_ids)}", "type": "message", "role": "assistant", "model": engine.model, "content": blocks,
        "stop_reason": "tool_use" if say.call else "end_turn", "stop_sequence": None,
        "usage": {"input_tokens": 1000, "output_tokens": 20},
    }  # fmt: skip
    if not body.get("stream"):
        return reply(message)
    return stream(*map(named, _message_events(message, blocks)))


def _message_events(message: Json, blocks: list[Json]) -> Iterator[Json]:
    usage = {"input_tokens": 1000, "output_tokens": 0}
    yield {"type": "message_start", "message": {**message, "content": [], "stop_reason": None, "usage": usage}}
    for index, block in enumerate(blocks):
        deltas: Iterable[Json]
        if block["type"] == "thinking":
            opened: Json = {"type": "thinking", "thinking": ""}
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in _pieces(block["thinking"])]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        elif block["type"] == "tool_use":
            opened = {**block, "input": {}}
            written = json.dumps(block["input"])
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in _pieces(written)]
        else:
            opened = {"type": "text", "text": ""}
            deltas = [{"type": "text_delta", "text": piece} for piece in _pieces(block["text"])]
        yield {"type": "content_block_start", "index": index, "content_block": opened}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ending = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": ending, "usage": message["usage"]}
    yield {"type": "message_stop"}


_PROTOCOLS = {"/v1/chat/completions": _chat, "/v1/responses": _responses, "/v1/messages": _messages}
