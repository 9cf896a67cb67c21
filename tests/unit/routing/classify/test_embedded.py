"""The trained classifier: what it says, where it says nothing, and that the quick way of reading weights is the plain one.

Texts here are made up; none is from the data that was learned from.
"""

import asyncio
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switchyard.config.classifier import EmbeddedClassifier as PolicyBlock
from switchyard.demo.requests import make_asks
from switchyard.figures import read_classifiers
from switchyard.routing.classify.embedded import REASONS, TRIVIAL_P, EmbeddedClassifier
from switchyard.routing.classify.reading import PAIRED_WORDS, SURFACE, Reading, split_words
from switchyard.routing.classify.scope import trivial, why_not
from switchyard.routing.classify.scorer import LEAVES, WEIGHTS, Scorer, known_shares, read_weights
from switchyard.routing.decision import Outcome

from ...agents import REMINDER
from ...build import chat, signals_of

SCORER = Scorer(read_weights())
CLASSIFIER = EmbeddedClassifier(SCORER)
TOOL = {"type": "function", "function": {"name": "run", "parameters": {}}}
CHOICES = "Which of the following is a noble gas?\nA. oxygen\nB. argon\nC. nitrogen\nD. chlorine\nAnswer:"
QUESTIONS = {
    "What is the capital of France?": 0.877,
    "What is a mutex?": 0.8707,
    "How many planets does the solar system have?": 0.8664,
    "What is the difference between a virus and a bacterium?": 0.8711,
    "If a train goes 60 miles in 1.5 hours, what is its average speed?": 0.861,
    CHOICES: 0.8614,
}
TRIVIAL = [
    "Say hello in one short sentence.", "Thanks, that helps.", "List three colours.", "Say thanks in one short sentence.", "hi",
    "Hello!", "Thank you very much", "good morning", "Name two fruits", "Say hello.",
]  # fmt: skip
NOT_TRIVIAL = [
    "yes", "ok", "no", "continue", "commit it", "go on", "do that again", "great", "List the failing tests", "list", "say",
    "List all race conditions", "Say what you changed and fix it", "Thanks, now refactor the parser", "name it",
    "hi, the build is broken",
    "List three bugs in the scheduler and fix them", "", "Thanks\nNow write the tests", "Merci", "\U0001f44d",
]  # fmt: skip

WORK, CODE, NO_QUESTION, UNKNOWN = "a text or a change", "there is code", "no question", "too few of its words"
SILENT = {
    "Refactor the payment module so that retries are idempotent and add tests.": WORK,
    "Write a Python function that merges two sorted lists.": WORK,
    "Could you please review this pull request for security problems?": WORK,
    "How do I migrate the database without downtime?": WORK,
    "The tests are red. Fix them, please?": WORK,
    "Write a poem about the sea.": WORK,
    "Summarise the following email in two sentences: the meeting of Thursday is moved to Friday.": WORK,
    "Tell me a joke": WORK,
    "Why does tests/unit/test_session.py fail?": CODE,
    "What does `git rebase -i` do?": CODE,
    "Is a::b the same as a->b?": CODE,
    "What is in /etc/hosts?": CODE,
    "Why is the file /tmp/x empty?": CODE,
    "commit it": NO_QUESTION,
    "yes, go ahead": NO_QUESTION,
    "There is a race in the connection pool: two workers take the same socket.": NO_QUESTION,
    "SELECT 1;": NO_QUESTION,
    "Was ist die Hauptstadt von Frankreich?": UNKNOWN,
    "\u00bfCu\u00e1l es la capital de Francia?": UNKNOWN,
    "\u041a\u0442\u043e \u043d\u0430\u043f\u0438\u0441\u0430\u043b \u0413\u0430\u043c\u043b\u0435\u0442\u0430?": UNKNOWN,
    "Why does my Rust program say borrowed value does not live long enough?": UNKNOWN,
    "what is this? " * 300: "over 3000 characters",
}


def ask(*messages, **fields) -> Outcome:
    return asyncio.run(CLASSIFIER.score(signals_of(chat(*messages, **fields))))


# ---- what it says ----


@pytest.mark.parametrize(("text", "p"), QUESTIONS.items())
def test_a_question_like_those_learned_from_has_a_score(text, p):
    outcome = ask(("user", f"{REMINDER}\n{text}"))
    assert (outcome.by, outcome.failed) == ("embedded", False)
    assert outcome.p == pytest.approx(p, abs=0.001)


@pytest.mark.parametrize(("text", "why"), SILENT.items())
def test_where_nothing_was_learned_it_says_so(text, why):
    outcome = ask(("user", text))
    assert (outcome.p, outcome.failed) == (None, False)
    assert why in outcome.why


@pytest.mark.parametrize("text", TRIVIAL)
def test_a_trivial_ask_has_the_prior_with_tools_and_history_as_well(text):
    assert trivial(text)
    assert ask(("user", text)).p == TRIVIAL_P >= 0.6
    assert ask(("user", "Fix it"), ("assistant", "Done."), ("user", text), tools=[TOOL]).p == TRIVIAL_P


@pytest.mark.parametrize("text", NOT_TRIVIAL)
def test_a_short_ask_that_may_mean_work_is_not_trivial(text):
    assert not trivial(text)


def test_the_demos_hard_asks_never_go_small():
    texts = [body["messages"][0]["content"] for a in make_asks() if "messages" in (body := a.body)]
    hard = {text for text in texts if isinstance(text, str) and ("Design" in text or "Debug" in text)}
    assert len(hard) == 2
    assert all(ask(("user", text)).p is None for text in hard)


# ---- what is around the text ----

QUESTION = "What is the capital of France?"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (chat(("user", REMINDER)), "no text by a human"),
        (chat(("user", QUESTION), tools=[TOOL]), "tools are offered"),
        (chat(("system", "You know our handbook. " * 200), ("user", QUESTION)), "not in the last message"),
        (chat(("user", "x" * 5000), ("assistant", "Yes."), ("user", QUESTION)), "not in the last message"),
        (chat(("user", "word " * 20_000)), "over 3000 characters"),
        (chat(("user", QUESTION), ("assistant", "Paris."), ("user", "Why is that so?")), "leans on what was said"),
        (chat(("user", "What is printed?\nx = f(2);\ny = g(x);\nprint(y);")), "code"),
        (
            chat(("user", [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": "data:,"}}])),
            "not in the last message",
        ),
    ],
)
def test_a_request_that_is_more_than_its_text_has_no_score(run, body, why):
    outcome = run(CLASSIFIER.score(signals_of(body)))
    assert outcome.p is None
    assert why in outcome.why


def test_every_abstention_is_counted_under_its_reason(run):
    classifier = EmbeddedClassifier(SCORER)
    bodies = [
        *(chat(("user", text)) for text in (*SILENT, QUESTION, REMINDER)), chat(("user", QUESTION), tools=[TOOL]),
        chat(("system", "You know our handbook. " * 200), ("user", QUESTION)),
        chat(("user", QUESTION), ("assistant", "Paris."), ("user", "Why is that so?")),
    ]  # fmt: skip
    silent = [run(classifier.score(signals_of(body))).p is None for body in bodies]
    assert set(classifier.stats.abstained) == set(REASONS.values())
    assert sum(classifier.stats.abstained.values()) == sum(silent) == len(bodies) - 1
    block = PolicyBlock(type="embedded")
    assert {labels: n for _, labels, n in read_classifiers({block: classifier})} == {
        ("embedded", reason): n for reason, n in classifier.stats.abstained.items()
    }


def test_a_follow_up_that_stands_for_itself_has_the_score_of_a_first_ask():
    later = ask(("system", "Be brief."), ("user", "What is a virus?"), ("assistant", "It is small."), ("user", QUESTION))
    assert later.p == ask(("user", QUESTION)).p is not None


# ---- bounds ----

_TEXTS = st.one_of(st.text(max_size=300), st.sampled_from([*QUESTIONS, *SILENT, *TRIVIAL]))


@given(_TEXTS, _TEXTS)
def test_any_text_has_a_score_within_bounds_or_a_reason(start, end):
    outcome = ask(("user", start + end))
    assert (outcome.p is None and outcome.why) or 0.02 <= outcome.p <= 0.98


@given(_TEXTS.filter(bool))
def test_reading_and_scoring_any_text_works(text):
    reading = Reading(text)
    sums = SCORER.look_up(reading)
    assert len(reading.surface) == len(SURFACE)
    assert all(map(math.isfinite, reading.surface))
    assert 0.02 <= SCORER.p(reading, sums) <= 0.98
    assert all(0 <= share <= 1 for share in known_shares(reading, sums))
    assert why_not(text, reading) == why_not(text, Reading(text))


def test_of_a_long_text_pairs_at_both_ends_are_read():
    words = [f"w{n}" for n in range(1_000)]
    pairs = list(Reading(" ".join(words)).pairs)
    assert len(pairs) == PAIRED_WORDS - 1
    assert (pairs[0], pairs[-1]) == (("w0", "w1"), ("w998", "w999"))


def test_words_are_runs_of_letters_digits_and_two_marks():
    text = "Don't mix A_b, c-d; \u00c9t\u00e9 3.5\u00a0km/h \u4e2d"
    assert " ".join(split_words(text)) == "don't mix a_b c d \u00e9t\u00e9 3 5 km h"
    assert Reading("don\u2019t").words == ["don't"]


# ---- the quick way and the plain way ----


def plain_trees(scorer: Scorer, reading: Reading) -> float:
    values = (*reading.surface, reading.kind)
    total = scorer.weights.tree_base
    for tree in scorer.weights.trees:
        node = 0
        while node >= 0:
            node = tree.left[node] if values[tree.feature[node]] <= tree.threshold[node] else tree.right[node]
        total += tree.leaves[-1 - node]
    return total


def plain_head(scorer: Scorer, reading: Reading, head: str) -> float:
    w = scorer.weights
    words = dict(zip(w.words.split(" "), getattr(w.word_scores, head), strict=True))
    pairs = dict(zip(w.pairs.split("\n"), getattr(w.pair_scores, head), strict=True))
    text = sum(words.get(x, 0) for x in reading.unique) + sum(pairs.get(f"{a} {b}", 0) for a, b in reading.pairs)
    constant, *slopes = getattr(w, head)[reading.kind]
    clipped = [min(4, max(-4, (x - m) / s)) for x, m, s in zip(reading.surface, w.mean, w.spread, strict=True)]
    surface = sum(a * b for a, b in zip(slopes, clipped, strict=True))
    return constant + surface + w.unit * text / math.sqrt(len(reading.unique) + len(reading.paired) or 1)


@given(_TEXTS.filter(bool))
def test_all_trees_at_once_give_what_each_gives(text):
    assert SCORER._tree_gain(Reading(text)) == pytest.approx(plain_trees(SCORER, Reading(text)), abs=1e-9)


@settings(max_examples=30)
@given(_TEXTS.filter(bool))
def test_one_sum_of_packed_scores_gives_both_heads(text):
    reading = Reading(text)
    big, small = (1 / (1 + math.exp(-plain_head(SCORER, reading, head))) for head in ("only_big", "only_small"))
    assert SCORER._linear_gain(reading, SCORER.look_up(reading)) == pytest.approx(big - small, abs=1e-6)


# ---- the file ----


def test_the_file_says_where_it_comes_from_and_is_small():
    head = json.loads(WEIGHTS.read_bytes())["about"]
    assert {"version", "made_by", "data", "data_sha256", "labels", "questions"} <= head.keys()
    assert WEIGHTS.read_bytes().startswith(b'{\n"about": ')
    assert WEIGHTS.stat().st_size < 1_500_000


def test_the_file_holds_no_text_longer_than_two_words():
    weights = SCORER.weights
    assert all(len(pair.split(" ")) == 2 for pair in weights.pairs.split("\n"))
    assert len(set(weights.words.split(" "))) == len(weights.word_scores.only_big) == len(weights.word_scores.only_small)


def test_trees_fit_a_byte_and_read_what_is_there():
    for tree in SCORER.weights.trees:
        assert 1 <= len(tree.leaves) <= LEAVES
        assert all(0 <= feature <= len(SURFACE) for feature in tree.feature)
