"""The tools that a request gives its model, and what is wrong with a call.

Nothing about streams or answers is here: a call is a name and the text of its arguments. The words for a problem go into
decision records, so they never hold a value of the arguments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import msgspec

from switchyard.check.schema import misfit

MAX_ARGUMENT_CHARACTERS = 2 * 1024 * 1024  # a client that writes a file sends it as an argument; nobody sends this much
_STRANGE = re.compile(r"[^\w.:/-]", re.ASCII)


def read_arguments(text: str) -> Any:
    """The arguments of a call as the value they are written for.

    Raises:
        ValueError, RecursionError: they are no JSON. `NaN` and `Infinity` are Python's, no client reads them.
    """
    return json.loads(text, parse_constant=_refuse)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


@dataclass(frozen=True, slots=True)
class _Tool:
    """One tool, as far as its calls can be judged.

    Attributes:
        free: its arguments are whatever text, not a JSON object.
        schema: what an object must fit; True for no schema.
    """

    free: bool
    schema: Any = True


class GivenTools:
    """Tools and tool choice of one request; they are read when the first call comes, most answers have none.

    Args:
        protocol: chat, responses or messages.
        tools: the request's `tools`, as JSON text.
        choice: its `tool_choice`.
    """

    def __init__(self, protocol: str, tools: msgspec.Raw | None, choice: msgspec.Raw | None) -> None:
        self._protocol = protocol
        self._raw = (tools, choice)
        self._tools: dict[str, list[_Tool]] | None = None
        self._readable = True
        self._allowed: frozenset[str] | None = None

    @classmethod
    def read(cls, protocol: str, body_fields: Mapping[str, msgspec.Raw]) -> GivenTools:
        """From the top-level fields of a request's body."""
        return cls(protocol, body_fields.get("tools"), body_fields.get("tool_choice"))

    def problem_of(self, name: str, arguments: str | None) -> str | None:
        """What is wrong with a call, in words without values; None for a good one.

        Args:
            name: of the tool called.
            arguments: their text; none or blank means no arguments.
        """
        found = self._find(name)
        if isinstance(found, str):
            return found
        if any(tool.free for tool in found):
            return None
        if arguments is None or not arguments.strip():
            return _misfit_of(name, found, {})
        if len(arguments) > MAX_ARGUMENT_CHARACTERS:
            return f"the arguments for {_shown(name)} are longer than {MAX_ARGUMENT_CHARACTERS} characters"
        try:
            value = read_arguments(arguments)
        except RecursionError:
            return f"the arguments for {_shown(name)} are nested too deep"
        except ValueError:
            return f"the arguments for {_shown(name)} are not valid JSON"
        return _misfit_of(name, found, value)

    def problem_of_value(self, name: str, value: Any) -> str | None:
        """The same for arguments that came as JSON, not as text."""
        found = self._find(name)
        return found if isinstance(found, str) else _misfit_of(name, found, value)

    def _find(self, name: str) -> list[_Tool] | str:
        """The tools of this name; or why none of them may be called."""
        if self._tools is None:
            self._tools = self._load()
        if self._allowed is not None and name not in self._allowed:
            if not self._allowed:
                return f"{_shown(name)} is called, though tool_choice is none"
            return f"{_shown(name)} is called, which tool_choice does not allow"
        if not self._readable:
            return [_Tool(free=True)]
        found = self._tools.get(name)
        return found if found else f"{_shown(name)} is called, which is not among the tools given"

    def _load(self) -> dict[str, list[_Tool]]:
        given, choice = map(_decoded, self._raw)
        self._allowed = _allowed(choice)
        tools: dict[str, list[_Tool]] = {}
        if given is not None and not isinstance(given, list):
            self._readable = False  # the engine made sense of it, so nothing is held against its answer
            return tools
        for name, tool in _each_tool(self._protocol, given or []):
            tools.setdefault(name, []).append(tool)
        return tools


def _each_tool(protocol: str, given: list[Any], space: str = "") -> Iterator[tuple[str, _Tool]]:
    """Names and tools; a tool inside a namespace is there under every name that engines give it."""
    for entry in given:
        if not isinstance(entry, dict):
            continue
        kind = entry.get("type")
        described = entry
        if protocol == "chat":
            inner = entry.get(kind) if isinstance(kind, str) else entry.get("function")
            described = inner if isinstance(inner, dict) else entry
        name = described.get("name") or kind
        if not isinstance(name, str):
            continue
        nested = entry.get("tools")
        if protocol == "responses" and isinstance(nested, list) and not space:
            yield from _each_tool(protocol, nested, name)
            continue
        if protocol == "messages":
            tool = _Tool(free=False, schema=described.get("input_schema", True))
        elif kind in {"function", None}:
            tool = _Tool(free=False, schema=described.get("parameters", True))
        else:
            tool = _Tool(free=True)
        yield name, tool
        if space:
            for full in (f"{space}{name}", f"{space}.{name}", f"{space}__{name}", f"{space}/{name}"):
                yield full, tool


def _allowed(choice: Any) -> frozenset[str] | None:
    """Names that may be called; None when all may."""
    if choice == "none":
        return frozenset()
    if not isinstance(choice, dict):
        return None
    kind = choice.get("type")
    if kind == "none":
        return frozenset()
    if kind == "allowed_tools":
        inner = choice.get("allowed_tools")
        listed = (inner if isinstance(inner, dict) else choice).get("tools")
        names = [_name_in(one) for one in listed] if isinstance(listed, list) else []
        return frozenset(n for n in names if n) or None
    name = _name_in(choice)
    return frozenset({name}) if name else None


def _name_in(choice: Any) -> str | None:
    """The name that an entry of a tool choice is about: its own, or that of the part named like its type."""
    if not isinstance(choice, dict):
        return None
    kind = choice.get("type")
    inner = choice.get(kind) if isinstance(kind, str) else None
    name = inner.get("name") if isinstance(inner, dict) else choice.get("name")
    return name if isinstance(name, str) and name else None


def _misfit_of(name: str, tools: list[_Tool], value: Any) -> str | None:
    if not isinstance(value, dict):
        return f"the arguments for {_shown(name)} are no JSON object"
    words = None
    for tool in tools:
        words = misfit(tool.schema, value) if isinstance(tool.schema, dict) else None
        if words is None:
            return None
    return f"the arguments for {_shown(name)} do not fit its schema: {words}"


def _shown(name: str) -> str:
    """A tool's name for a record: a model may have put anything there."""
    return _STRANGE.sub("?", name[:64]) or "a tool without a name"


def _decoded(raw: msgspec.Raw | None) -> Any:
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
