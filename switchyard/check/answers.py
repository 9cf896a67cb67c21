"""A whole answer, as what it says: its text and its tool calls; and whether two answers say the same. Pure.

Only complete answers are read, streamed or not. Reasoning is left out: it is no part of what an answer says.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from switchyard.check.events import Message, as_dict, decoded, dicts, read_event
from switchyard.check.responses import CALL_TEXTS, is_call
from switchyard.check.tools import read_arguments
from switchyard.upstream.sse import EventSplitter

Kind = Literal["tool_calls", "text"]
LONGEST_TEXT = 200
"""Characters, in normal form, of texts that are compared: longer ones can say the same in too many ways."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What an answer says.

    Attributes:
        text: of its first choice.
        calls: tool and arguments of each call, in order; arguments by value, or as text where they are no JSON.
    """

    text: str
    calls: tuple[tuple[str, Any], ...]


def read_answer(protocol: str, body: bytes, stream: bool) -> Answer | None:
    """Read an answer of chat, messages or responses; None when it is incomplete, or something else."""
    if protocol not in _WHOLE:
        return None
    message = _STREAMS[protocol](_events(body)) if stream else decoded(body)
    return _WHOLE[protocol](message) if message is not None else None


def compare(first: Answer, second: Answer) -> tuple[Kind, bool] | None:
    """What was compared, and whether it is the same; None where that can't be told.

    With a tool call on either side: the same calls of the same tools, with arguments equal by value, in any order. Else
    the texts in normal form: compatibility characters and case folded, runs of anything but letters and digits made one
    space. Texts of which one is longer than `LONGEST_TEXT` then are not compared.
    """
    if first.calls or second.calls:
        left = list(second.calls)
        for name, arguments in first.calls:
            at = next((i for i, (n, a) in enumerate(left) if n == name and same_value(a, arguments)), None)
            if at is None:
                return "tool_calls", False
            del left[at]
        return "tool_calls", not left
    texts = normal(first.text), normal(second.text)
    if max(map(len, texts)) > LONGEST_TEXT or not all(texts):
        return None
    return "text", texts[0] == texts[1]


def normal(text: str) -> str:
    """A text's normal form; see `compare`."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join("".join(c if c.isalnum() else " " for c in folded).split())


def same_value(a: Any, b: Any) -> bool:
    """Whether two JSON values are equal: 1 and 1.0 are, 1 and true are not, and NaN is itself."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same_value(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same_value, a, b))
    return bool(a == b or (a != a and b != b))  # NaN, which engines write, is unlike itself


# ---- whole answers ----


def _chat(message: Message) -> Answer | None:
    first = next(iter(dicts(message.get("choices"))), None)
    if first is None:
        return None
    said = as_dict(first.get("message"))
    functions = [as_dict(call.get("function") or call.get("custom")) for call in dicts(said.get("tool_calls"))]
    calls = tuple((_text(f.get("name")), _value(f.get("arguments", f.get("input")))) for f in functions)
    return Answer(_joined(said.get("content")), calls)


def _messages(message: Message) -> Answer | None:
    if not isinstance(message.get("content"), list):
        return None
    blocks = list(dicts(message["content"]))
    calls = tuple((_text(b.get("name")), b.get("input")) for b in blocks if b.get("type") == "tool_use")
    return Answer("".join(_text(b.get("text")) for b in blocks if b.get("type") == "text"), calls)


def _responses(message: Message) -> Answer | None:
    if not isinstance(message.get("output"), list):
        return None
    items = list(dicts(message["output"]))
    texts = [_joined(item.get("content")) for item in items if item.get("type") == "message"]
    called = [item for item in items if is_call(item)]
    calls = tuple((_text(item.get("name")), _value(item.get(CALL_TEXTS[item["type"]]))) for item in called)
    return Answer("".join(texts), calls)


def _joined(content: Any) -> str:
    return content if isinstance(content, str) else "".join(_text(part.get("text")) for part in dicts(content))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _value(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        return read_arguments(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return arguments


# ---- streams: put together to what the answer would have been in one piece ----


def _events(body: bytes) -> Iterator[Message]:
    splitter = EventSplitter()
    for event in [*splitter.feed(body), splitter.rest()]:
        yield from read_event(event)[1]


def _chat_stream(events: Iterator[Message]) -> Message | None:
    texts: list[str] = []
    calls: dict[str, dict[str, str]] = {}
    ended = False
    for event in events:
        for choice in dicts(event.get("choices")):
            if choice.get("index", 0) != 0:
                continue
            delta = as_dict(choice.get("delta"))
            texts.append(_text(delta.get("content")))
            ended = ended or bool(choice.get("finish_reason"))
            for piece in dicts(delta.get("tool_calls")):
                call = calls.setdefault(str(piece.get("index", len(calls))), {"name": "", "arguments": ""})
                function = as_dict(piece.get("function") or piece.get("custom"))
                call["name"] = call["name"] or _text(function.get("name"))
                call["arguments"] += _text(function.get("arguments", function.get("input")))
    if not ended:
        return None
    functions = [{"function": call} for call in calls.values()]
    return {"choices": [{"message": {"content": "".join(texts), "tool_calls": functions}}]}


def _messages_stream(events: Iterator[Message]) -> Message | None:
    blocks: dict[str, Message] = {}
    ended = False
    for event in events:
        kind, delta = event.get("type"), as_dict(event.get("delta"))
        if kind == "content_block_start":
            blocks[str(event.get("index"))] = {**as_dict(event.get("content_block")), "pieces": ""}
        elif kind == "content_block_delta" and str(event.get("index")) in blocks:
            blocks[str(event["index"])]["pieces"] += _text(delta.get("text")) or _text(delta.get("partial_json"))
        ended = ended or kind == "message_stop"
    if not ended:
        return None
    for block in blocks.values():
        pieces = block.pop("pieces")
        if block.get("type") == "text":
            block["text"] = _text(block.get("text")) + pieces
        elif pieces:
            block["input"] = _value(pieces)
    return {"content": list(blocks.values())}


def _responses_stream(events: Iterator[Message]) -> Message | None:
    whole = None
    for event in events:
        if event.get("type") in ("response.completed", "response.incomplete"):
            whole = event.get("response")
    return whole if isinstance(whole, dict) else None


_WHOLE = {"chat": _chat, "messages": _messages, "responses": _responses}
_STREAMS = {"chat": _chat_stream, "messages": _messages_stream, "responses": _responses_stream}
