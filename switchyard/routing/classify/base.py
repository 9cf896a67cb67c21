"""What every classifier is, and the chain that asks them in the policy's order."""

from __future__ import annotations

import math
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


def scored(by: str, raw_p: float, bias: float, scale: float, why: str) -> Outcome:
    """A classifier's score, calibrated as the policy says."""
    return Outcome(by, calibrate(raw_p, bias, scale), why, raw_p=raw_p)


def calibrate(p: float, bias: float, scale: float) -> float:
    """Logistic calibration: sigmoid(scale * logit(p) + bias). Bias 0 and scale 1 leave the score as it is."""
    if bias == 0.0 and scale == 1.0:
        return p
    p = min(1 - 1e-9, max(1e-9, p))
    logit = scale * math.log(p / (1 - p)) + bias
    return 1 / (1 + math.exp(-logit)) if logit > -700 else 0.0
