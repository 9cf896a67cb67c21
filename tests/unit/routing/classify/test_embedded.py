"""The classifier in the process: bounds, and the directions in which its score moves. Its weights are not a promise."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.routing.classify.embedded import EmbeddedClassifier, heuristic_score

from ...agents import REMINDER
from ...build import chat, signals_of

EASY = ["hi", "What is the capital of France?", "thanks", "translate 'cat' to German", "list the files here"]
HARD = [
    "Prove that the algorithm below terminates, derive its complexity, and design a distributed version without any race.",
    "Refactor the scheduler: " + "every queue must keep its order while workers join and leave; " * 30,
    "Debug this deadlock:\n" + "\n".join(f"    lock_{n}.acquire(); work(); lock_{n}.release();" for n in range(40)),
]


def score(text: str, code_share: float = 0.0, errors: int = 0) -> float:
    return heuristic_score(text, code_share, errors)


@given(st.text(min_size=1, max_size=2000), st.floats(0, 1), st.integers(0, 1000))
def test_a_score_is_never_sure(text, code_share, errors):
    assert 0.02 <= score(text, code_share, errors) <= 0.98


def test_short_plain_asks_score_above_long_and_hard_ones():
    assert min(map(score, EASY)) > 0.6 > max(map(score, HARD))


@given(st.sampled_from(EASY + HARD), st.floats(0, 1), st.floats(0, 1), st.integers(0, 9), st.integers(0, 9))
def test_more_code_and_more_errors_never_make_it_easier(text, share, other_share, errors, other_errors):
    (few, many), (less, more) = sorted([errors, other_errors]), sorted([share, other_share])
    assert score(text, less, few) >= score(text, more, few) >= score(text, more, many)


@given(st.integers(1, 400), st.integers(1, 400))
def test_more_of_the_same_words_never_makes_it_easier(n, m):
    few, many = sorted([n, m])
    assert score("some words " * few) >= score("some words " * many)


def test_the_end_of_a_long_text_counts():
    padding = "and then the next file " * 200
    assert score(padding + "prove the theorem, derive the proof") < score(padding + "that is all of it, have a good day ")


@pytest.mark.parametrize("text", EASY + HARD)
def test_the_classifier_scores_the_humans_text(run, text):
    signals = signals_of(chat(("system", HARD[0]), ("user", f"{REMINDER}\n{text}")))
    outcome = run(EmbeddedClassifier().score(signals))
    assert (outcome.by, outcome.failed) == ("embedded", False)
    assert outcome.p == score(text.strip(), signals.code_share)


def test_without_a_humans_text_it_abstains(run):
    outcome = run(EmbeddedClassifier().score(signals_of(chat(("user", REMINDER)))))
    assert (outcome.p, outcome.failed) == (None, False)
    assert outcome.why
