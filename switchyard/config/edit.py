"""Changing a few keys of a YAML file and nothing else: comments, order and style of all other lines stay. Pure.

A library that writes YAML round trip would be one more dependency, and reformats lines that nobody touched. What is made
here is read again and compared with what was meant, so a file in an odd style is refused, never spoilt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import yaml

from switchyard.config.references import Path

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


class NotEditable(Exception):
    """The file's style is beyond this module; the message says what to do by hand."""


class _OddStyle(Exception):
    pass


def set_keys(source: str, path: Path, values: Mapping[str, str | None]) -> str:
    """Set text keys of one mapping; None takes a key out.

    Args:
        source: text of the file.
        path: of the mapping; numbers are places in lists.
        values: by key.

    Raises:
        NotEditable: it can't be done without touching more than these keys.
    """
    wanted = yaml.safe_load(source)
    place: Any = wanted
    for step in path:
        place = place[step]
    for key, value in values.items():
        if value is None:
            place.pop(key, None)
        else:
            place[key] = value
    text, done = source, None
    try:
        for key, value in sorted(values.items(), key=lambda v: v[1] is None):  # one at a time: each moves what comes after it
            text = _set(text, path, key, value)
        done = yaml.safe_load(text)
    except (yaml.YAMLError, _OddStyle):
        pass
    if done != wanted:
        written = ", ".join(f"{k}: {_written(v)}" for k, v in values.items() if v is not None)
        where = ".".join(map(str, path))
        raise NotEditable(
            f"{where} is written in a way that can't be changed safely; write it by hand: {written or 'no state'}"
        )
    return text


def _set(text: str, path: Path, key: str, value: str | None) -> str:
    node: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    for step in path:
        node = node.value[step] if isinstance(step, int) else next(v for k, v in node.value if k.value == step)
    if not isinstance(node, yaml.MappingNode) or not node.value:
        raise _OddStyle
    entries = node.value
    found = next((i for i, (k, _) in enumerate(entries) if k.value == key), None)
    if found is not None and value is not None:
        old = entries[found][1]
        return text[: old.start_mark.index] + _written(value) + text[old.end_mark.index :]
    if value is None:
        return text if found is None else _without(text, node, found)
    last = entries[-1][1].end_mark.index
    if node.flow_style:
        return f"{text[:last]}, {key}: {_written(value)}{text[last:]}"
    line_end = text.find("\n", last)
    line_end = len(text) if line_end < 0 else line_end
    indent = " " * entries[0][0].start_mark.column
    return f"{text[:line_end]}\n{indent}{key}: {_written(value)}{text[line_end:]}"


def _without(text: str, node: Any, index: int) -> str:
    key, value = node.value[index]
    if node.flow_style:
        if index:
            return text[: node.value[index - 1][1].end_mark.index] + text[value.end_mark.index :]
        after = node.value[1][0].start_mark.index if len(node.value) > 1 else value.end_mark.index
        return text[: key.start_mark.index] + text[after:]
    begin = text.rfind("\n", 0, key.start_mark.index) + 1
    if text[begin : key.start_mark.index].strip():  # `- key: value`: the list's dash stands before it
        after = node.value[1][0].start_mark.index if len(node.value) > 1 else value.end_mark.index
        return text[: key.start_mark.index] + text[after:]
    end = text.find("\n", value.end_mark.index)
    return text[:begin] + (text[end + 1 :] if end >= 0 else "")


def _written(value: str | None) -> str:
    if value is None:
        return "null"
    return (
        value
        if _PLAIN.fullmatch(value) and value not in {"yes", "no", "on", "off", "true", "false", "null"}
        else json.dumps(value)
    )
