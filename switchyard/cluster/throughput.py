"""The algebra of routed throughput; docs/explanation/throughput.md derives it.

A pool of n saturated replicas that do r requests a second each serves the share f of a stream of X requests a second as
long as f X <= n r. So the stream is limited by the pool that is full first:

  X = min over pools of n r / f
"""

from __future__ import annotations

from collections.abc import Mapping


def routed_requests_s(shares: Mapping[str, float], replicas: Mapping[str, int], rates: Mapping[str, float]) -> float:
    """Requests a second of all pools together, at saturation.

    Args:
        shares: of the requests, by pool; they add up to 1.
        replicas: that run.
        rates: requests a second of one saturated replica.
    """
    return min((replicas[pool] * rates[pool] / share for pool, share in shares.items() if share > 0), default=0.0)


def limiting_pool(shares: Mapping[str, float], replicas: Mapping[str, int], rates: Mapping[str, float]) -> str:
    """The pool that is full first."""
    return min((p for p in shares if shares[p] > 0), key=lambda p: replicas[p] * rates[p] / shares[p])


def against_all_big(big_share: float, big_replicas: int, all_big_replicas: int) -> float:
    """How many times as many requests as with the big model alone on all nodes, if no other pool is full before.

    Both sides have the factor r of the big pool, so it drops out: n / (N f), which is 3 / (4 f) for three of four.
    """
    return big_replicas / (all_big_replicas * big_share)


def rate_needed(share: float, replicas: int, big_share: float, big_replicas: int) -> float:
    """What one replica of another pool must do for the big one to be full first, in units of a big replica's rate."""
    return share / big_share * big_replicas / replicas


def escalated(shares: Mapping[str, float], big: str, part: float) -> dict[str, float]:
    """The shares when `part` of what the other pools were given is done by the big one, too.

    They add up to more than 1: an escalated request costs both pools.
    """
    others = sum(share for pool, share in shares.items() if pool != big)
    return {**shares, big: shares[big] + part * others}
