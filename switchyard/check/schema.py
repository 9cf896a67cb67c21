"""JSON Schema, as far as it can say that a tool call does not fit.

A reader of its own, since a general one costs 10 ms for each schema it meets for the first time, fetches what `$ref`
names, and shows values in its messages. This one walks the schema as it stands, within a number of steps, and looks at
nothing outside it. A keyword that is unknown, odd or can't be decided in time counts as met: an unusable schema never
makes a call bad. `format` says nothing here, as in the standard. Which tool has which schema is `tools.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any
from urllib.parse import unquote

from switchyard.check.patterns import search, work_of

MAX_STEPS = 20_000  # places looked at and keywords applied in one judgement; 10 to 20 ms
MAX_DEPTH = 64
_OLD_DRAFTS = re.compile(r"draft-0[3-7]")  # there, nothing beside a $ref counts
_NAME = re.compile(r"[A-Za-z_$][\w$.-]{0,39}", re.ASCII)


class _Undecided(Exception):
    """The schema can't be used for this value: it counts as fitting."""


class _Misfit:
    """Where a value does not fit, and why; the path is collected on the way out."""

    __slots__ = ("path", "words")

    def __init__(self, words: str) -> None:
        self.words = words
        self.path: list[str] = []

    def at(self, step: str) -> _Misfit:
        """The same, seen from one level further out."""
        self.path.append(step)
        return self


def misfit(schema: Any, value: Any) -> str | None:
    """Why the value does not fit the schema, in words without any value of it; None when it fits or nobody can tell."""
    try:
        found = _Judge(schema).look(schema, value)
    except (_Undecided, RecursionError):
        return None
    if found is None:
        return None
    path = "".join(reversed(found.path)).removeprefix(".")
    return f"{path} {found.words}" if path else found.words


class _Judge:
    """One judgement: the schema's root for references, and how far looking may go on."""

    def __init__(self, root: Any) -> None:
        self._root = root
        named = root.get("$schema") if isinstance(root, dict) else None
        self._ref_alone = isinstance(named, str) and _OLD_DRAFTS.search(named) is not None
        self._steps = MAX_STEPS
        self._patterns: set[str] = set()
        self._depth = 0
        self._strict = 0

    def look(self, schema: Any, value: Any) -> _Misfit | None:
        """The first thing in which the value does not fit."""
        self.spend(1)
        if schema is False:
            return _Misfit("is not allowed")
        if not isinstance(schema, dict):
            return None if schema is True else self.unsure()
        if value is None and schema.get("nullable") is True:  # OpenAPI's word, common in generated tools
            return None
        if self._depth >= MAX_DEPTH:
            raise _Undecided
        self.spend(len(schema) // 16)
        self._depth += 1
        try:
            return self._apply(schema, value)
        finally:
            self._depth -= 1

    def _apply(self, schema: dict[str, Any], value: Any) -> _Misfit | None:
        ref = schema.get("$ref")
        if ref is not None:
            found = self.look(self._resolve(ref), value)
            if found is not None or self._ref_alone:
                return found
        for keyword, given in schema.items():
            rule = _RULES.get(keyword)
            if rule is None:
                continue
            self.spend(1)
            if (found := rule(self, given, value, schema)) is not None:
                return found
        return None

    def spend(self, steps: int) -> None:
        """Count work that is about to be done."""
        self._steps -= steps
        if self._steps < 0:
            raise _Undecided

    def unsure(self) -> _Misfit | None:
        """A keyword that can't be judged counts as met; under a negation that would not be the kind side, so nothing counts."""
        if self._strict:
            raise _Undecided
        return None

    def fits(self, schema: Any, value: Any) -> bool:
        """Whether it fits, for keywords in which fitting can be the wrong answer."""
        self._strict += 1
        try:
            return self.look(schema, value) is None
        finally:
            self._strict -= 1

    def matches(self, pattern: Any, text: str) -> bool | None:
        """Whether the pattern occurs in the text; None when that can't be said."""
        work = work_of(pattern, len(text)) if isinstance(pattern, str) else None
        if work is None:
            self.unsure()
            return None
        if pattern not in self._patterns:
            self._patterns.add(pattern)
            self.spend(100 + len(pattern))  # it may have to be compiled
        self.spend(1 + work // 50)
        return search(pattern, text)

    def _resolve(self, ref: Any) -> Any:
        """What a reference inside the schema means; nothing is fetched."""
        if not isinstance(ref, str) or not ref.startswith("#"):
            raise _Undecided
        if not ref[1:].startswith("/"):
            return self._root if ref == "#" else self._anchored(ref[1:])
        place = self._root
        for step in ref[2:].split("/"):
            name = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(place, dict) and name in place:
                place = place[name]
            elif isinstance(place, list) and name.isdecimal() and len(name) < 6 and int(name) < len(place):
                place = place[int(name)]
            else:
                raise _Undecided
        return place

    def _anchored(self, name: str) -> Any:
        places = [self._root]
        while places:
            place = places.pop()
            self.spend(1)
            if isinstance(place, dict):
                if place.get("$anchor") == name or place.get("$id") == f"#{name}":
                    return place
                places += place.values()
            elif isinstance(place, list):
                places += place
        raise _Undecided


def _type(judge: _Judge, given: Any, value: Any, schema: dict[str, Any]) -> _Misfit | None:
    names = given if isinstance(given, list) else [given]
    if not names or not all(isinstance(n, str) and n in _TYPES for n in names):
        return judge.unsure()
    if any(_TYPES[name](value) for name in names):
        return None
    return _Misfit(f"must be of type {' or '.join(names)}")


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


def _key(judge: _Judge, value: Any) -> Any:
    """Something equal exactly for equal JSON values: 1 is 1.0, but true is not 1."""
    judge.spend(1)
    if isinstance(value, bool):
        return ("is", value)
    if isinstance(value, dict):
        return ("{}", frozenset((name, _key(judge, v)) for name, v in value.items()))
    if isinstance(value, list):
        return ("[]", tuple(_key(judge, v) for v in value))
    return value


def _enum(judge: _Judge, given: Any, value: Any, schema: dict[str, Any]) -> _Misfit | None:
    if not isinstance(given, list):
        return judge.unsure()
    if isinstance(value, str):  # nearly always
        judge.spend(len(given) // 16)
        return None if value in given else _Misfit("is none of the values allowed")
    key = _key(judge, value)
    return None if any(_key(judge, one) == key for one in given) else _Misfit("is none of the values allowed")


def _const(judge: _Judge, given: Any, value: Any, schema: dict[str, Any]) -> _Misfit | None:
    return None if _key(judge, given) == _key(judge, value) else _Misfit("is not the value allowed")


def _bound(breaks: Callable[[Any, Any], bool], words: str, strict_name: str = "") -> _Rule:
    """A rule for a number; draft 4 makes it strict by a flag beside it."""

    def rule(judge: _Judge, given: Any, value: Any, schema: dict[str, Any]) -> _Misfit | None:
        if not _is_number(given):
            return None if isinstance(given, bool) else judge.unsure()
        if not _is_number(value):
            return None
        if breaks(value, given) or (strict_name and schema.get(strict_name) is True and value == given):
            return _Misfit(words)
        return None

    return rule


def _multiple(judge: _Judge, given: Any, value: Any, schema: dict[str, Any]) -> _Misfit | None:
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
    return None if whole else _Misfit("is not a multiple of the number given")


def _count(kind: type[str] | type[list[Any]] | type[dict[str, Any]], breaks: Callable[[int, Any], bool], words: str) -> _Rule:
    """A rule for the length of a text, a list or an object."""

    def rule(judge: _Judge, given: Any, value: Any, schema: dict[str, Any]) -> _Misfit | None:
        if not _is_number(given):
            return judge.unsure()
        return _Misfit(words) if isinstance(value, kind) and breaks(len(value), given) else None

    return rule


def _pattern(judge: _Judge, given: Any, value: Any, schema: dict[str, Any]) -> _Misfit | None:
    if isinstance(value, str) and judge.matches(given, value) is False:
        return _Misfit("does not match its pattern")
    return None


def _each(judge: _Judge, pairs: Iterable[tuple[Any, Any]], first: int = 0) -> _Misfit | None:
    for i, (schema, value) in enumerate(pairs, first):
        if (found := judge.look(schema, value)) is not None:
            return found.at(f"[{i}]")
    return None


def _items(judge: _Judge, given: Any, value: Any, schema: dict[str, Any]) -> _Misfit | None:
    if not isinstance(value, list):
        return None
    if isinstance(given, list):  # before 2020-12: one schema a place, the rest by additionalItems
        rest = islice(value, len(given), None) if "additionalItems" in schema else ()
        found = _each(judge, zip(given, value, strict=False))
        return found or _each(judge, ((schema["additionalItems"], v) for v in rest), len(given))
    prefix = schema.get("prefixItems")
    begin = len(prefix) if isinstance(prefix, list) else 0
    return _each(judge, ((given, v) for v in islice(value, begin, None)), begin)


def _prefix_items(judge: _Judge, given: Any, value: Any, schema: dict[str, Any]) -> _Misfit | None:
    if not isinstance(given, list):
        return judge.unsure()
    return _each(judge, zip(given, value, strict=False)) if isinstance(value, list) else None


def _contains(judge: _Judge, given: Any, value: Any, schema: dict[str, Any]) -> _Misfit | None:
    if not isinstance(value, list):
        return None
    least, most = schema.get("minContains", 1), schema.get("maxContains")
    if not _is_number(least) or not (most is None or _is_number(most)):
        return judge.unsure()
    count = sum(judge.fits(given, v) for v in value)
    if count < least or (most is not None and count > most):
        return _Misfit("does not contain what it must")
    return None


def _unique(judge: _Judge, given: Any, value: Any, schema: dict[str, Any]) -> _Misfit | None:
    if given is not True or not isinstance(value, list):
        return None
    return None if len({_key(judge, v) for v in value}) == len(value) else _Misfit("has an entry twice")


def _properties(judge: _Judge, given: Any, value: Any, schema: dict[str, Any]) -> _Misfit | None:
    if not isinstance(given, dict):
        return judge.unsure()
    if not isinstance(value, dict):
        return None
    judge.spend(len(given) // 16)
    for name, inner in given.items():
        if name in value and (found := judge.look(inner, value[name])) is not None:
            return found.at(f".{_shown(name)}")
    return None


def _required(judge: _Judge, given: Any, value: Any, schema: dict[str, Any]) -> _Misfit | None:
    if not isinstance(given, list):
        return judge.unsure()
    if not isinstance(value, dict):
        return None
    judge.spend(len(given) // 16)
    missing = [name for name in given if isinstance(name, str) and name not in value]
    return _Misfit(f"lacks {_shown(missing[0])}") if missing else None


def _additional(judge: _Judge, given: Any, value: Any, schema: dict[str, Any]) -> _Misfit | None:
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
            return _Misfit(f"has {_shown(name)}, which its schema does not know")
        if (found := judge.look(given, inner)) is not None:
            return found.at(".*")
    return None


def _by_pattern(judge: _Judge, given: Any, value: Any, schema: dict[str, Any]) -> _Misfit | None:
    if not isinstance(given, dict):
        return judge.unsure()
    if not isinstance(value, dict):
        return None
    for pattern, inner in given.items():
        for name, one in value.items():
            if judge.matches(pattern, name) and (found := judge.look(inner, one)) is not None:
                return found.at(".*")
    return None


def _names(judge: _Judge, given: Any, value: Any, schema: dict[str, Any]) -> _Misfit | None:
    if isinstance(value, dict) and any(judge.look(given, name) is not None for name in value):
        return _Misfit("has a name that is not allowed")
    return None


def _dependent(judge: _Judge, given: Any, value: Any, schema: dict[str, Any]) -> _Misfit | None:
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


def _all(judge: _Judge, given: Any, value: Any, schema: dict[str, Any]) -> _Misfit | None:
    if not isinstance(given, list):
        return judge.unsure()
    for one in given:
        if (found := judge.look(one, value)) is not None:
            return found
    return None


def _any(judge: _Judge, given: Any, value: Any, schema: dict[str, Any]) -> _Misfit | None:
    if not isinstance(given, list) or not given:
        return judge.unsure()
    found = None
    for one in given:
        if (found := judge.look(one, value)) is None:
            return None
    return found if len(given) == 1 else _Misfit("fits none of its alternatives")


def _one(judge: _Judge, given: Any, value: Any, schema: dict[str, Any]) -> _Misfit | None:
    if not isinstance(given, list) or not given:
        return judge.unsure()
    count = sum(judge.fits(one, value) for one in given)
    if count == 1:
        return None
    return _Misfit("fits more than one of its alternatives" if count else "fits none of its alternatives")


def _not(judge: _Judge, given: Any, value: Any, schema: dict[str, Any]) -> _Misfit | None:
    return _Misfit("is what it must not be") if judge.fits(given, value) else None


def _if(judge: _Judge, given: Any, value: Any, schema: dict[str, Any]) -> _Misfit | None:
    return judge.look(schema.get("then" if judge.fits(given, value) else "else", True), value)


def _untold(judge: _Judge, given: Any, value: Any, schema: dict[str, Any]) -> _Misfit | None:
    """A keyword that is not read here."""
    return judge.unsure()


def _shown(name: str) -> str:
    """A property's name where it looks like one; a name made of content stays out of the record."""
    return name if _NAME.fullmatch(name) else "a property"


_Rule = Callable[[_Judge, Any, Any, dict[str, Any]], _Misfit | None]
_RULES: dict[str, _Rule] = {
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
