"""What a classifier has done so far: numbers that whoever shows metrics can read.

Labels and metric names are the reader's business.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

LATENCY_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 3.0, 10.0)

Abstention = Literal[
    "no_text", "busy", "late", "unreachable", "status", "unreadable", "worker",
    "tools", "long_prompt", "long_text", "code", "work", "no_question", "unknown_words", "leans",
]  # fmt: skip
"""Why there is no score: a small fixed set, used as a metric label."""


@dataclass(slots=True)
class AskStats:
    """Counters of one classifier, rising for as long as it lives.

    Attributes:
        asked: questions that were put.
        cached: scores from memory.
        joined: scores from a question that somebody else had put.
        abstained: requests without a score, by reason.
        answered: questions that were answered at all.
        seconds: time they took together.
        counts: answered questions by time; one more than `LATENCY_BOUNDS_S`, the last is above all of them.
        input_tokens: prompt tokens of the answers, as the engine counted them.
        output_tokens: the same for output.
    """

    asked: int = 0
    cached: int = 0
    joined: int = 0
    abstained: Counter[Abstention] = field(default_factory=Counter)
    answered: int = 0
    seconds: float = 0.0
    counts: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_S) + 1))
    input_tokens: int = 0
    output_tokens: int = 0

    def note_answer(self, seconds: float) -> None:
        """A question was answered after so long."""
        self.answered += 1
        self.seconds += seconds
        self.counts[bisect_left(LATENCY_BOUNDS_S, seconds)] += 1
