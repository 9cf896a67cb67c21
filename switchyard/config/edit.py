"""Changing single values in a policy's text: every other byte of the file stays, comments and layout included.

The places come from YAML's node tree, as in `document.py`, and the new text is put in between. Writing the whole tree
anew, as round-trip libraries do, would keep the comments but break lines and spaces elsewhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import yaml

from switchyard.config.problem import KeyPath

Plain = str | int | float | bool | Sequence[float]
Value = Plain | Mapping[str, "Value"]

_BARE = re.compile(r"[A-Za-z][A-Za-z0-9 ._/()+-]*[A-Za-z0-9)]")
_HEX = re.compile(r"[0-9a-f]+")  # hashes are quoted, all of them, since some look like numbers
_SPECIAL = re.compile(r"(?i)y|n|yes|no|on|off|true|false|null")


class CannotEdit(Exception):
    """The file is written in a way that a single place can't be changed; the message says where and why."""


def set_value(text: str, path: KeyPath, value: Value) -> str:
    """The text with this value at this place: replaced where the last key is there, else added to its block.

    Args:
        text: a valid policy file.
        path: keys and numbers of list entries; all but the last must exist.
        value: a scalar, a list of numbers, or a mapping of such.

    Raises:
        CannotEdit: the place is behind an alias or a variable, or not there.
    """
    parent, key = _find(text, path[:-1]), path[-1]
    if not isinstance(parent, yaml.MappingNode):
        raise CannotEdit(f"{_dotted(path[:-1])} is no block of keys")
    there = next((v for k, v in parent.value if k.value == key), None)
    edited = _replace(text, parent, there, path, value) if there is not None else _add(text, parent, str(key), value)
    _compare(text, edited, path, value)
    return edited


def block_lines(text: str, key: str) -> tuple[int, int]:
    """The lines of a top-level key and all that belongs to it: the first, and the one after the last, counted from 0.

    Raises:
        CannotEdit: the key is not there, or shares its lines with others.
    """
    top = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(top, yaml.MappingNode) or top.flow_style or top.start_mark.column:
        raise CannotEdit(f"keys at the top have to stand at the beginnings of lines, so that {key} can be replaced")
    for name, value in top.value:
        if name.value == key:
            end = value.end_mark
            return name.start_mark.line, min(end.line + (end.column > 0), len(text.splitlines()))
    raise CannotEdit(f"there is no {key} in the file")


def _find(text: str, path: KeyPath) -> Any:
    node: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    for step in path:
        if isinstance(node, yaml.MappingNode):
            node = next((v for k, v in node.value if k.value == step), None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
        else:
            node = None
        if node is None:
            raise CannotEdit(f"there is no {_dotted(path)} in the file")
    return node


def _replace(text: str, parent: Any, node: Any, path: KeyPath, value: Value) -> str:
    if isinstance(node, yaml.ScalarNode) and "${" in node.value:
        raise CannotEdit(f"{_dotted(path)} comes from the environment ({node.value}): change it there")
    start, end = node.start_mark.index, _end(text, node)
    if isinstance(value, Mapping) and not parent.flow_style and not getattr(node, "flow_style", False):
        return text[:start] + _block(value, " " * int(node.start_mark.column)) + text[end:]
    return text[:start] + _flow(value) + text[end:]


def _add(text: str, parent: Any, key: str, value: Value) -> str:
    last = parent.value[-1][1] if parent.value else None
    if last is None:
        raise CannotEdit("an empty block can't be added to")
    end = _end(text, last)
    if parent.flow_style:
        return f"{text[:end]}, {key}: {_flow(value)}{text[end:]}"
    newline = "\r\n" if "\r\n" in text else "\n"
    indent = " " * parent.value[0][0].start_mark.column
    line_end = text.find("\n", end)
    before, after = (text, "") if line_end < 0 else (text[: line_end + 1], text[line_end + 1 :])
    if line_end < 0:
        before += newline
    if isinstance(value, Mapping):
        lines = f"{indent}{key}:{newline}{indent}  {_block(value, indent + '  ', newline)}"
    else:
        lines = f"{indent}{key}: {_flow(value)}"
    return f"{before}{lines}{newline}{after}"


def _end(text: str, node: Any) -> int:
    """Where the text of a node ends; a block's own mark lies behind the comments that follow it."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(text, last[1] if isinstance(node, yaml.MappingNode) else last)
    return len(text[: node.end_mark.index].rstrip()) if isinstance(node, yaml.ScalarNode) else int(node.end_mark.index)


def _block(value: Mapping[str, Value], indent: str, newline: str = "\n") -> str:
    """Lines of a mapping; the first one without its indentation."""
    return f"{newline}{indent}".join(f"{key}: {_flow(inner)}" for key, inner in value.items())


def _flow(value: Value) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        plain = _BARE.fullmatch(value) and not _SPECIAL.fullmatch(value) and not _HEX.fullmatch(value)
        return value if plain else json.dumps(value, ensure_ascii=False)
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return str(value) if isinstance(value, int) else decimal_text(value)


def decimal_text(value: float) -> str:
    """The number itself, without an exponent, which policies don't allow."""
    return f"{Decimal(repr(value)):f}"


def _compare(before: str, after: str, path: KeyPath, value: Value) -> None:
    """Make sure that nothing else changed its meaning: an alias may use the same node in a second place."""
    wanted = yaml.load(before, Loader=yaml.SafeLoader)
    inner = _copied(wanted)
    at = inner
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = yaml.load(_flow(value), Loader=yaml.SafeLoader)
    if yaml.load(after, Loader=yaml.SafeLoader) != inner:
        raise CannotEdit(f"{_dotted(path)} can't be changed alone (is it used by an alias?): change it by hand")


def _copied(value: Any) -> Any:
    """A copy in which nothing is shared."""
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    return [_copied(inner) for inner in value] if isinstance(value, list) else value


def _dotted(path: KeyPath) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")
