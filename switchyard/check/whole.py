"""The check of an answer in one piece, and the usage of two answers in one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from switchyard.check.events import as_dict, decoded, dicts, summed
from switchyard.check.responses import CALL_TEXTS, is_call
from switchyard.check.tools import GivenTools
from switchyard.errors import InvalidRequest
from switchyard.routing.request import Body


def check_answer(protocol: str, body: bytes, tools: GivenTools) -> str | None:
    """What is wrong with the first bad tool call of an answer; None when there is none, or no answer to be read.

    Args:
        protocol: chat, messages or responses; other answers have no calls.
        body: as the engine sent it.
        tools: what the request gave.
    """
    answer = decoded(body)
    if answer is None or protocol not in _FINDERS:
        return None
    return next((problem for problem in _FINDERS[protocol](answer, tools) if problem is not None), None)


def merge_usage(protocol: str, first: bytes, second: bytes) -> bytes:
    """The second answer with the usage of both; its other bytes stay as they are."""
    usage = as_dict((decoded(first) or {}).get("usage"))
    own = (decoded(second) or {}).get("usage")
    if not usage or not isinstance(own, dict):
        return second
    try:
        return Body(second).patched({"usage": msgspec.json.encode(summed(usage, own))})
    except InvalidRequest:  # a key stands twice in it
        return second


def _in_chat(answer: dict[str, Any], tools: GivenTools) -> Iterator[str | None]:
    for choice in dicts(answer.get("choices")):
        for call in dicts(as_dict(choice.get("message")).get("tool_calls")):
            function = as_dict(call.get("function") or call.get("custom"))
            yield _problem(tools, function.get("name"), function.get("arguments", function.get("input")))


def _in_messages(answer: dict[str, Any], tools: GivenTools) -> Iterator[str | None]:
    for block in dicts(answer.get("content")):
        if block.get("type") == "tool_use":
            yield tools.problem_of_value(str(block.get("name") or ""), block.get("input", {}))


def _in_responses(answer: dict[str, Any], tools: GivenTools) -> Iterator[str | None]:
    for item in dicts(answer.get("output")):
        if is_call(item):
            yield _problem(tools, item.get("name"), item.get(CALL_TEXTS[item["type"]]))


def _problem(tools: GivenTools, name: Any, text: Any) -> str | None:
    if text is not None and not isinstance(text, str):
        return "the arguments of a call are no text"
    return tools.problem_of(name if isinstance(name, str) else "", text)


_FINDERS = {"chat": _in_chat, "messages": _in_messages, "responses": _in_responses}
