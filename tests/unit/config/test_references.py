"""Names across the blocks of a policy: each that is used must exist, none may mean two things."""

import pytest

from switchyard.config.references import nearest

from ..build import MINIMAL, problems_of

# where a pool can be named: route text with a hole, and the key
PLACES = [
    ("use: {}", "use"),
    ("otherwise: {}", "otherwise"),
    ("{{rules: [{{when: {{tools: 1}}, use: {}}}], otherwise: big}}", "rules[0].use"),
    ("{{rules: [{{when: {{tools: 1}}, use: big}}, {{when: {{images: true}}, use: {}}}], otherwise: big}}", "rules[1].use"),
    ("{{classify: [{{type: embedded}}, {{type: model, pool: {}}}], otherwise: big}}", "classify[1].pool"),
    ("{{choose: [{{p_at_least: 0.5, use: {}}}, {{use: big}}]}}", "choose[0].use"),
    ("{{choose: [{{p_at_least: 0.5, use: small}}, {{use: {}}}]}}", "choose[1].use"),
    ("{{otherwise: big, share: {{pool: {}, at_most: 0.5}}}}", "share.pool"),
]


@pytest.mark.parametrize(("route", "key"), PLACES)
def test_an_unknown_pool_is_found_wherever_a_pool_can_be_named(route, key):
    def text(pool: str) -> str:
        return MINIMAL + f"routes:\n  auto:\n    {route.format(pool)}\n"

    assert problems_of(text("small")) == []
    (problem,) = problems_of(text("smal"))
    assert (problem.line, problem.key) == (11, f"routes.auto.{key}")
    assert (problem.message, problem.hint) == ("there is no pool smal", "did you mean small?")
    (problem,) = problems_of(text("xyz"))
    assert problem.hint == "known: small, big"


def test_a_route_may_not_have_the_name_of_a_pool():
    (problem,) = problems_of(MINIMAL + "routes:\n  big: {use: small}\n")
    assert (problem.line, problem.key) == (10, "routes.big")
    assert problem.message == "pool big has this name already"


# routes, key of the problem, who has the name
CLASHES = [
    ("{a: {use: big, aliases: [small]}}", "routes.a.aliases[0]", "pool small"),
    ("{a: {use: big, aliases: [a]}}", "routes.a.aliases[0]", "route a"),
    ("{a: {use: big, aliases: [x, b]}, b: {use: big}}", "routes.a.aliases[1]", "route b"),
    ("{a: {use: big, aliases: [x, x]}}", "routes.a.aliases[1]", "an alias of route a"),
    ("{a: {use: big, aliases: [x]}, b: {use: big, aliases: [w, x]}}", "routes.b.aliases[1]", "an alias of route a"),
    ("{a: {use: big, aliases: [gpt-*]}, b: {use: big, aliases: [gpt-*]}}", "routes.b.aliases[0]", "an alias of route a"),
]


@pytest.mark.parametrize(("routes", "key", "owner"), CLASHES)
def test_an_alias_that_is_taken_is_refused(routes, key, owner):
    (problem,) = problems_of(MINIMAL + f"routes: {routes}\n")
    assert (problem.line, problem.key, problem.message) == (9, key, f"{owner} has this name already")


# two entries that are the same engine, or have the same label
TWICE = [
    ("http://h:1", "http://h:1"),
    ("http://h:1", "{url: http://h:1, name: other}"),
    ("{url: http://h:1, name: one}", "{url: http://h:2, name: one}"),
    ("http://h:1", "http://h:1/"),
    ("http://h", "http://h:80"),
    ("http://h:1", "{url: http://h:2, name: 'h:1'}"),
]


@pytest.mark.parametrize(("first", "second"), TWICE)
def test_an_engine_listed_twice_is_refused(first, second):
    text = MINIMAL.replace("replicas: [http://127.0.0.1:8001]", f"replicas:\n      - {first}\n      - {second}")
    (problem,) = problems_of(text)
    assert (problem.line, problem.key) == (7, "pools.small.replicas[1]")
    assert "listed twice" in problem.message


def test_two_pools_may_share_an_engine():  # two models of one process, or the same model under two sets of limits
    assert problems_of(MINIMAL.replace("8002", "8001")) == []


@pytest.mark.parametrize(
    ("name", "known", "hint"),
    [
        ("qwne", ["qwen", "minicpm"], "did you mean qwen?"),
        ("xyz", ["qwen", "minicpm"], "known: qwen, minicpm"),
        ("xyz", [], ""),
    ],
)
def test_nearest(name, known, hint):
    assert nearest(name, known) == hint
