"""Arms, the names they ask for, the random arm's draw."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.config.load import parse_policy
from switchyard.evals.arms import BadArms, Names, cards_of, draw_big, find_names, parse_arms

POOLS = {name: {"kind": "pool", "pools": [name]} for name in ("small", "middle", "big")}


def route(*pools: str) -> dict[str, object]:
    return {"kind": "route", "pools": list(pools)}


def test_arms_run_in_one_order() -> None:
    assert parse_arms("random, routed ,big") == ["big", "routed", "random"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("big,huge", "no arm 'huge'"),
        ("", "at least one"),
        ("big,random", "needs the arm routed"),
        ("big-again", "needs the arm big"),
    ],
)
def test_bad_arms(text: str, why: str) -> None:
    with pytest.raises(BadArms, match=why):
        parse_arms(text)


def test_an_alias_is_no_second_route() -> None:
    text = b"""\
version: 1
pools: {small: {model: s, replicas: [http://a:1]}, big: {model: b, replicas: [http://a:2]}}
routes: {work: {aliases: [gpt-4], choose: [{p_at_least: 0.5, use: small}, {use: big}], classify: [{type: embedded}]}}
"""
    assert find_names(cards_of(parse_policy(text))) == Names("work", "big", "small")


def test_names() -> None:
    cards = POOLS | {"auto": route("small", "big"), "only": route("big")}
    assert find_names(cards) == Names("auto", "big", "small")
    assert find_names(POOLS | {"work": route("small", "big")}) == Names("work", "big", "small")
    three = POOLS | {"auto": route("small", "middle", "big")}
    assert find_names(three, big="middle", small="small") == Names("auto", "middle", "small")


@pytest.mark.parametrize(
    ("cards", "given", "why"),
    [
        (POOLS, {}, "nothing to evaluate"),
        (POOLS | {"a": route("small", "big"), "b": route("small", "big")}, {}, "say --route with one of a, b"),
        (POOLS | {"auto": route("small", "big")}, {"route": "other"}, "no route 'other'"),
        (POOLS | {"auto": route("small", "middle", "big")}, {}, "say --big and --small"),
        (POOLS | {"auto": route("small", "big")}, {"big": "huge"}, "no pool 'huge'"),
        (POOLS | {"auto": route("small", "big")}, {"big": "small"}, "both small"),
    ],
)
def test_unclear_names(cards: dict[str, dict[str, object]], given: dict[str, str], why: str) -> None:
    with pytest.raises(BadArms, match=why):
        find_names(cards, **given)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=80), st.integers(0, 5))
def test_the_draw_has_the_routed_share(shares: list[float], seed: int) -> None:
    units = [(f"u{i}", share) for i, share in enumerate(shares)]
    drawn = draw_big(units, seed)
    assert abs(len(drawn) - sum(shares)) <= 0.5 + 1e-9
    assert drawn == draw_big(list(reversed(units)), seed), "the order in which trials ended must not matter"
