"""Does a rule match, and how does it say so?"""

import pytest

from switchyard.config.rule import Rule
from switchyard.routing.rules import describe, holds, matches, turns_to_hold

from ..build import MINIMAL, chat, policy_of, signals_of


def rule_of(when: str, more: str = "") -> Rule:
    text = MINIMAL + f"routes: {{auto: {{otherwise: big, rules: [{{when: {when}, use: small{more}}}]}}}}\n"
    return policy_of(text).routes["auto"].rules[0]


SIGNALS = signals_of(
    chat(("user", "hi"), tools=[{"name": "a"}, {"name": "b"}], stream=True),
    headers={"user-agent": "codex/1", "x-team": "red"},
    hour=9,
)
WHEN = [
    ("{tools: 2}", True),
    ("{tools: 3}", False),
    ("{tools: [1, 2]}", True),
    ("{tools: [1, 3]}", False),
    ("{tools: {at_least: 2}}", True),
    ("{tools: {at_least: 3}}", False),
    ("{tools: {at_most: 2}}", True),
    ("{tools: {at_most: 1}}", False),
    ("{tools: {at_least: 1, at_most: 3}}", True),
    ("{tools: {is_not: 2}}", False),
    ("{tools: {is_not: 0}}", True),
    ("{stream: true}", True),
    ("{stream: false}", False),
    ("{client: codex}", True),
    ("{client: [aider, codex]}", True),
    ("{client: {is_not: codex}}", False),
    ("{client: {matches: '^co'}}", True),
    ("{client: {matches: dex$}}", True),
    ("{client: {matches: x, is_not: codex}}", False),
    ("{header.x-team: red}", True),
    ("{header.X-Team: red}", True),
    ("{header.x-other: ''}", True),
    ("{header.x-team: {matches: 'r.d'}}", True),
    ("{hour: {at_least: 9, at_most: 17}}", True),
    ("{code_share: {at_most: 0.5}}", True),
    ("{tools: 2, stream: true, client: codex}", True),  # all must hold
    ("{tools: 2, stream: false, client: codex}", False),
]


@pytest.mark.parametrize(("when", "match"), WHEN)
def test_when(when, match):
    assert matches(rule_of(when), SIGNALS) is match


def test_nothing_is_computed_for_conditions_behind_one_that_fails():
    signals = signals_of(chat(("user", "hi")))
    assert not matches(rule_of("{tools: 1, code_share: 0.5, language: latin}"), signals)
    assert "language" not in signals.known()


@pytest.mark.parametrize(
    ("condition", "value", "result"), [(1, 1, True), (True, 1, True), ("a", "b", False), (("a",), "a", True), ((), "a", False)]
)
def test_holds(condition, value, result):
    assert holds(condition, value) is result


@pytest.mark.parametrize(
    ("when", "more", "text"),
    [
        ("{tools: 2}", "", "tools is 2"),
        ("{stream: true, client: codex}", "", "stream is true, client is codex"),
        ("{tools: 2}", ", why: tools are hard", "tools are hard"),
    ],
)
def test_a_rule_says_why(when, more, text):
    assert describe(rule_of(when, more), SIGNALS) == text


def test_a_long_value_is_cut_in_the_reason():
    signals = signals_of(chat(), headers={"x-team": "r" * 1000})
    assert describe(rule_of("{header.x-team: {matches: r}}"), signals) == f"header.x-team is {'r' * 37}..."


@pytest.mark.parametrize(("more", "turns"), [("", 0), (", for: 1 turn", 1), (", for: 5 turns", 5), (", for: 1000 turns", 1000)])
def test_turns_to_hold(more, turns):
    assert turns_to_hold(rule_of("{tools: 1}", more)) == turns
