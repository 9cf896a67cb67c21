"""Reading and rewriting single events of a stream. What their messages mean is each protocol's module."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from switchyard.upstream.sse import event_data

Message = dict[str, Any]
BOM = b"\xef\xbb\xbf"
DONE = b"[DONE]"
_LINE = re.compile(rb"([^\r\n]*)(\r\n|\r|\n|\Z)")


def read_event(event: bytes) -> tuple[bytes, list[Message]]:
    """The event's data, and the JSON objects in it: one, or none for comments and end marks.

    Some engines forget the empty line between events, and some clients read line by line all the same: then each data
    line is an object.
    """
    data = event_data(event)
    if not data or data == DONE:
        return data, []
    found = decoded(data)
    if found is not None:
        return data, [found]
    if b"\n" not in data:
        return data, []
    return data, [found for line in data.split(b"\n") if (found := decoded(line)) is not None]


def decoded(data: bytes) -> Message | None:
    """A JSON object, also one that only lenient readers take (halves of surrogate pairs, broken UTF-8)."""
    if data.lstrip()[:1] != b"{":
        return None
    try:
        found = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        try:
            found = json.loads(data.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            return None
    return found if isinstance(found, dict) else None


def encoded(message: Message) -> bytes:
    """JSON on one line."""
    try:
        return msgspec.json.encode(message)
    except UnicodeEncodeError:  # half of a surrogate pair: it goes on as the escape that it was
        return json.dumps(message, separators=(",", ":")).encode()


def rewritten(event: bytes, message: Message) -> bytes:
    """The same event with another message; its other lines and its line ends stay."""
    pieces: list[bytes] = []
    placed = False
    for line, end in _LINE.findall(event.removeprefix(BOM)):
        if not line.startswith(b"data:"):
            pieces += (line, end)
        elif not placed:
            pieces += (b"data: ", encoded(message), end)
            placed = True
    return b"".join(pieces)


def made(message: Message) -> bytes:
    """A whole event of our own, named by its message's type."""
    return b"event: " + str(message["type"]).encode() + b"\ndata: " + encoded(message) + b"\n\n"


def dicts(value: Any) -> list[Message]:
    """The objects of a list; nothing for anything else."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def as_dict(value: Any) -> Message:
    """An object; empty for anything else."""
    return value if isinstance(value, dict) else {}


def as_index(value: Any) -> int | None:
    """A place number; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def summed(first: Any, second: Any) -> Any:
    """Two usage reports as one: numbers added, what only one side tells kept, of anything else the second's."""
    if second is None:
        return first
    if isinstance(first, dict) and isinstance(second, dict):
        rest = {name: value for name, value in first.items() if name not in second}
        return {**{name: summed(first.get(name), value) for name, value in second.items()}, **rest}
    if _is_count(first) and _is_count(second):
        return first + second
    return second


def _is_count(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
