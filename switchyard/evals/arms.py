"""Arms: the same cases asked in different ways. Which model name an arm asks for, and what the random arm draws. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from switchyard.config.policy import Policy

BIG, SMALL, ROUTED, AGAIN, RANDOM = "big", "small", "routed", "big-again", "random"
ARMS: Mapping[str, str] = {
    BIG: "everything on the big pool: the baseline",
    SMALL: "everything on the small pool",
    ROUTED: "the route decides: the candidate",
    AGAIN: "the big pool once more: how much two equal runs differ, the noise floor",
    RANDOM: "a coin decides, at the share that the routed arm came to: the bar for a classifier",
}


class BadArms(Exception):
    """Arms or names that don't fit; the message says what to do."""


def parse_arms(text: str) -> list[str]:
    """The arms that a user names, in the order in which they run.

    Raises:
        BadArms: there is no such arm, or one lacks another that it builds on.
    """
    named = [part.strip() for part in text.split(",") if part.strip()]
    for name in named:
        if name not in ARMS:
            raise BadArms(f"there is no arm {name!r}; there are {', '.join(ARMS)}")
    if not named:
        raise BadArms(f"name at least one arm of {', '.join(ARMS)}")
    for later, earlier in ((RANDOM, ROUTED), (AGAIN, BIG)):
        if later in named and earlier not in named:
            raise BadArms(f"the arm {later} needs the arm {earlier} in the same run")
    return [name for name in ARMS if name in named]


@dataclass(frozen=True, slots=True)
class Names:
    """What the arms ask for: a route and two of its pools."""

    route: str
    big: str
    small: str


def find_names(
    cards: Mapping[str, Mapping[str, Any]], route: str | None = None, big: str | None = None, small: str | None = None
) -> Names:
    """Route, big and small pool: as the user says, else as the gateway's list of models has them.

    Args:
        cards: kind and pools of each name, pools from small to big.
        route: the route to evaluate.
        big: the baseline's pool.
        small: the other one.

    Raises:
        BadArms: they aren't there, or it isn't clear which are meant.
    """
    routes = [name for name, card in cards.items() if card["kind"] == "route" and len(card["pools"]) > 1]
    pools = [name for name, card in cards.items() if card["kind"] == "pool"]
    if route is None:
        if not routes:
            raise BadArms("no route of this gateway chooses between pools: there is nothing to evaluate")
        if len(routes) > 1 and "auto" not in routes:
            raise BadArms(f"several routes choose between pools: say --route with one of {', '.join(routes)}")
        route = "auto" if "auto" in routes else routes[0]
    if route not in routes:
        raise BadArms(f"there is no route {route!r} that chooses between pools; there are {', '.join(routes) or 'none'}")
    used = cards[route]["pools"]
    if (big is None or small is None) and len(used) > 2:
        raise BadArms(f"the route {route} uses {len(used)} pools ({', '.join(used)}): say --big and --small")
    names = Names(route, big or used[-1], small or used[0])
    for pool in (names.big, names.small):
        if pool not in pools:
            raise BadArms(f"there is no pool {pool!r}; there are {', '.join(pools)}")
    if names.big == names.small:
        raise BadArms(f"big and small are both {names.big}")
    return names


def cards_of(policy: Policy) -> dict[str, dict[str, Any]]:
    """Kind and pools of each name in a policy, as `find_names` takes them."""
    routes = {name: {"kind": "route", "pools": list(route.pools)} for name, route in policy.routes.items()}
    return routes | {name: {"kind": "pool", "pools": [name]} for name in policy.pools}


def draw_big(shares: Sequence[tuple[str, float]], seed: int) -> frozenset[str]:
    """Which units the random arm sends to the big pool: as many as come nearest to the routed arm's share.

    Args:
        shares: of each unit (a trial of a case), the share of its requests that the big pool answered in the routed arm.
        seed: of the draw; the same run draws the same units, also after it was resumed.
    """
    count = round(sum(share for _, share in shares))
    return frozenset(Random(seed).sample(sorted(name for name, _ in shares), count))
