"""What came of simulated requests: counted and summed up by pool. Pure."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

QUANTILES = (0.5, 0.9, 0.99)


@dataclass(slots=True)
class Outcome:
    """One request. Times are seconds from the beginning; 0 where it never came so far.

    Attributes:
        pool: that answered; empty when none did.
        error: code of what went wrong; empty when nothing did.
        escalated: a larger pool took over from the answer of a smaller one.
        unknown: the log couldn't tell how the policy decides; it went where it went then.
        guessed: how long its answer is, the log doesn't say.
    """

    arrived_s: float
    answer_tokens: int
    admitted_s: float = 0.0
    first_token_s: float = 0.0
    ended_s: float = 0.0
    pool: str = ""
    replica: str = ""
    error: str = ""
    escalated: bool = False
    unknown: bool = False
    guessed: bool = False


@dataclass
class EngineUse:
    """What one engine did between two moments.

    Attributes:
        busy_s: seconds in which it worked.
        asked_tokens: prompt tokens that it was asked to read.
        hit_tokens: of them, found in its prefix cache.
    """

    replica: str
    busy_s: float = 0.0
    asked_tokens: int = 0
    hit_tokens: int = 0


@dataclass
class Results:
    """All that happened in a simulation.

    Attributes:
        outcomes: of the requests that ended, however they ended.
        running: requests that had not ended at the end.
        use: of the engines, by pool; the whole time.
        places: requests that the engines of a pool work on at once, by pool.
    """

    span_s: float
    outcomes: list[Outcome]
    running: int
    use: dict[str, list[EngineUse]]
    places: dict[str, int]
    notes: list[str] = field(default_factory=list)


def report(results: Results, warm_up_s: float = 0.0) -> dict[str, Any]:
    """Sum up what ended after the warm-up."""
    counted = [o for o in results.outcomes if o.ended_s >= warm_up_s]
    span_s = results.span_s - warm_up_s
    good = [o for o in counted if not o.error]
    errors = Counter(o.error for o in counted if o.error)
    pools = [_pool(name, results, [o for o in good if o.pool == name], len(good), span_s) for name in results.use]
    return {
        "span_s": round(span_s, 3),
        "requests": len(counted),
        "answered": len(good),
        "requests_s": _rate(len(good), span_s),
        "answer_tokens_s": _rate(sum(o.answer_tokens for o in good), span_s),
        "errors": dict(errors),
        "still_running": results.running,
        "escalated": sum(o.escalated for o in good),
        "not_decided_anew": sum(o.unknown for o in counted),
        "answers_of_guessed_length": sum(o.guessed for o in counted),
        **_times(good),
        "pools": pools,
        "notes": results.notes,
    }


def _pool(name: str, results: Results, outcomes: Sequence[Outcome], answered: int, span_s: float) -> dict[str, Any]:
    use = results.use[name]
    asked = sum(u.asked_tokens for u in use)
    waited = [o.admitted_s - o.arrived_s for o in outcomes]
    inside = [o.ended_s - o.admitted_s for o in outcomes]
    return {
        "pool": name,
        "requests": len(outcomes),
        "share": round(len(outcomes) / answered, 4) if answered else None,
        "requests_s": _rate(len(outcomes), span_s),
        "answer_tokens_s": _rate(sum(o.answer_tokens for o in outcomes), span_s),
        **_times(outcomes),
        "queued": {"mean": _rate(sum(waited), span_s), "longest": longest_queue(outcomes)},
        "running": {"mean": _rate(sum(inside), span_s), "places": results.places[name]},
        "utilisation": {u.replica: _rate(u.busy_s, results.span_s) for u in use},
        "cached_share": round(sum(u.hit_tokens for u in use) / asked, 4) if asked else None,
    }


def _times(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    longer = [o for o in outcomes if o.answer_tokens > 1]
    return {
        "queue_s": quantiles([o.admitted_s - o.arrived_s for o in outcomes]),
        "first_token_s": quantiles([o.first_token_s - o.arrived_s for o in outcomes]),
        "between_tokens_ms": quantiles([1000 * (o.ended_s - o.first_token_s) / (o.answer_tokens - 1) for o in longer]),
        "total_s": quantiles([o.ended_s - o.arrived_s for o in outcomes]),
    }


def longest_queue(outcomes: Sequence[Outcome]) -> int:
    """The most that ever waited for a place at the same time."""
    moments = [(o.arrived_s, 1) for o in outcomes if o.admitted_s > o.arrived_s]
    moments += [(o.admitted_s, -1) for o in outcomes if o.admitted_s > o.arrived_s]
    return max(itertools.accumulate(change for _, change in sorted(moments)), default=0)


def quantiles(values: Sequence[float]) -> dict[str, float | None]:
    """p50, p90 and p99 by nearest rank; None without values."""
    ordered = sorted(values)
    return {
        f"p{100 * q:.0f}": round(ordered[max(0, math.ceil(q * len(ordered)) - 1)], 4) if ordered else None for q in QUANTILES
    }


def _rate(amount: float, span_s: float) -> float:
    return round(amount / span_s, 4) if span_s > 0 else 0.0
