"""The keywords of JSON Schema: for each a rule that says in which way a value does not fit, if it doesn't."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from switchyard.check.judge import Judge, Misfit, Rule

_NAME = re.compile(r"[A-Za-z_$][\w$.-]{0,39}", re.ASCII)


def _type(judge: Judge, given: Any, value: Any, schema: dict[str, Any]) -> Misfit | None:
    names = given if isinstance(given, list) else [given]
    if not names or not all(isinstance(n, str) and n in _TYPES for n in names):
        return judge.unsure()
    if any(_TYPES[name](value) for name in names):
        return None
    return Misfit(f"must be of type {' or '.join(names)}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TYPES: dict[str, Callable[[Any], bool]] = {
    "string": lambda v: isinstance(v, str),
    "number": _is_number,
    "integer": lambda v: _is_number(v) and (isinstance(v, int) or v.is_integer()),
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
}


def _key(judge: Judge, value: Any) -> Any:
    """Something equal exactly for equal JSON values: 1 is 1.0, but true is not 1."""
    judge.spend(1)
    if isinstance(value, bool):
        return ("is", value)
    if isinstance(value, dict):
        return ("{}", frozenset((name, _key(judge, v)) for name, v in value.items()))
    if isinstance(value, list):
        return ("[]", tuple(_key(judge, v) for v in value))
    return value


def _enum(judge: Judge, given: Any, value: Any, schema: dict[str, Any]) -> Misfit | None:
    if not isinstance(given, list):
        return judge.unsure()
    if isinstance(value, str):  # nearly always
        judge.spend(len(given) // 16)
        return None if value in given else Misfit("is none of the values allowed")
    key = _key(judge, value)
    return None if any(_key(judge, one) == key for one in given) else Misfit("is none of the values allowed")


def _const(judge: Judge, given: Any, value: Any, schema: dict[str, Any]) -> Misfit | None:
    return None if _key(judge, given) == _key(judge, value) else Misfit("is not the value allowed")


def _bound(breaks: Callable[[Any, Any], bool], words: str, strict_name: str = "") -> Rule:
    """A rule for a number; draft 4 makes it strict by a flag beside it."""

    def rule(judge: Judge, given: Any, value: Any, schema: dict[str, Any]) -> Misfit | None:
        if not _is_number(given):
            return None if isinstance(given, bool) else judge.unsure()
        if not _is_number(value):
            return None
        if breaks(value, given) or (strict_name and schema.get(strict_name) is True and value == given):
            return Misfit(words)
        return None

    return rule


def _multiple(judge: Judge, given: Any, value: Any, schema: dict[str, Any]) -> Misfit | None:
    if not _is_number(given) or given <= 0:
        return judge.unsure()
    if not _is_number(value):
        return None
    try:
        if isinstance(given, int) and isinstance(value, int):
            whole = value % given == 0
        else:
            quotient = value / given
            whole = abs(quotient - round(quotient)) <= 1e-9 * max(1.0, abs(quotient))
    except (OverflowError, ValueError):  # the quotient is infinite
        return judge.unsure()
    return None if whole else Misfit("is not a multiple of the number given")


def _count(kind: type[str] | type[list[Any]] | type[dict[str, Any]], breaks: Callable[[int, Any], bool], words: str) -> Rule:
    """A rule for the length of a text, a list or an object."""

    def rule(judge: Judge, given: Any, value: Any, schema: dict[str, Any]) -> Misfit | None:
        if not _is_number(given):
            return judge.unsure()
        return Misfit(words) if isinstance(value, kind) and breaks(len(value), given) else None

    return rule


def _pattern(judge: Judge, given: Any, value: Any, schema: dict[str, Any]) -> Misfit | None:
    if isinstance(value, str) and judge.matches(given, value) is False:
        return Misfit("does not match its pattern")
    return None


def _each(judge: Judge, pairs: Iterable[tuple[Any, Any]], first: int = 0) -> Misfit | None:
    for i, (schema, value) in enumerate(pairs, first):
        if (found := judge.look(schema, value)) is not None:
            return found.at(f"[{i}]")
    return None


def _items(judge: Judge, given: Any, value: Any, schema: dict[str, Any]) -> Misfit | None:
    if not isinstance(value, list):
        return None
    if isinstance(given, list):  # before 2020-12: one schema a place, the rest by additionalItems
        rest = islice(value, len(given), None) if "additionalItems" in schema else ()
        found = _each(judge, zip(given, value, strict=False))
        return found or _each(judge, ((schema["additionalItems"], v) for v in rest), len(given))
    prefix = schema.get("prefixItems")
    begin = len(prefix) if isinstance(prefix, list) else 0
    return _each(judge, ((given, v) for v in islice(value, begin, None)), begin)


def _prefix_items(judge: Judge, given: Any, value: Any, schema: dict[str, Any]) -> Misfit | None:
    if not isinstance(given, list):
        return judge.unsure()
    return _each(judge, zip(given, value, strict=False)) if isinstance(value, list) else None


def _contains(judge: Judge, given: Any, value: Any, schema: dict[str, Any]) -> Misfit | None:
    if not isinstance(value, list):
        return None
    least, most = schema.get("minContains", 1), schema.get("maxContains")
    if not _is_number(least) or not (most is None or _is_number(most)):
        return judge.unsure()
    count = sum(judge.fits(given, v) for v in value)
    if count < least or (most is not None and count > most):
        return Misfit("does not contain what it must")
    return None


def _unique(judge: Judge, given: Any, value: Any, schema: dict[str, Any]) -> Misfit | None:
    if given is not True or not isinstance(value, list):
        return None
    return None if len({_key(judge, v) for v in value}) == len(value) else Misfit("has an entry twice")


def _properties(judge: Judge, given: Any, value: Any, schema: dict[str, Any]) -> Misfit | None:
    if not isinstance(given, dict):
        return judge.unsure()
    if not isinstance(value, dict):
        return None
    judge.spend(len(given) // 16)
    for name, inner in given.items():
        if name in value and (found := judge.look(inner, value[name])) is not None:
            return found.at(f".{_shown(name)}")
    return None


def _required(judge: Judge, given: Any, value: Any, schema: dict[str, Any]) -> Misfit | None:
    if not isinstance(given, list):
        return judge.unsure()
    if not isinstance(value, dict):
        return None
    judge.spend(len(given) // 16)
    missing = [name for name in given if isinstance(name, str) and name not in value]
    return Misfit(f"lacks {_shown(missing[0])}") if missing else None


def _additional(judge: Judge, given: Any, value: Any, schema: dict[str, Any]) -> Misfit | None:
    if not isinstance(value, dict):
        return None
    known, by_pattern = schema.get("properties"), schema.get("patternProperties")
    for name, inner in value.items():
        if isinstance(known, dict) and name in known:
            continue
        judge.spend(1)
        if isinstance(by_pattern, dict) and any(judge.matches(p, name) is not False for p in by_pattern):
            continue
        if given is False:
            return Misfit(f"has {_shown(name)}, which its schema does not know")
        if (found := judge.look(given, inner)) is not None:
            return found.at(".*")
    return None


def _by_pattern(judge: Judge, given: Any, value: Any, schema: dict[str, Any]) -> Misfit | None:
    if not isinstance(given, dict):
        return judge.unsure()
    if not isinstance(value, dict):
        return None
    for pattern, inner in given.items():
        for name, one in value.items():
            if judge.matches(pattern, name) and (found := judge.look(inner, one)) is not None:
                return found.at(".*")
    return None


def _names(judge: Judge, given: Any, value: Any, schema: dict[str, Any]) -> Misfit | None:
    if isinstance(value, dict) and any(judge.look(given, name) is not None for name in value):
        return Misfit("has a name that is not allowed")
    return None


def _dependent(judge: Judge, given: Any, value: Any, schema: dict[str, Any]) -> Misfit | None:
    """`dependentRequired`, `dependentSchemas` and the older `dependencies`, which is either."""
    if not isinstance(given, dict):
        return judge.unsure()
    if not isinstance(value, dict):
        return None
    for name, needed in given.items():
        if name not in value:
            continue
        rule = _required(judge, needed, value, schema) if isinstance(needed, list) else judge.look(needed, value)
        if rule is not None:
            return rule
    return None


def _all(judge: Judge, given: Any, value: Any, schema: dict[str, Any]) -> Misfit | None:
    if not isinstance(given, list):
        return judge.unsure()
    for one in given:
        if (found := judge.look(one, value)) is not None:
            return found
    return None


def _any(judge: Judge, given: Any, value: Any, schema: dict[str, Any]) -> Misfit | None:
    if not isinstance(given, list) or not given:
        return judge.unsure()
    found = None
    for one in given:
        if (found := judge.look(one, value)) is None:
            return None
    return found if len(given) == 1 else Misfit("fits none of its alternatives")


def _one(judge: Judge, given: Any, value: Any, schema: dict[str, Any]) -> Misfit | None:
    if not isinstance(given, list) or not given:
        return judge.unsure()
    count = sum(judge.fits(one, value) for one in given)
    if count == 1:
        return None
    return Misfit("fits more than one of its alternatives" if count else "fits none of its alternatives")


def _not(judge: Judge, given: Any, value: Any, schema: dict[str, Any]) -> Misfit | None:
    return Misfit("is what it must not be") if judge.fits(given, value) else None


def _if(judge: Judge, given: Any, value: Any, schema: dict[str, Any]) -> Misfit | None:
    return judge.look(schema.get("then" if judge.fits(given, value) else "else", True), value)


def _untold(judge: Judge, given: Any, value: Any, schema: dict[str, Any]) -> Misfit | None:
    """A keyword that is not read here."""
    return judge.unsure()


def _shown(name: str) -> str:
    """A property's name where it looks like one; a name made of content stays out of the record."""
    return name if _NAME.fullmatch(name) else "a property"


RULES: dict[str, Rule] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    "minimum": _bound(lambda v, g: v < g, "is too small", "exclusiveMinimum"),
    "maximum": _bound(lambda v, g: v > g, "is too big", "exclusiveMaximum"),
    "exclusiveMinimum": _bound(lambda v, g: v <= g, "is too small"),
    "exclusiveMaximum": _bound(lambda v, g: v >= g, "is too big"),
    "multipleOf": _multiple,
    "minLength": _count(str, lambda n, g: n < g, "is too short"),
    "maxLength": _count(str, lambda n, g: n > g, "is too long"),
    "pattern": _pattern,
    "minItems": _count(list, lambda n, g: n < g, "has too few entries"),
    "maxItems": _count(list, lambda n, g: n > g, "has too many entries"),
    "items": _items,
    "prefixItems": _prefix_items,
    "contains": _contains,
    "uniqueItems": _unique,
    "minProperties": _count(dict, lambda n, g: n < g, "has too few properties"),
    "maxProperties": _count(dict, lambda n, g: n > g, "has too many properties"),
    "properties": _properties,
    "required": _required,
    "additionalProperties": _additional,
    "patternProperties": _by_pattern,
    "propertyNames": _names,
    "dependentRequired": _dependent,
    "dependentSchemas": _dependent,
    "dependencies": _dependent,
    "allOf": _all,
    "anyOf": _any,
    "oneOf": _one,
    "not": _not,
    "if": _if,
    "unevaluatedProperties": _untold,
    "unevaluatedItems": _untold,
    "$dynamicRef": _untold,
    "$recursiveRef": _untold,
}
