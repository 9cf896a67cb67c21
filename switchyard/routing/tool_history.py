"""Tools in a conversation: what the model called, and whether a result is an error."""

from __future__ import annotations

import re

import msgspec

from switchyard.routing.request import NULL, UNREADABLE, Item, content_parts, text_of

CALL_TYPES = {"function_call", "custom_tool_call", "local_shell_call"}
RESULT_TYPES = {"function_call_output", "custom_tool_call_output", "local_shell_call_output"}
_ERROR_START = re.compile(
    rb"(?:\\[nrt]|\W){0,6}(?:error|exception|traceback|failed|fatal|command failed|exit code:? [1-9])", re.IGNORECASE
)


def chat_calls(item: Item) -> list[tuple[str, str]]:
    """Name and arguments of the calls in an assistant's message of the chat protocol."""
    if item.tool_calls is NULL:
        return []
    try:
        calls = msgspec.json.decode(item.tool_calls)
    except UNREADABLE:
        return []
    found = []
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            found.append((str(function.get("name")), str(function.get("arguments"))))
    return found


def is_error(content: msgspec.Raw) -> bool:
    """Whether a tool result begins like an error. A plain string is looked at as it is written, quote included."""
    text = bytes(content)
    if text.startswith(b'"'):
        return _ERROR_START.match(text, 1) is not None
    return _ERROR_START.match(text_of(content_parts(content)).encode(errors="replace")) is not None
