"""A read-only view of one request: its original bytes, and the few fields that routing needs.

The body goes to the engine as the bytes that came, with single values replaced in place. So the view keeps where each
top-level value stands, and reads inside a value only when somebody asks. What the facts mean is `signals.py`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from switchyard.errors import InvalidRequest
from switchyard.routing.lazy import lazy

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_KEY = re.compile(rb'[\s,{]*"[^"\\]*(?:\\.[^"\\]*)*"\s*:\s*')
_END = re.compile(rb"\s*\}\s*")
_LONE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
_BRACKET = ord("[")
CAREFUL_BYTES = 256 * 1024
REMEMBERED, REMEMBERED_BYTES = 32, 256 * 1024  # lists of tools whose names are remembered, and the longest of them
# An escape of any kind; of the surrogates, only whole pairs are left alone. All alternatives but lone halves are kept.
_ESCAPE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.", re.DOTALL
)

Items = list["Item"]


NULL = msgspec.Raw(b"null")
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding a value can raise: an odd shape, broken UTF-8, a number beyond all floats, a nesting beyond the limit."""


class Item(msgspec.Struct, gc=False):
    """A message or input item, with what is inside it still as JSON text."""

    role: str = ""
    type: str = ""
    content: msgspec.Raw = NULL
    tool_calls: msgspec.Raw = NULL
    name: Any = None
    arguments: Any = None
    output: msgspec.Raw = NULL


class Part(msgspec.Struct, gc=False):
    """One part of a message's content."""

    type: str = ""
    text: str = ""
    is_error: bool = False
    name: str = ""
    input: msgspec.Raw = NULL
    content: msgspec.Raw = NULL


class Function(msgspec.Struct, gc=False):
    """A function as chat describes it, as far as it is read here."""

    name: str = ""


class Tool(msgspec.Struct, gc=False):
    """A tool of any protocol, as far as it is read here."""

    name: str = ""
    type: str = ""
    function: Function | None = None


_TOOLS = msgspec.json.Decoder(list[Tool])
_TOOL = msgspec.json.Decoder(Tool)
_ITEMS = msgspec.json.Decoder(list[Item])
_PARTS = msgspec.json.Decoder(list[Part])
_ITEM = msgspec.json.Decoder(Item)
_PART = msgspec.json.Decoder(Part)
_WHOLE = msgspec.json.Decoder(int)
_RAWS = msgspec.json.Decoder(list[msgspec.Raw])


class Body:
    """A JSON object as it came over the wire.

    Attributes:
        raw: the bytes.
        fields: JSON text of each top-level value, with halves of surrogate pairs replaced so that it can be read.
    """

    __slots__ = ("_spans", "fields", "raw")

    def __init__(self, raw: bytes) -> None:
        """Read the top level.

        Raises:
            InvalidRequest: for anything but one JSON object without duplicate top-level keys. Broken UTF-8 inside a
                value is left to the engine's verdict: checking 500 KB for it costs as much as all the rest.
        """
        self.raw = raw
        self.fields: Mapping[str, msgspec.Raw]
        readable = raw
        try:
            self.fields = _FIELDS.decode(raw)
        except RecursionError:
            raise InvalidRequest("the body is nested too deep to be read") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            readable = _without_lone_surrogates(raw)
            self.fields = _retry(readable, error)
        self._spans = _locate(readable, self.fields)

    def text(self, name: str) -> str | None:
        """A top-level string; None when it is missing or no string."""
        value = self.value(name)
        return value if isinstance(value, str) else None

    def value(self, name: str) -> Any:
        """A top-level value, decoded; None when it is missing."""
        found = self.fields.get(name)
        if found is None:
            return None
        try:
            return msgspec.json.decode(found)
        except UNREADABLE as error:
            raise InvalidRequest(f"{name} can't be read: {error}", param=name) from None

    def size(self, names: Collection[str]) -> int:
        """Bytes that these top-level values take together."""
        return sum([end - start for name, (start, end) in self._spans.items() if name in names])

    def patched(self, changes: Mapping[str, bytes]) -> bytes:
        """The same bytes with these top-level values replaced by JSON text; missing keys are added at the end."""
        pieces: list[bytes | memoryview] = []
        view, at = memoryview(self.raw), 0
        if len(changes) == 1:  # the model's name alone, nearly always
            ((name, text),) = changes.items()
            if (span := self._spans.get(name)) is not None:
                return b"".join((view[: span[0]], text, view[span[1] :]))
        for start, end, text in sorted((*self._spans[n], t) for n, t in changes.items() if n in self._spans):
            pieces += (view[at:start], text)
            at = end
        added = [(n, t) for n, t in changes.items() if n not in self._spans]
        if not added:
            pieces.append(view[at:])
            return b"".join(pieces)
        close = self.raw.rindex(b"}")
        pieces.append(view[at:close])
        for i, (name, text) in enumerate(added):
            pieces += (b"," if self.fields or i else b"", msgspec.json.encode(name), b":", text)
        pieces.append(view[close:])
        return b"".join(pieces)


def _retry(readable: bytes, error: Exception) -> dict[str, msgspec.Raw]:
    """Read the copy without lone surrogates; what is still wrong is the client's fault."""
    try:
        return _FIELDS.decode(readable)
    except msgspec.ValidationError:
        raise InvalidRequest("the body must be a JSON object") from None
    except RecursionError:
        raise InvalidRequest("the body is nested too deep to be read") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as again:
        if not readable.strip():
            raise InvalidRequest("the body is empty; a JSON object is expected") from None
        reason = str(again if "hex escape" in str(error) or "truncated" in str(error) else error)
        raise InvalidRequest(f"the body is not valid JSON: {reason.removeprefix('JSON is malformed: ')}") from None


def _without_lone_surrogates(raw: bytes) -> bytes:
    """The same text, byte for byte as long, with every escaped half of a surrogate pair as \\ufffd.

    A short text is read escape by escape, which alone is right behind an escaped backslash; that takes 0.4 s a megabyte,
    so in a long one halves are found by their neighbours.
    """
    if len(raw) > CAREFUL_BYTES:
        return _LONE.sub(rb"\\ufffd", raw)
    return _ESCAPE.sub(lambda m: rb"\ufffd" if m[1] else m[0], raw)


def _locate(text: bytes, fields: Mapping[str, msgspec.Raw]) -> dict[str, tuple[int, int]]:
    """Start and end of each top-level value.

    The decoder gives the values in the order of the text, and the last one of a repeated key at the place of the first.
    So walking the text with them ends exactly at the closing brace when, and only when, no key is repeated.
    """
    spans: dict[str, tuple[int, int]] = {}
    at = 0
    for name, value in fields.items():
        key = _KEY.match(text, at)
        start = key.end() if key else at
        end = start + memoryview(value).nbytes
        if key is None or not text.startswith(value, start):
            raise InvalidRequest("the body has a key twice at its top level; engines disagree about which one counts")
        spans[name] = (start, end)
        at = end
    if fields and not _END.fullmatch(text, at):
        raise InvalidRequest("the body has a key twice at its top level; engines disagree about which one counts")
    return spans


class RequestView:
    """One request as routing sees it: head, body and endpoint family. Reading further in is done once, when asked.

    Args:
        protocol: chat, responses, messages, completions, embeddings, rerank, score or tokenize.
        body: the JSON object.
        headers: lower-case names and values of the request.
        key_name: which of the gateway's keys was used; empty without keys.
        address: the client's address, for requests without any session.
        counting: the endpoint only counts tokens.
    """

    def __init__(
        self,
        protocol: str,
        body: Body,
        headers: Mapping[str, str],
        key_name: str = "",
        address: str = "",
        counting: bool = False,
    ) -> None:
        self.protocol = protocol
        self.body = body
        self.headers = headers
        self.key_name = key_name
        self.address = address
        self.counting = counting

    @lazy
    def stream(self) -> bool:
        """Whether the client asks for an event stream."""
        found = self.body.fields.get("stream")
        return found is not None and bytes(found) == b"true"

    def number(self, name: str) -> int | None:
        """A top-level whole number; None when it is missing or something else."""
        found = self.body.fields.get(name)
        if found is None:
            return None
        try:
            return _WHOLE.decode(found)
        except UNREADABLE:
            return None

    @lazy
    def items(self) -> Items:
        """Messages of chat and Messages, input items of Responses, in order; what can't be read is left out."""
        raw = self.body.fields.get("input" if self.protocol == "responses" else "messages")
        if raw is None:
            return []
        try:
            return _ITEMS.decode(raw)
        except UNREADABLE:
            return list(_readable_items(raw))

    @lazy
    def tool_names(self) -> tuple[str, ...]:
        """Names of the tools offered, in order; those without a name by their type."""
        found = self.body.fields.get("tools")
        if found is None:
            return ()
        text = bytes(found)
        return _remembered_names(text) if len(text) <= REMEMBERED_BYTES else _names_of(text)

    @lazy
    def tool_count(self) -> int:
        """Number of tools offered."""
        return len(self.tool_names)


def _names_of(tools: bytes) -> tuple[str, ...]:
    try:
        return tuple([_name_of(t) for t in _TOOLS.decode(tools)])
    except UNREADABLE:
        return tuple([_name_of(t) for t in _readable_tools(tools)])


_remembered_names = lru_cache(maxsize=REMEMBERED)(_names_of)  # agents offer the same tools with every request


def _readable_items(raw: msgspec.Raw) -> Iterator[Item]:
    """The items of a list in which some have an odd shape; a bare string is a message by the user."""
    text = bytes(raw)
    if text.startswith(b'"'):
        yield Item(role="user", content=raw)
        return
    try:
        entries = _RAWS.decode(raw)
    except UNREADABLE:
        return
    for entry in entries:
        try:
            yield _ITEM.decode(entry)
        except UNREADABLE:
            if bytes(entry).startswith(b'"'):
                yield Item(role="user", content=entry)


def is_list(value: msgspec.Raw) -> bool:
    """Whether a value is a list; other values are told apart without reading them."""
    return memoryview(value)[0] == _BRACKET


def content_parts(content: msgspec.Raw) -> list[Part]:
    """The parts of a message's content; a plain string is one text part, what can't be read is left out."""
    text = bytes(content)
    if text.startswith(b'"'):
        return [Part(type="text", text=_decoded_text(text))]
    if not text.startswith(b"["):
        return []
    try:
        return _PARTS.decode(text)
    except UNREADABLE:
        pass
    return [part for _, part in raw_parts(content)]


def text_of(parts: list[Part]) -> str:
    """The texts of some parts, one below the other."""
    return "\n".join(p.text for p in parts if p.text)


def _decoded_text(text: bytes) -> str:
    """A JSON string; with broken UTF-8 in it, as much as can be read."""
    try:
        return str(msgspec.json.decode(text))
    except UNREADABLE:
        return text[1:-1].decode(errors="replace")


def raw_parts(content: msgspec.Raw) -> Iterator[tuple[msgspec.Raw, Part]]:
    """The parts of a list with their JSON text; a bare string is a text part, what can't be read is left out."""
    try:
        entries = _RAWS.decode(content)
    except UNREADABLE:
        return
    for entry in entries:
        try:
            yield entry, _PART.decode(entry)
        except UNREADABLE:
            if bytes(entry).startswith(b'"'):
                yield entry, Part(type="text", text=_decoded_text(bytes(entry)))


def _readable_tools(raw: bytes) -> Iterator[Tool]:
    try:
        entries = _RAWS.decode(raw)
    except UNREADABLE:
        return
    for entry in entries:
        try:
            yield _TOOL.decode(entry)
        except UNREADABLE:
            yield Tool(type="unreadable")


def _name_of(tool: Tool) -> str:
    return (tool.function.name if tool.function is not None else tool.name) or tool.type
