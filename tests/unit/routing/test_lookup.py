"""From a model name to a route: exact names, then patterns in the file's order; a name is never interpreted (F49)."""

import pytest

from switchyard.routing.lookup import Names

from ..build import MINIMAL, policy_of

NAMES = Names(
    policy_of(
        MINIMAL
        + """\
routes:
  auto: {use: small, aliases: [default, "claude-*", "*-mini", "a.c*"]}
  code: {use: big, aliases: ["claude-opus-*", "gpt-4*o", "claude-exact", "org/*"]}
"""
    )
)


@pytest.mark.parametrize(
    ("model", "route", "pool"),
    [
        ("auto", "auto", "small"),
        ("code", "code", "big"),
        ("default", "auto", "small"),
        ("small", "", "small"),  # a pool by its own name: no route
        ("big", "", "big"),
        ("claude-sonnet-4-5", "auto", "small"),
        ("claude-", "auto", "small"),
        ("claude-opus-4", "auto", "small"),  # the first pattern in the file wins
        ("claude-exact", "code", "big"),  # an exact alias wins over any pattern
        ("gpt-5-mini", "auto", "small"),
        ("gpt-4o", "code", "big"),
        ("gpt-4-turbo-o", "code", "big"),
        ("org/model", "code", "big"),
        ("org/a/b", "code", "big"),
        ("a.c", "auto", "small"),
    ],
)
def test_found(model, route, pool):
    name, found = NAMES.find(model)
    assert (name, found.default_pool) == (route, pool)


@pytest.mark.parametrize(
    "model",
    ["", "AUTO", "auto ", " auto", "auto\n", "aut", "autoo", "abc", "xclaude-1", "claude", "gpt-4", "claude-a b", "claude-a\n",
     "../admin", "http://h/v1", "a%2f..%2fb", "x?y#z", "/etc/passwd", "$HOME", "claude-" + "x" * 300, "\ufffd"],
)  # fmt: skip
def test_not_found(model):
    assert NAMES.find(model) is None


def test_every_exact_name_is_listed_and_no_pattern():
    assert set(NAMES.listed) == {"small", "big", "auto", "code", "default", "claude-exact"}


def test_a_star_alone_takes_every_sane_name():
    names = Names(policy_of(MINIMAL + "routes: {auto: {use: small, aliases: ['*']}}\n"))
    assert names.find("anything/at:all")[0] == "auto"
    assert names.find("big")[0] == ""
    assert names.find("two words") is None
