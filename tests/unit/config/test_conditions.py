"""What a rule may compare a signal with."""

import pytest

from switchyard.config.vocabulary import SIGNALS

from ..build import MINIMAL, problems_of

KINDS = {"bool": "images", "int": "tools", "float": "code_share", "text": "client"}
GOOD = {
    "bool": ["true", "false", "[true]", "{is_not: true}"],
    "int": ["0", "3", "[1, 2]", "{at_least: 1}", "{at_most: 3, at_least: 1}", "{is_not: 0}", "{at_least: 0.5}"],
    "float": ["0", "0.5", "[0, 0.5]", "{at_least: 0.5}", "{at_most: 1}", "{is_not: 0.5}"],
    "text": ["codex", "''", "[codex, aider]", "{is_not: codex}", "{matches: '^c'}", "'yes'", "'1'"],
}
BAD = {
    "bool": ["1", "'true'", "[true, maybe]", "{at_least: 1}", "{matches: t}", "{is_not: x}"],
    "int": ["true", "many", "'3'", "[1, many]", "0.5", "{matches: x}", "{is_not: true}", "{is_not: x}"],
    "float": ["true", "much", "[0.5, much]", "{matches: x}", "{is_not: false}"],
    "text": ["1", "true", "[codex, 1]", "{at_least: 1}", "{at_most: 1}", "{is_not: 1}"],
}


RULE = "routes:\n  auto:\n    otherwise: big\n    rules:\n      - when:\n          {}: {}\n        use: big\n"


def rule(signal: str, condition: str) -> str:
    return MINIMAL + RULE.format(signal, condition)


@pytest.mark.parametrize(("kind", "condition"), [(k, c) for k, conditions in GOOD.items() for c in conditions])
def test_a_condition_that_fits_its_signal(kind, condition):
    assert SIGNALS[KINDS[kind]].kind == kind
    assert problems_of(rule(KINDS[kind], condition)) == []


@pytest.mark.parametrize(("kind", "condition"), [(k, c) for k, conditions in BAD.items() for c in conditions])
def test_a_condition_that_can_never_hold_is_refused(kind, condition):
    (problem,) = problems_of(rule(KINDS[kind], condition))
    assert problem.line in {13, 14}
    assert problem.key.startswith("routes.auto.rules[0].when")
    assert problem.message.startswith(f"{KINDS[kind]} is ")


def test_a_header_is_a_text():
    assert problems_of(rule("header.x-team", "red")) == []
    assert problems_of(rule("header.x-team", "{matches: ^r}")) == []
    (problem,) = problems_of(rule("header.x-team", "1"))
    assert "a text" in problem.message
    (problem,) = problems_of(rule("header.", "x"))
    assert problem.hint == "did you mean header.NAME?"


# condition, words of the message, hint
BROKEN = [
    ("{at_leest: 1}", "unknown key at_leest", "did you mean at_least?"),
    ("{at_least: many}", "not many", ""),
    ("{}", "at least one of at_least, at_most, is_not, matches", ""),
    ("[]", "at least 1", ""),
    ("null", "not nothing", ""),
    ("yes", "truth value", ""),
]


@pytest.mark.parametrize(("condition", "words", "hint"), BROKEN)
def test_a_broken_condition_is_one_problem(condition, words, hint):
    (problem,) = problems_of(rule("tools", condition))
    assert problem.line == 14
    assert problem.key.startswith("routes.auto.rules[0].when.tools")
    assert words in problem.message
    assert hint in problem.hint


@pytest.mark.parametrize(
    ("condition", "words"), [("{}", "is expected is expected"), ("{matches: '['}", "is expected"), ("[]", "tuple")]
)
def test_a_broken_condition_is_said_in_plain_words(condition, words):
    (problem,) = problems_of(rule("client", condition))
    assert words not in problem.message


def test_when_must_say_something():
    (problem,) = problems_of(MINIMAL + "routes: {auto: {otherwise: big, rules: [{when: {}, use: big}]}}\n")
    assert problem.key == "routes.auto.rules[0].when"
    assert "dictionary" not in problem.message


@pytest.mark.parametrize(
    ("text", "good"), [("5 turns", True), ("1 turn", True), ("0 turns", False), ("5", False), ("five turns", False)]
)
def test_for_is_a_number_of_turns(text, good):
    entry = f"{{when: {{tools: 1}}, use: big, for: {text}}}"
    assert (problems_of(MINIMAL + f"routes: {{auto: {{otherwise: big, rules: [{entry}]}}}}\n") == []) is good
