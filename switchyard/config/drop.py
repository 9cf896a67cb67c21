"""Taking keys out of a file's text: every other byte stays, as when values are set (`edit.py`)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import yaml

from switchyard.config.edit import CannotEdit
from switchyard.config.problem import KeyPath


def drop_keys(text: str, path: KeyPath, keys: Collection[str]) -> str:
    """The text without these keys of one mapping; those that aren't there are no matter.

    Args:
        text: a valid file.
        path: of the mapping; numbers are places in lists.
        keys: at least one other key must stay.

    Raises:
        CannotEdit: it would change something else.
    """
    wanted = _unshared(yaml.load(text, Loader=yaml.SafeLoader))
    place: Any = wanted
    for step in path:
        place = place[step]
    for key in keys:
        place.pop(key, None)
    if not place:
        raise CannotEdit("nothing would be left of the block")
    for key in keys:
        text = _drop(text, path, key)
    if yaml.load(text, Loader=yaml.SafeLoader) != wanted:
        raise CannotEdit(f"{', '.join(keys)} can't be taken out alone: do it by hand")
    return text


def _drop(text: str, path: KeyPath, name: str) -> str:
    node: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    for step in path:
        node = node.value[step] if isinstance(step, int) else next(v for k, v in node.value if k.value == step)
    index = next((i for i, (key, _) in enumerate(node.value) if key.value == name), None)
    if index is None:
        return text
    key, value = node.value[index]
    begin, end = key.start_mark.index, value.end_mark.index
    line = text.rfind("\n", 0, begin) + 1
    if index == 0 and (node.flow_style or text[line:begin].strip()):  # after a brace, or a list's dash
        return text[:begin] + text[node.value[1][0].start_mark.index :]
    if node.flow_style:
        return text[: node.value[index - 1][1].end_mark.index] + text[end:]
    line_end = text.find("\n", end)
    return text[:line] + (text[line_end + 1 :] if line_end >= 0 else "")


def _unshared(value: Any) -> Any:
    """A copy in which an alias is a block of its own."""
    if isinstance(value, dict):
        return {key: _unshared(inner) for key, inner in value.items()}
    return [_unshared(inner) for inner in value] if isinstance(value, list) else value
