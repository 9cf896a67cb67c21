"""Classifiers are asked in the policy's order until one has a score."""

import pytest

from switchyard.routing.classify.base import ask_in_turn
from switchyard.routing.decision import Outcome

from ...build import chat, signals_of


class Says:
    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.asked = 0

    async def score(self, signals) -> Outcome:
        self.asked += 1
        return self.outcome


YES, UNSURE, BROKEN = Outcome("a", 0.7), Outcome("b", why="unclear"), Outcome("c", why="late", failed=True)


@pytest.mark.parametrize(
    ("chain", "asked"),
    [
        ([], 0),
        ([YES], 1),
        ([UNSURE, YES, YES], 2),
        ([BROKEN, UNSURE, YES, UNSURE], 3),
        ([UNSURE, BROKEN], 2),
        ([Outcome("z", 0.0), YES], 1),
    ],
)
def test_the_chain_ends_with_the_first_score(run, chain, asked):
    classifiers = [Says(outcome) for outcome in chain]
    outcomes = run(ask_in_turn(classifiers, signals_of(chat(("user", "hi")))))
    assert outcomes == chain[:asked]
    assert sum(c.asked for c in classifiers) == asked
