"""What a model refuses, in the words and at the places of the file: pydantic's errors become problems with a hint."""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from switchyard.config.document import FLOAT, INT, Document
from switchyard.config.problem import KeyPath, dotted
from switchyard.config.references import nearest
from switchyard.config.vocabulary import SIGNALS

_TYPE_NAMES = re.compile(r"\[key\]|int|float|str|bool|Test|embedded|model|local|value|values|test|list|source|constrained-\w+")
_EXPECTED = {
    "bool_type": "true or false", "int_type": "a whole number", "float_type": "a number", "string_type": "a text",
    "tuple_type": "a list", "dict_type": "a block of keys", "model_type": "a block of keys", "finite_number": "a finite number",
    "int_from_float": "a whole number", "model_attributes_type": "a block of keys",
}  # fmt: skip


def add_refusals(document: Document, error: ValidationError, model: type[BaseModel]) -> None:
    """Problems of the models, with their place in the file; the alternatives of a choice become one problem."""
    refused = {p.key for p in document.problems}
    grouped: dict[KeyPath, list[ErrorDetails]] = {}
    for detail in error.errors(include_url=False):
        place = _place(document, detail["loc"], detail["type"] in {"missing", "extra_forbidden"})
        grouped.setdefault(place, []).append(detail)
    for path, details in grouped.items():
        inner = any(other[: len(path)] == path and other != path for other in grouped)
        if dotted(path) in refused or (inner and details[0]["type"] == "too_short"):
            continue  # an entry that was refused already is not missed, too
        if details[0]["type"] == "condition" and any(key.startswith(f"{dotted(path)}.") for key in refused):
            continue  # what can't be read can't be compared
        message, hint = _explain(path, details, model)
        document.add(path, message, hint)


def _place(document: Document, location: tuple[str | int, ...], ends_with_key: bool) -> KeyPath:
    """The part of a pydantic location that is a path in the file: without names of types."""
    path: KeyPath = ()
    for i, step in enumerate(location):
        last = i == len(location) - 1
        if (*path, step) in document.places or (last and (ends_with_key or not _is_type_name(step))):
            path = (*path, step)
    return path


def _is_type_name(step: str | int) -> bool:
    """Whether this step of a pydantic location names an alternative, and no key."""
    return isinstance(step, str) and ("[" in step or "(" in step or _TYPE_NAMES.fullmatch(step) is not None)


def _explain(path: KeyPath, details: list[ErrorDetails], form: type[BaseModel]) -> tuple[str, str]:
    """One message and a hint for all that pydantic says about one place."""
    first = details[0]
    kind, context = first["type"], first.get("ctx", {})
    name = str(path[-1]) if path else ""
    if kind == "extra_forbidden":
        return f"unknown key {name}", nearest(name, _known_keys(path, form))
    if kind == "missing":
        return f"the key {name} is missing", ""
    if kind == "signal":
        return f"there is no signal {name}", nearest(name, [*SIGNALS, "header.NAME"])
    if kind == "too_short":
        return "at least 1 entry is expected", ""
    if kind == "union_tag_invalid":
        return f"type {context['tag']} is not known", f"one of {context['expected_tags']}"
    if kind == "union_tag_not_found":
        return "the key type is missing", "embedded, model or local"
    expected = list(dict.fromkeys(_expected(d) for d in details))
    given = first["input"]
    shown = "" if isinstance(given, dict | list | tuple) else f", not {_plain(given)}"
    if len(details) == 1 and kind not in _EXPECTED and kind not in {"literal_error"}:
        message = first["msg"].replace("Input should be", "must be").replace("should have", "must have")
        return message[:1].lower() + message[1:] + (shown if kind.startswith(("greater", "less")) else ""), ""
    hint = ""
    if isinstance(given, str) and re.fullmatch(r"\d+(\.\d+)?\s*(ms|s|m|h|MB|mb|GB)", given):
        hint = "the unit is in the key: write the number alone"
    elif isinstance(given, str) and (INT.fullmatch(given) or FLOAT.fullmatch(given)):
        hint = "leave the quotes out"
    elif isinstance(given, str):
        hint = nearest(given, [w for d in details for w in re.findall(r"'([^']+)'", str(d.get("ctx", {}).get("expected", "")))])
        hint = hint if hint.startswith("did") else ""
    return f"{' or '.join(expected)} is expected{shown}", hint


def _expected(detail: ErrorDetails) -> str:
    if detail["type"] == "literal_error":
        return str(detail.get("ctx", {}).get("expected", "")).replace("'", "")
    return _EXPECTED.get(detail["type"], detail["msg"][:1].lower() + detail["msg"][1:])


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "nothing" if value is None else str(value)


def _known_keys(path: KeyPath, form: type[BaseModel]) -> list[str]:
    """Keys that the block at the parent of this path may have."""
    model: type[BaseModel] | None = form
    for step in path[:-1]:
        field_of_step = _fields(model).get(str(step))
        if field_of_step is not None:  # else an index, or a name inside pools and routes
            model = _find_model(field_of_step.annotation)
    return list(_fields(model))


def _fields(model: type[BaseModel] | None) -> dict[str, FieldInfo]:
    """The fields of a block by the key they have in the file."""
    return {} if model is None else {f.alias or n: f for n, f in model.model_fields.items()}


def _find_model(annotation: Any) -> type[BaseModel] | None:
    """The block inside an annotation like `dict[str, Pool]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in getattr(annotation, "__args__", ()):
        if (found := _find_model(inner)) is not None:
            return found
    return None
