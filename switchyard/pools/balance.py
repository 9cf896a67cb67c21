"""Which of several replicas: five ways, each a pure function over what they look like now."""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b
from random import Random
from typing import Protocol, TypeVar

BOUND = 1.25
"""A replica takes new conversations up to this factor over the mean load. They have nothing to lose elsewhere ..."""
STAY = 1.5
"""... and those that have their cache there up to this one: moving costs a prefill of all that was said ..."""
SLACK = 4
"""... or up to this many requests: below that a warm cache is worth more than an even spread."""


class Load(Protocol):
    """A replica as balancing sees it: what the engine has to do, whoever asked for it."""

    label: str
    weight: float

    @property
    def busy(self) -> float:
        """Requests on it."""

    @property
    def busy_tokens(self) -> float:
        """Estimated tokens of those."""

    @property
    def work(self) -> float:
        """Estimated tokens of all requests of late, older ones faded: how much lives there, at work or in a pause."""


R = TypeVar("R", bound=Load)


def round_robin(replicas: Sequence[R], tick: int) -> R:
    """In turn; with unequal weights, by a sequence that fills the shares evenly.

    Args:
        replicas: at least one.
        tick: number of this choice.
    """
    if all(r.weight == replicas[0].weight for r in replicas):
        return replicas[tick % len(replicas)]
    golden = (math.sqrt(5) - 1) / 2  # multiples of it, modulo 1, are the most even sequence there is
    return _at(replicas, (tick * golden) % 1.0)


def pick_random(replicas: Sequence[R], random: Random) -> R:
    """By chance, in proportion to the weights."""
    return _at(replicas, random.random())


def p2c(replicas: Sequence[R], random: Random) -> R:
    """The less busy of two that are drawn by chance (Mitzenmacher 2001)."""
    if len(replicas) == 1:
        return replicas[0]
    first, second = random.sample(replicas, 2)
    return first if first.busy / first.weight <= second.busy / second.weight else second


def least_tokens(replicas: Sequence[R], random: Random) -> R:
    """The one with the fewest estimated tokens in flight for its weight; ties by requests, then by chance."""
    loads = [(r.busy_tokens / r.weight, r.busy / r.weight) for r in replicas]
    best = min(loads)
    equal = [r for r, load in zip(replicas, loads, strict=True) if load == best]
    return equal[0] if len(equal) == 1 else random.choice(equal)


def prefix(replicas: Sequence[R], key: str, mean_load: float, last: str | None = None, tokens: int = 0) -> R:
    """Where the key was last, unless that is too busy. A new key goes to the first in its own order that isn't.

    Rendezvous hashing (Thaler and Ravishankar 1998) with bounded load (Mirrokni, Thorup, Zadimoghaddam 2018): when a
    replica goes, only its keys move, and gateways that see an even load find the same home without asking each other.

    Args:
        replicas: at least one.
        key: session, or hash of the prompt's beginning.
        mean_load: requests per unit of weight, over the whole pool, this one included.
        last: label of the replica where the key was last; None for a new key.
        tokens: estimated tokens of the request.
    """
    for replica in replicas:
        if replica.label == last and replica.busy + 1 <= max(SLACK, math.ceil(STAY * mean_load * replica.weight)):
            return replica
    ordered = rendezvous_order(replicas, key)
    fitting = [r for r in ordered if r.busy + 1 <= math.ceil(BOUND * mean_load * r.weight)]
    if not fitting:
        return min(ordered, key=lambda r: r.busy / r.weight)
    mean_work = (sum(r.work for r in replicas) + tokens) / sum(r.weight for r in replicas)
    for replica in fitting:
        if replica.work + tokens <= BOUND * mean_work * replica.weight:
            return replica
    return min(fitting, key=lambda r: r.work / r.weight)


def rendezvous_order(replicas: Sequence[R], key: str) -> list[R]:
    """All replicas in the key's own order, heavier ones more often in front (weighted as in Schindelhauer 2005)."""
    return sorted(replicas, key=lambda r: _rendezvous_score(key, r), reverse=True)


def _rendezvous_score(key: str, replica: Load) -> float:
    digest = blake2b(f"{key}\0{replica.label}".encode(errors="replace"), digest_size=8).digest()
    uniform = (int.from_bytes(digest, "big") + 1) / (2**64 + 2)
    return replica.weight / -math.log(uniform)


def _at(replicas: Sequence[R], point: float) -> R:
    """The replica at a point (0..1) of the line of weights."""
    left = point * sum(r.weight for r in replicas)
    for replica in replicas:
        left -= replica.weight
        if left < 0:
            return replica
    return replicas[-1]


class Balancer:
    """A pool's way to choose, with the little state that some of them need.

    Args:
        balance: one of the policy's words.
        random: source of chance.
    """

    def __init__(self, balance: str, random: Random) -> None:
        self._balance = balance
        self._random = random
        self._tick = random.randrange(1024)  # several gateways don't start at the same replica

    def choose(self, replicas: Sequence[R], key: str, mean_load: float, last: str | None = None, tokens: int = 0) -> R:
        """Pick one of at least one replica; all but the first argument matter to `prefix` alone."""
        if len(replicas) == 1:
            return replicas[0]
        match self._balance:
            case "prefix":
                return prefix(replicas, key, mean_load, last, tokens)
            case "least_tokens":
                return least_tokens(replicas, self._random)
            case "p2c":
                return p2c(replicas, self._random)
            case "round_robin":
                self._tick += 1
                return round_robin(replicas, self._tick)
            case _:
                return pick_random(replicas, self._random)
