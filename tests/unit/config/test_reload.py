"""What changes between two policies, in words; noticing that a file has changed; variables in values."""

import os

import pytest

from switchyard.config.load import parse_policy
from switchyard.config.problem import PolicyError
from switchyard.config.reload import PolicyFile, describe_changes

from ..build import MINIMAL, policy_of

BASE = MINIMAL.replace("[http://127.0.0.1:8001]", "[{url: http://h:1, name: a}, {url: http://h:2, name: b}]") + (
    "server: {port: 4000}\nroutes: {auto: {choose: [{p_at_least: 0.6, use: small}, {use: big}]}, other: {use: big}}\n"
)
# what is replaced, by what, the only line (or None: there is some line)
CHANGES = [
    ("port: 4000", "port: 4001", "server: port changed; that takes effect at the next start"),
    ("{url: http://h:2, name: b}", "{url: http://h:3, name: c}", None),
    (", {url: http://h:2, name: b}", "", "pool small: replica b is drained: it gets nothing new, and what runs on it may end"),
    ("model: b", "model: c", "pool big: model is c, was b"),
    ("model: b\n", "model: b\n    balance: p2c\n", "pool big: balance is p2c, was prefix"),
    ("p_at_least: 0.6", "p_at_least: 0.7", "route auto: thresholds are small from 0.7, big, were small from 0.6, big"),
    (
        "p_at_least: 0.6",
        "p_at_least: 0.60000001",
        "route auto: thresholds are small from 0.60000001, big, were small from 0.6, big",
    ),
    ("{choose: ", "{otherwise: small, choose: ", "route auto: otherwise is small, was left out"),
    (", other: {use: big}", "", "route other is gone"),
    ("other: {use: big}", "other: {use: small}", "route other: use is small, was big"),
    ("other: {use: big}", "other: {use: big}, third: {use: big}", "route third is new"),
    ("name: b}", "name: b, weight: 2}", None),
    ("http://h:2, name: b", "http://h:9, name: b", None),
]


@pytest.mark.parametrize(("old", "new", "line"), CHANGES, ids=range(len(CHANGES)))
def test_every_difference_is_told(old, new, line):
    assert old in BASE
    found = describe_changes(policy_of(BASE), policy_of(BASE.replace(old, new)))
    assert found if line is None else found == [line]


IMAGES, STREAMS = "{when: {images: true}, use: big}", "{when: {stream: true}, use: big, why: fast, for: 2 turns}"
WORDS = [
    "{'when': {'images': True}, 'use': 'big'}",
    "{'when': {'stream': True}, 'use': 'big', 'why': 'fast', 'for': '2 turns'}",
]
# rules before and after, the lines
RULES = [
    ([IMAGES], [IMAGES, STREAMS], [f"route auto: a rule is new, number 2: {WORDS[1]}"]),
    ([IMAGES, STREAMS], [STREAMS], [f"route auto: a rule is gone: {WORDS[0]}"]),
    ([IMAGES], [STREAMS], [f"route auto: a rule is gone: {WORDS[0]}", f"route auto: a rule is new, number 1: {WORDS[1]}"]),
    ([IMAGES, STREAMS], [STREAMS, IMAGES], ["route auto: its rules are in another order, or one stands twice"]),
    ([IMAGES], [IMAGES], []),
]


def test_another_order_of_routes_is_a_change():
    """`claude-*` or `c*`: the first that fits counts."""
    routes = ["one: {use: small, aliases: [claude-*]}", "two: {use: big, aliases: [c*]}"]
    one, other = (policy_of(MINIMAL + f"routes: {{{', '.join(order)}}}\n") for order in (routes, routes[::-1]))
    (line,) = describe_changes(one, other)
    assert "routes are in another order" in line


@pytest.mark.parametrize(("before", "after", "lines"), RULES, ids=range(len(RULES)))
def test_a_changed_rule_is_told(before, after, lines):
    """Their number alone would say that one of them is another one: nothing."""
    old, new = (policy_of(BASE.replace("auto: {", f"auto: {{rules: [{', '.join(rules)}], ")) for rules in (before, after))
    assert describe_changes(old, new) == lines


def test_pools_come_and_go():
    with_third = policy_of(BASE.replace("pools:\n", "pools:\n  third: {model: t, replicas: [http://h:7, http://h:8]}\n"))
    assert describe_changes(policy_of(BASE), with_third) == ["pool third is new: 2 replicas of t"]
    assert describe_changes(with_third, policy_of(BASE)) == ["pool third is gone: what runs on it may end"]


def test_the_same_meaning_in_other_words_is_no_change():
    same = BASE.replace("server: {port: 4000}\n", "").replace("    model: s\n", "    model: 's'   # comment\n    usage: pass\n")
    assert describe_changes(policy_of(BASE), policy_of(same)) == []


def test_a_file_that_changes_is_seen_once(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text("a")
    file = PolicyFile(path)
    assert not file.changed()
    path.write_text("longer")
    assert looks(file) == [False, True, False, False]
    replacement = tmp_path / "new.yaml"
    replacement.write_text("longer")
    os.replace(replacement, path)  # as editors do
    assert looks(file) == [False, True, False, False]
    path.unlink()
    assert looks(file) == [False] * 4
    path.write_text("back again, and different")
    assert looks(file) == [False, True, False, False]


def looks(file):
    return [file.changed() for _ in range(4)]


def test_a_file_that_is_being_written_is_not_read_half(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text("a")
    file = PolicyFile(path)
    for length in range(2, 6):
        path.write_text("a" * length)
        assert not file.changed()
    assert looks(file) == [True, False, False, False]


def loaded(value: str, **environment: str) -> str | None:
    """The model name written as `value`."""
    text = MINIMAL.replace("model: s", f"model: {value}")
    return parse_policy(text.encode(), "p.yaml", environment).pools["small"].model


@pytest.mark.parametrize(
    ("value", "environment", "result"),
    [
        ("${NAME}", {"NAME": "qwen"}, "qwen"),
        ("org/${NAME}-${SIZE:-7b}", {"NAME": "qwen"}, "org/qwen-7b"),
        ("${NAME:-qwen}", {}, "qwen"),
        ("${NAME:-qwen}", {"NAME": ""}, "qwen"),
        ("'${NAME}'", {"NAME": "123"}, "123"),
        ("${NAME:-a:-b}", {}, "a:-b"),
        ("${NAME:-}x", {}, "x"),
        ("$NAME", {"NAME": "x"}, "$NAME"),
        ("${NAME}", {"NAME": "a: b, [c]"}, "a: b, [c]"),  # never structure
        ("${NAME}", {"NAME": "${OTHER}", "OTHER": "x"}, "${OTHER}"),  # and never looked up again
    ],
)
def test_variables_in_values(value, environment, result):
    assert loaded(value, **environment) == result


@pytest.mark.parametrize(
    ("value", "environment", "words"),
    [
        ("${NAME}", {}, "the environment variable NAME is not set"),
        ("${no-name}", {}, "is no variable"),
        ("${}", {}, "is no variable"),
        # what other tools know: not half of it, as a text
        ("${NAME", {"NAME": "x"}, "${NAME is no variable"),
        ("${NAME:?unset}", {"NAME": "x"}, "is no variable"),
        ("${NAME-default}", {"NAME": "x"}, "is no variable"),
        ("${NAME:default}", {"NAME": "x"}, "is no variable"),
        ("${NAME:-${OTHER}}", {"OTHER": "x"}, "is no variable"),
        ("${NAME}", {"NAME": "no"}, "truth value"),
    ],
)
def test_variables_that_are_not_there_or_surprise(value, environment, words):
    with pytest.raises(PolicyError) as caught:
        loaded(value, **environment)
    problem = caught.value.problems[0]
    assert (problem.line, problem.key) == (4, "pools.small.model")
    assert words in problem.message


@pytest.mark.parametrize("more", ["server: {port: ${PORT}}\n", "routes: {a: {use: small, aliases: [${NAME:-x}]}}\n"])
def test_a_variable_inside_braces_is_told_how_it_is_written(more):
    with pytest.raises(PolicyError) as caught:
        parse_policy((MINIMAL + more).encode(), "p.yaml", {"PORT": "8080"})
    (problem,) = caught.value.problems
    assert problem.line == 9
    assert "needs quotes" in problem.hint


def test_a_variable_is_no_key():
    with pytest.raises(PolicyError, match="has a variable in it"):
        parse_policy((MINIMAL + "routes:\n  ${NAME}: {use: small}\n").encode(), "p.yaml", {"NAME": "x"})


def test_a_number_from_the_environment_is_a_number():
    policy = parse_policy((MINIMAL + "server:\n  port: ${PORT}\n").encode(), "p.yaml", {"PORT": "8080"})
    assert policy.server.port == 8080
