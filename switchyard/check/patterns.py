"""Regular expressions of a JSON Schema, run only where they can't take long.

They come from a client and meet text by a model, inside the event loop; Python's `re` has no time limit. So the work
is estimated first, on the safe side. What looks slow, or is no Python syntax, is left undecided.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from functools import lru_cache

MAX_PATTERN_CHARACTERS = 500
MAX_WORK = 200_000  # characters times ways to match them; 2 to 4 ms

# A class ends as Python sees it: a bracket right after its start is one of its characters.
_TOKEN = re.compile(
    r"\\(?P<escaped>.)|(?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])|(?P<open>\(\??)|(?P<close>\))"
    r"|(?P<repeat>[*+?]|\{(?P<low>\d*)(?P<comma>,?)(?P<high>\d*)\})|(?P<bar>\|)|.",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class _Plan:
    """A pattern that may be run.

    Attributes:
        regex: ready to search.
        ways: product of the choices that don't depend on the text's length.
        loops: number of repetitions that may be as long as the text.
        anchored: it can match at the start only.
    """

    regex: re.Pattern[str]
    ways: int
    loops: int
    anchored: bool


def work_of(pattern: str, length: int) -> int | None:
    """How much work a search may be, in characters looked at; None for too much, or a pattern that is not understood."""
    plan = _plan(pattern)
    if plan is None or length > MAX_WORK:
        return None
    work = plan.ways * (length + 1) ** (plan.loops + (not plan.anchored))
    return work if work <= MAX_WORK else None


def search(pattern: str, text: str) -> bool:
    """Whether the pattern occurs in the text; only for patterns whose work is known."""
    plan = _plan(pattern)
    return plan is not None and plan.regex.search(text) is not None


@lru_cache(maxsize=512)  # schemas come again with every request of an agent
def _plan(pattern: str) -> _Plan | None:
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        return None
    ways, loops = 1, 0
    branches = [1]  # of each group that is open, the whole pattern first
    after_group = False
    for token in _TOKEN.finditer(pattern):
        kind = token.lastgroup
        if kind == "repeat":
            low, high = _bounds(token)
            if after_group and high != 1:
                return None  # a repeated group may take exponential time
            if high is None:
                loops += 1
            else:
                ways *= max(1, high - low + 1)
        elif kind == "open":
            if token["open"] == "(?" and not pattern.startswith(":", token.end()):
                return None  # look-around, flags, names
            branches.append(1)
        elif kind == "close":
            ways *= branches.pop() if len(branches) > 1 else 1
        elif kind == "bar":
            branches[-1] += 1
        elif kind == "escaped" and token["escaped"] in "123456789":
            return None  # a back-reference
        after_group = kind == "close"
    regex = _compiled(pattern)
    if regex is None:
        return None
    for count in branches:
        ways *= count
    anchored = pattern.startswith("^") and branches == [1]
    return _Plan(regex, ways, loops, anchored)


def _bounds(token: re.Match[str]) -> tuple[int, int | None]:
    """Fewest and most repetitions; None for no limit."""
    text = token["repeat"]
    if text in "*+":
        return 0, None
    if text == "?":
        return 0, 1
    low, high = token["low"][:9], token["high"][:9]
    if not low and not high:
        return 0, None
    if not token["comma"]:
        return int(low), int(low)
    return int(low or 0), int(high) if high else None


def _compiled(pattern: str) -> re.Pattern[str] | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about sets inside sets: JSON Schema has none
            return re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return None
