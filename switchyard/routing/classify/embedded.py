"""The classifier inside the process: a heuristic over surface features of the human's last text.

It is honest about what it is. Its weights were set by hand, not learned: short plain asks score high, long, code-heavy
or many-part asks score low. On labelled data length alone ranks about as well as it does; a trained head is to replace
the weights and keep the interface.
"""

from __future__ import annotations

import math

from switchyard.routing.decision import Outcome
from switchyard.routing.signals import Signals

NAME = "embedded"
_HARD = frozenset(
    [
        "prove",
        "proof",
        "derive",
        "theorem",
        "refactor",
        "architect",
        "architecture",
        "optimize",
        "optimise",
        "debug",
        "deadlock",
        "concurrency",
        "concurrent",
        "algorithm",
        "complexity",
        "migrate",
        "migration",
        "design",
        "tradeoff",
        "tradeoffs",
        "race",
        "integral",
        "equation",
        "vulnerability",
        "vulnerabilities",
        "thoroughly",
        "rewrite",
        "implement",
        "multithreaded",
        "distributed",
    ]
)
_EASY_STARTS = (
    "hi", "hello", "hey", "thanks", "thank you", "yes", "no", "ok", "okay", "sure", "what is", "who is", "when was",
    "translate", "rename", "list", "format", "spell",
)  # fmt: skip
_SEEN_CHARACTERS = 400  # beginning and end of a long text say what is asked
_BASE = 2.0
_PER_DOUBLING = -0.42  # of the text's length over 60 characters
_PER_HARD_WORD = -0.7
_EASY_START = 0.9
_CODE = -0.9  # for text that is all code
_PER_NUMBER = -0.08
_ERRORS = -0.6  # for each tool error in a row
_SURE_RANGE = (0.02, 0.98)


class EmbeddedClassifier:
    """A hand-set logistic score; abstains when there is no human text to look at."""

    async def score(self, signals: Signals) -> Outcome:
        """See `heuristic_score`."""
        text = signals.last_human_text
        if not text:
            return Outcome(NAME, why="no text by a human to look at")
        p = heuristic_score(text, signals.code_share, signals.tool_errors_in_a_row)
        return Outcome(NAME, p, "surface features")


def heuristic_score(text: str, code_share: float, tool_errors: int) -> float:
    """Logistic function of a weighted sum of surface features.

    Args:
        text: what the human asked, non-empty.
        code_share: share of its lines that look like code, 0..1.
        tool_errors: tool errors in a row at the end of the conversation.

    Returns:
        A score in 0.02..0.98. Not calibrated.
    """
    seen = text if len(text) <= _SEEN_CHARACTERS else text[:250] + " " + text[-150:]
    words = seen.lower().split()
    doublings = max(0.0, math.log2(len(text) / 60))
    hard = min(4, len(_HARD.intersection(words)))
    numbers = min(10, sum(map(str.isdigit, words)))
    logit = _BASE + _PER_DOUBLING * doublings + _PER_HARD_WORD * hard + _PER_NUMBER * numbers
    logit += _CODE * code_share + _ERRORS * min(4, tool_errors)
    if len(text) < 200 and seen.lower().lstrip().startswith(_EASY_STARTS):
        logit += _EASY_START
    low, high = _SURE_RANGE
    return min(high, max(low, 1 / (1 + math.exp(-logit))))
