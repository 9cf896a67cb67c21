"""Checks across the blocks of a policy: each name that is used must exist, and none may mean two things.

Works on the plain data, so that these problems are reported together with those of the models.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from switchyard.config.problem import KeyPath

Finding = tuple[KeyPath, str, str]  # where, what, hint


def nearest(name: str, known: list[str]) -> str:
    """A hint that names the nearest known name, or all of them when none is near."""
    close = get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]}?"
    return f"known: {', '.join(known)}" if known else ""


def find_dangling(document: dict[str, Any]) -> Iterator[Finding]:
    """Yield every pool name that is used and not there, and every name given twice."""
    pools = [str(n) for n in _mapping(document.get("pools"))]
    routes = _mapping(document.get("routes"))
    for path, name in _used_pools(routes):
        if isinstance(name, str) and name not in pools:
            yield path, f"there is no pool {name}", nearest(name, pools)
    yield from _replica_repeats(_mapping(document.get("pools")))
    taken = {name: f"pool {name}" for name in pools}
    for route in routes:
        if route in taken:
            yield ("routes", route), f"{taken[route]} has this name already", "clients ask for both by name: rename one"
        taken[str(route)] = f"route {route}"
    for route, block in routes.items():
        for i, alias in enumerate(_sequence(_mapping(block).get("aliases"))):
            if isinstance(alias, str) and alias in taken:
                yield ("routes", route, "aliases", i), f"{taken[alias]} has this name already", "leave the alias out"
            elif isinstance(alias, str):
                taken[alias] = f"an alias of route {route}"


def _used_pools(routes: dict[Any, Any]) -> Iterator[tuple[KeyPath, Any]]:
    for route, block in routes.items():
        block = _mapping(block)
        at: KeyPath = ("routes", route)
        for key in ("use", "otherwise"):
            if key in block:
                yield (*at, key), block[key]
        for key, inner in (("rules", "use"), ("classify", "pool"), ("choose", "use")):
            for i, entry in enumerate(_sequence(block.get(key))):
                if inner in _mapping(entry):
                    yield (*at, key, i, inner), entry[inner]
        share = _mapping(block.get("share"))
        if "pool" in share:
            yield (*at, "share", "pool"), share["pool"]


def _replica_repeats(pools: dict[Any, Any]) -> Iterator[Finding]:
    for pool, block in pools.items():
        seen: set[str] = set()
        for i, entry in enumerate(_sequence(_mapping(block).get("replicas"))):
            url = entry if isinstance(entry, str) else _mapping(entry).get("url")
            name = _mapping(entry).get("name")
            place = _host_and_port(url) if isinstance(url, str) else None
            for word in {place, name if isinstance(name, str) else place} - {None}:
                if word in seen:
                    yield ("pools", pool, "replicas", i), f"{word} is listed twice", "one entry for each engine"
                    break
                seen.add(str(word))


def _host_and_port(url: str) -> str:
    """What a URL is told apart by, and called when it has no name: host and port."""
    place = url.removeprefix("http://").rstrip("/")
    return place if ":" in place.rpartition("]")[2] else f"{place}:80"


def _mapping(value: Any) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def _sequence(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
