"""Graders of example.jsonl: a function takes the answer's text and the case's line."""

from typing import Any

WORDS = ["apple", "fig", "lime", "pear"]


def in_order(answer: str, line: dict[str, Any]) -> float:
    """1 when the words stand in order, half when all are there in another order, else 0."""
    found = [w for w in answer.lower().replace(",", " ").split() if w in WORDS]
    if found == WORDS:
        return 1.0
    return 0.5 if sorted(found) == WORDS else 0.0
