"""What a suite is: named cases, and a way to try one of them through a gateway. The suites themselves are siblings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, NoReturn, Protocol

from switchyard.evals.conversation import Conversation
from switchyard.evals.verdict import State

_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,64}")


class BadSuite(Exception):
    """A suite can't be used as asked; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Case:
    """One case.

    Attributes:
        id: unique in its suite; 1 to 64 letters, digits and . _ : / + = @ -, since it travels in headers.
        category: for the report.
    """

    id: str
    category: str


@dataclass(frozen=True, slots=True)
class Graded:
    """How a trial ended.

    Attributes:
        state: see `verdict.Outcome`.
        score: share of the points, 0..1.
        detail: one sentence on why.
        more: what the suite wants kept in the raw log.
    """

    state: State
    score: float
    detail: str
    more: dict[str, Any] = field(default_factory=dict)


class Suite(Protocol):
    """Cases and how to try them."""

    @property
    def name(self) -> str:
        """Of the suite."""

    @property
    def version(self) -> str:
        """Changes when the cases or their grading do: results are comparable within one version only."""

    @property
    def cases(self) -> Sequence[Case]:
        """All of them, in order."""

    @property
    def default(self) -> Sequence[Case]:
        """Those that run unless others are asked for."""

    async def attempt(self, case: Case, conversation: Conversation) -> Graded:
        """Try a case once. An answer that the gateway or an engine refused is graded as an error, not raised."""


def check_ids(cases: Sequence[Case], source: str) -> None:
    """Refuse ids that can't be labels, and duplicates.

    Raises:
        BadSuite: there are such ids, or no cases at all.
    """
    if not cases:
        raise BadSuite(f"{source} has no cases")
    seen: set[str] = set()
    for case in cases:
        if not _ID.fullmatch(case.id):
            raise BadSuite(f"{source}: the id {case.id[:80]!r} is not 1 to 64 letters, digits and . _ : / + = @ -")
        if case.id in seen:
            raise BadSuite(f"{source}: there are two cases with the id {case.id!r}")
        seen.add(case.id)


def refuse_constant(name: str) -> NoReturn:
    """For `json.loads`: NaN and the infinities, which no request can carry."""
    raise ValueError(f"{name} is no JSON")


def select(suite: Suite, wanted: str) -> list[Case]:
    """The cases that a user names: ids, patterns like TC-0*, ranges like TC-01..TC-20, or all; separated by commas.

    Raises:
        BadSuite: a name fits none.
    """
    if not wanted:
        return list(suite.default)
    ids = [case.id for case in suite.cases]
    chosen: set[str] = set()
    for part in (p.strip() for p in wanted.split(",")):
        first, dots, last = part.partition("..")
        if part == "all":
            found = ids
        elif dots and first in ids and last in ids:
            found = ids[ids.index(first) : ids.index(last) + 1]
        else:
            found = [i for i in ids if fnmatchcase(i, part)]
        if not found:
            raise BadSuite(f"{suite.name} has no case {part!r}; its ids go from {ids[0]} to {ids[-1]}")
        chosen.update(found)
    return [case for case in suite.cases if case.id in chosen]
