"""What an arm took: tokens, times, throughput, shares, cost. Pure; read from finished trials and their decision records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from switchyard.evals.folder import Finished
from switchyard.evals.stats import wilson_interval

Json = dict[str, Any]


def measure_arm(trials: Sequence[Finished], weights: Mapping[str, float]) -> Json:
    """One arm in numbers.

    Args:
        trials: of this arm.
        weights: what a second of a pool's engine costs, like the number of its nodes; 1 where a pool is not named.
    """
    decisions = [d for t in trials for d in t.decisions]
    scored = [t for t in trials if t.state != "unscored"]
    passed = sum(t.state == "pass" for t in scored)
    single = len({t.case for t in trials}) == len(trials)
    interval = wilson_interval(passed, len(scored)) if scored and single else None
    pools = Counter(str(d.get("pool")) for d in decisions if d.get("pool"))
    busy_s = _covered_s([(t.began_s, t.began_s + t.wall_s) for t in trials])
    output = _sum_tokens(decisions, "output")
    return {
        "cases": len({t.case for t in trials}),
        "trials": len(trials),
        "states": dict(Counter(t.state for t in trials)),
        "pass_rate": passed / len(scored) if scored else None,
        "pass_interval": [interval.low, interval.high] if interval else None,
        "score": sum(t.score for t in scored) / len(scored) if scored else None,
        "requests": sum(pools.values()),
        "shares": {pool: count / sum(pools.values()) for pool, count in sorted(pools.items())},
        "tokens": {kind: _sum_tokens(decisions, kind) for kind in ("input", "output", "cached")},
        "trial_s": _quantiles([t.wall_s for t in trials]),
        "first_token_ms": _quantiles(_times(decisions, "first_token")),
        "request_ms": _quantiles(_times(decisions, "total")),
        "busy_s": busy_s,
        "output_tokens_per_s": output / busy_s if output is not None and busy_s else None,
        "requests_per_s": sum(pools.values()) / busy_s if busy_s else None,
        "engine_s": sum(_engine_s(d) * weights.get(str(d.get("pool")), 1.0) for d in decisions),
    }


def _engine_s(decision: Mapping[str, Any]) -> float:
    """How long a request kept a place on an engine: all of its time but deciding and queueing."""
    ms = decision.get("ms") or {}
    if not decision.get("pool") or ms.get("total") is None or ms.get("queue") is None:
        return 0.0
    return max(0.0, float(ms["total"]) - float(ms["queue"]) - float(ms.get("decide") or 0.0)) / 1000


def _times(decisions: Iterable[Mapping[str, Any]], name: str) -> list[float]:
    return [float(d["ms"][name]) for d in decisions if (d.get("ms") or {}).get(name) is not None]


def _sum_tokens(decisions: Iterable[Mapping[str, Any]], kind: str) -> int | None:
    """Tokens that were told; None when no engine told any."""
    told = [d["tokens"][kind] for d in decisions if (d.get("tokens") or {}).get(kind) is not None]
    return sum(told) if told else None


def _quantiles(values: Sequence[float]) -> Json | None:
    """Median and 95th percentile, by the nearest rank."""
    if not values:
        return None
    ordered = sorted(values)
    return {name: ordered[min(len(ordered) - 1, int(share * len(ordered)))] for name, share in (("p50", 0.5), ("p95", 0.95))}


def _covered_s(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of time spans: what an arm took, without the gap before it was resumed."""
    covered, end = 0.0, float("-inf")
    for begin, until in sorted(spans):
        covered += max(0.0, until - max(begin, end))
        end = max(end, until)
    return covered
