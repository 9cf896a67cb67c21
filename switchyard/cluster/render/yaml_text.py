"""YAML as people like to read it: block style, comments, quotes only where they are needed.

Reading YAML is `config.load`'s; this only writes our own dicts and lists, and what it writes is read back in tests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from switchyard.config.edit import decimal_text

_PLAIN = re.compile(r"(--)?(?!\.[0-9])[A-Za-z_/.][A-Za-z0-9_./@+=-]*(:[A-Za-z0-9_./@+-]+)*|[0-9]+(\.[0-9]+){3}|[0-9]+[smh]")
_WORDS = re.compile(r"y|n|yes|no|on|off|true|false|null|~|\.inf|\.nan|\.+", re.IGNORECASE)
WIDTH = 100


def to_yaml(value: Any, indent: int = 0) -> str:
    """A document, or a part of one. A key that begins with # is a comment: its text stands where it is."""
    if isinstance(value, Mapping):
        return "".join(_entry(key, inner, indent) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return "".join(_item(inner, indent) for inner in value)
    return f"{' ' * indent}{flow(value)}\n"


def flow(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{flow(k)}: {flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(flow, value)) + "]"
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, float):
        return decimal_text(value).removesuffix(".0")
    if isinstance(value, int):
        return str(value)
    text = str(value)
    return text if _PLAIN.fullmatch(text) and not _WORDS.fullmatch(text) else _quoted(text)


def _quoted(text: str) -> str:
    """In double quotes; what can't be printed is escaped as YAML does it, which is not JSON's way beyond 16 bits."""
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in quoted)


def comment(text: str, indent: int = 0) -> str:
    """Lines of comment."""
    return "".join(f"{' ' * indent}# {line}".rstrip() + "\n" for line in text.splitlines())


def _entry(key: str, value: Any, indent: int) -> str:
    pad = " " * indent
    if key.startswith("#"):
        return comment(str(value), indent)
    head = f"{pad}{flow(key)}:"
    if _is_page(value):
        body = "".join(f"{pad}  {line}".rstrip() + "\n" for line in value.rstrip("\n").split("\n"))
        return f"{head} |\n{body}"
    if _is_block(value, indent + len(key) + 2):
        return f"{head}\n{to_yaml(value, indent + 2)}"
    return f"{head} {flow(value)}\n"


def _item(value: Any, indent: int) -> str:
    pad = " " * indent
    if isinstance(value, Mapping) and _is_block(value, indent + 2):
        return f"{pad}- {to_yaml(value, indent + 2).lstrip(' ')}"
    return f"{pad}- {flow(value)}\n"


def _is_page(value: Any) -> bool:
    """Whether a text is written as it is, line by line: where YAML would not change anything about it."""
    if not isinstance(value, str) or not value.endswith("\n"):
        return False
    lines = value[:-1].split("\n")
    plain = all(line.isprintable() and line == line.rstrip() for line in lines)
    return plain and bool(lines[-1]) and not lines[0].startswith(" ") and bool(lines[0])


def _is_block(value: Any, column: int) -> bool:
    """Whether this is written over several lines: everything but short lists and mappings of plain values."""
    if isinstance(value, Mapping):
        deep = any(isinstance(v, Mapping | list | tuple) or _is_page(v) for v in value.values())
        return bool(value) and (deep or len(value) > 2 or any(k.startswith("#") for k in value) or _long(value, column))
    if isinstance(value, Sequence) and not isinstance(value, str):
        deep = any(isinstance(v, Mapping) and _is_block(v, column) for v in value)
        return bool(value) and (deep or _long(value, column))
    return False


def _long(value: Any, column: int) -> bool:
    return column + len(flow(value)) > WIDTH
