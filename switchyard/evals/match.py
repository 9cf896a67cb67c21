"""Do these tool calls say what was asked for? A matcher for BFCL-format answers. Pure.

An expected call gives for each parameter the values that are right; an empty string among them means that it may be left
out. Texts are compared without case, spaces and punctuation, as people would; numbers by value. Calls are matched in any
order: models may make parallel calls in the order they like.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

Expected = Mapping[str, Mapping[str, Sequence[Any]]]
"""One call: its function's name, and the acceptable values of each parameter."""

_LOOSE = re.compile(r"[\s,./\-_*^()'\"]+")


def mismatch(calls: Sequence[tuple[str, Any]], expected: Sequence[Expected]) -> str:
    """Why the calls are not those expected; empty when they are.

    Args:
        calls: name and parsed arguments of each; arguments that don't parse are given as their text.
        expected: the calls to be made; none when no call is right.
    """
    if not expected:
        return f"called {_names(calls)} where no function fits" if calls else ""
    if not calls:
        return "made no call"
    if len(calls) != len(expected):
        return f"made {len(calls)} calls ({_names(calls)}) where {len(expected)} are right"
    reasons = [[_call_mismatch(call, wanted) for wanted in expected] for call in calls]
    if _assignable(reasons, 0, set()):
        return ""
    # One call: its own reason. Several: that of the first call that fits nowhere.
    for row in reasons:
        if all(row):
            return min(row, key=len)
    return "two calls fit the same expected one"


def _assignable(reasons: list[list[str]], call: int, taken: set[int]) -> bool:
    """Whether each call from here on can be given an expected one of its own."""
    if call == len(reasons):
        return True
    return any(
        not reason and j not in taken and _assignable(reasons, call + 1, taken | {j}) for j, reason in enumerate(reasons[call])
    )


def _call_mismatch(call: tuple[str, Any], expected: Expected) -> str:
    ((wanted, parameters),) = expected.items()
    name, arguments = call
    if name != wanted:
        return f"called {name}, not {wanted}"
    if not isinstance(arguments, Mapping):
        return f"{name}: the arguments are no JSON object: {str(arguments)[:80]}"
    for key, value in arguments.items():
        if key not in parameters:
            return f"{name}: {key} was not asked for"
        if not any(_same(value, right) for right in parameters[key]):
            return f"{name}: {key} is {str(value)[:60]!r}, right would be {_shown(parameters[key])}"
    for key, values in parameters.items():
        if key not in arguments and not any(isinstance(v, str) and v == "" for v in values):
            return f"{name}: {key} is missing"
    return ""


def _same(value: Any, right: Any) -> bool:
    if isinstance(right, bool) or isinstance(value, bool):
        return value is right
    if isinstance(right, str) and isinstance(value, str):
        return _plain(value) == _plain(right)
    if isinstance(right, (int, float)) and isinstance(value, (int, float)):
        return abs(value - right) <= 1e-9 * max(1.0, abs(right))
    if isinstance(right, list) and isinstance(value, list):
        return len(value) == len(right) and all(map(_same, value, right))
    if isinstance(right, dict) and isinstance(value, dict):
        return _same_object(value, right)
    return value is None and right is None


def _same_object(value: dict[str, Any], right: dict[str, Any]) -> bool:
    """Objects inside arguments: BFCL gives acceptable values for each key of them, too; a plain value is the only one."""
    for key, choices in right.items():
        options = choices if isinstance(choices, list) else [choices]
        if key not in value:
            if "" not in options:
                return False
        elif not any(_same(value[key], o) for o in options) and not _same(value[key], choices):
            return False
    return value.keys() <= right.keys()


def _plain(text: str) -> str:
    return _LOOSE.sub("", text).casefold()


def _names(calls: Sequence[tuple[str, Any]]) -> str:
    return ", ".join(name for name, _ in calls)


def _shown(values: Sequence[Any]) -> str:
    return " or ".join(repr(v) for v in values[:3] if v != "") or "nothing"
