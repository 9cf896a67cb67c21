"""Walking a JSON Schema and a value side by side, within a number of steps. What each keyword asks is `keywords.py`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

from switchyard.check.patterns import search, work_of

MAX_STEPS = 20_000  # places looked at and keywords applied in one judgement; 10 to 20 ms
MAX_DEPTH = 64
_OLD_DRAFTS = re.compile(r"draft-0[3-7]")  # there, nothing beside a $ref counts


class Undecided(Exception):
    """The schema can't be used for this value: it counts as fitting."""


class Misfit:
    """Where a value does not fit, and why; the path is collected on the way out."""

    __slots__ = ("path", "words")

    def __init__(self, words: str) -> None:
        self.words = words
        self.path: list[str] = []

    def at(self, step: str) -> Misfit:
        """The same, seen from one level further out."""
        self.path.append(step)
        return self


class Judge:
    """One judgement: the schema's root for references, and how far looking may go on.

    Args:
        root: the whole schema.
        rules: what each keyword asks of a value.
    """

    def __init__(self, root: Any, rules: Mapping[str, Rule]) -> None:
        self._root = root
        self._rules = rules
        named = root.get("$schema") if isinstance(root, dict) else None
        self._ref_alone = isinstance(named, str) and _OLD_DRAFTS.search(named) is not None
        self._steps = MAX_STEPS
        self._patterns: set[str] = set()
        self._depth = 0
        self._strict = 0

    def look(self, schema: Any, value: Any) -> Misfit | None:
        """The first thing in which the value does not fit."""
        self.spend(1)
        if schema is False:
            return Misfit("is not allowed")
        if not isinstance(schema, dict):
            return None if schema is True else self.unsure()
        if value is None and schema.get("nullable") is True:  # OpenAPI's word, common in generated tools
            return None
        if self._depth >= MAX_DEPTH:
            raise Undecided
        self.spend(len(schema) // 16)
        self._depth += 1
        try:
            return self._apply(schema, value)
        finally:
            self._depth -= 1

    def _apply(self, schema: dict[str, Any], value: Any) -> Misfit | None:
        ref = schema.get("$ref")
        if ref is not None:
            found = self.look(self._resolve(ref), value)
            if found is not None or self._ref_alone:
                return found
        for keyword, given in schema.items():
            rule = self._rules.get(keyword)
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
            raise Undecided

    def unsure(self) -> Misfit | None:
        """A keyword that can't be judged counts as met; under a negation that would not be the kind side, so nothing counts."""
        if self._strict:
            raise Undecided
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
            raise Undecided
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
                raise Undecided
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
        raise Undecided


Rule = Callable[[Judge, Any, Any, dict[str, Any]], Misfit | None]
"""Of a keyword: takes the judgement, what the keyword is given, the value, and the schema that the keyword stands in."""
