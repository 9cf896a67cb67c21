"""What every classifier is, and the chain that asks them in the policy's order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from switchyard.routing.decision import Outcome
from switchyard.routing.signals import Signals


class Classifier(Protocol):
    """Scores a request, or abstains. Never raises for what a request contains or an engine does."""

    async def score(self, signals: Signals) -> Outcome:
        """The probability that the small pool's answer is as good as the big pool's."""


async def ask_in_turn(classifiers: Sequence[Classifier], signals: Signals) -> list[Outcome]:
    """Ask until one has a score; every answer on the way is kept for the record."""
    outcomes: list[Outcome] = []
    for classifier in classifiers:
        outcome = await classifier.score(signals)
        outcomes.append(outcome)
        if outcome.p is not None:
            break
    return outcomes
