"""JSON Schema, as far as it can say that a tool call does not fit.

A reader of its own, since a general one costs 10 ms for each schema it meets for the first time, fetches what `$ref`
names, and shows values in its messages. This one walks the schema as it stands (`judge.py`), within a number of steps, and
looks at nothing outside it. A keyword that is unknown, odd or can't be decided in time counts as met: an unusable schema
never makes a call bad. `format` says nothing here, as in the standard. Which tool has which schema is `tools.py`.
"""

from __future__ import annotations

from typing import Any

from switchyard.check.judge import Judge, Undecided
from switchyard.check.keywords import RULES


def misfit(schema: Any, value: Any) -> str | None:
    """Why the value does not fit the schema, in words without any value of it; None when it fits or nobody can tell."""
    try:
        found = Judge(schema, RULES).look(schema, value)
    except (Undecided, RecursionError):
        return None
    if found is None:
        return None
    path = "".join(reversed(found.path)).removeprefix(".")
    return f"{path} {found.words}" if path else found.words
