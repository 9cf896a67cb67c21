"""Adding up what a replay says: moves with examples, shares, and what the pools would have to do. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from switchyard.routing.recorded import Recorded, RecordedPool
from switchyard.routing.replay import STATES, State, Verdict

WINDOW_S = 300
"""Load is shown on the average and in the busiest of such windows."""


@dataclass(frozen=True, slots=True)
class Example:
    """A request by its id, with the reasons before and after."""

    id: str
    before: str
    after: str


@dataclass(slots=True)
class Group:
    """Requests with the same fate: how many, and some of them."""

    count: int = 0
    examples: list[Example] = field(default_factory=list)


@dataclass(slots=True)
class Work:
    """What a pool has to do in a span of time: measured, and still to be estimated from tokens."""

    before_ms: float = 0.0
    after_ms: float = 0.0
    moved_tokens: int = 0
    moved_without_tokens: int = 0


@dataclass(slots=True)
class Speed:
    """What the log shows about a pool's engines."""

    requests: int = 0
    ms: float = 0.0
    ms_with_tokens: float = 0.0
    tokens: int = 0


class Tally:
    """Adds up verdicts.

    Args:
        pools: of the new policy.
        most_examples: kept of each group.
    """

    def __init__(self, pools: Mapping[str, RecordedPool], most_examples: int = 5) -> None:
        self._pools = pools
        self._most_examples = most_examples
        self.states: Counter[State] = Counter()
        self.moves: defaultdict[tuple[str, str], Group] = defaultdict(Group)
        self.without: defaultdict[tuple[State, str], Group] = defaultdict(Group)
        self.before: Counter[str] = Counter()
        self.after: Counter[str] = Counter()
        self.by: dict[str, defaultdict[str, tuple[Counter[str], Counter[str]]]] = {
            name: defaultdict(lambda: (Counter(), Counter())) for name in ("request_class", "client")
        }
        self._windows: defaultdict[int, defaultdict[str, Work]] = defaultdict(lambda: defaultdict(Work))
        self._speeds: defaultdict[str, Speed] = defaultdict(Speed)
        self._first_s = float("inf")
        self._last_s = 0.0

    def add(self, record: Recorded, verdict: Verdict) -> None:
        """Count one request."""
        self.states[verdict.state] += 1
        example = Example(record.id, record.decision.reasons[0] if record.decision.reasons else "", verdict.why)
        if verdict.state == "moved":
            self._keep(self.moves[(verdict.before, verdict.after)], example)
        elif verdict.state != "same":
            self._keep(self.without[(verdict.state, verdict.group)], example)
        if verdict.after:  # shares are of the requests that can be compared
            self.before[verdict.before] += 1
            self.after[verdict.after] += 1
            for name, groups in self.by.items():
                before, after = groups[str(record.signals.get(name, "unknown"))]
                before[verdict.before] += 1
                after[verdict.after] += 1
        self._add_work(record, verdict)

    def _keep(self, group: Group, example: Example) -> None:
        group.count += 1
        if len(group.examples) < self._most_examples:
            group.examples.append(example)

    def _add_work(self, record: Recorded, verdict: Verdict) -> None:
        self._first_s, self._last_s = min(self._first_s, record.decided_s), max(self._last_s, record.ended_s)
        ms, tokens = record.service_ms, record.tokens.get("output")
        if ms is None or verdict.state == "undecided":
            return
        if record.outcome == "ok":
            speed = self._speeds[record.pool]
            speed.requests += 1
            speed.ms += ms
            if tokens:
                speed.ms_with_tokens += ms
                speed.tokens += tokens
        window = self._windows[int(record.decided_s // WINDOW_S)]
        window[verdict.before].before_ms += ms
        if verdict.state == "moved":
            work = window[verdict.after]
            work.moved_tokens += tokens or 0
            work.moved_without_tokens += not tokens
        elif verdict.state != "refused":  # what is unknown is taken to stay
            window[verdict.before].after_ms += ms

    @property
    def span_s(self) -> float:
        """From the first decision to the last end."""
        return max(0.0, self._last_s - self._first_s)

    def loads(self) -> list[dict[str, Any]]:
        """For each pool of the new policy: the share of its places that are taken, on the average and in the busiest window.

        Work is arrivals times mean time on a replica, over replicas times `limits.in_flight` (Little's law); a moved
        request takes as long as the log shows per output token for its new pool. None where nothing shows that.
        """
        found = []
        for name, pool in self._pools.items():
            works = [works[name] for works in self._windows.values() if name in works]
            found.append(
                {
                    "pool": name,
                    "replicas": len(pool.replicas),
                    "places": pool.places,
                    "before": self._busy([w.before_ms for w in works], pool.places),
                    "after": self._busy([self._estimated_ms(name, w) for w in works], pool.places),
                }
            )
        return found

    def _busy(self, works_ms: list[float | None], places: int) -> dict[str, float | None]:
        """Share of the places taken, for the work of each window."""
        known = [ms for ms in works_ms if ms is not None]
        if len(known) < len(works_ms):
            return {"mean": None, "busiest": None}
        span_s = max(self.span_s, 1.0)
        return {
            "mean": round(sum(known) / (1000 * span_s * places), 4),
            "busiest": round(max(known, default=0.0) / (1000 * min(span_s, WINDOW_S) * places), 4),
        }

    def _estimated_ms(self, pool: str, work: Work) -> float | None:
        """Time on replicas that a window's work takes under the new policy."""
        ms, speed = work.after_ms, self._speeds[pool]
        if work.moved_tokens:
            if not speed.tokens:
                return None
            ms += work.moved_tokens * speed.ms_with_tokens / speed.tokens
        if work.moved_without_tokens:
            if not speed.requests:
                return None
            ms += work.moved_without_tokens * speed.ms / speed.requests
        return ms

    def as_report(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        return {
            "requests": {"all": self.states.total(), **{state: self.states[state] for state in STATES}},
            "span_s": round(self.span_s, 3),
            "moves": [{"from": f, "to": t, **_shown(g)} for (f, t), g in _largest(self.moves)],
            **{
                state: [{"why": why, **_shown(g)} for (s, why), g in _largest(self.without) if s == state]
                for state in ("unknown", "refused", "undecided")
            },
            "shares": _shares(self.before, self.after),
            **{
                f"by_{name}": {key: _shares(*groups[key]) for key in sorted(groups, key=lambda k: -groups[k][0].total())}
                for name, groups in self.by.items()
            },
            "load": self.loads(),
        }  # fmt: skip


def _largest(groups: Mapping[tuple[Any, str], Group]) -> list[tuple[tuple[Any, str], Group]]:
    return sorted(groups.items(), key=lambda found: (-found[1].count, found[0]))


def _shown(group: Group) -> dict[str, Any]:
    return {"count": group.count, "examples": [{"id": e.id, "before": e.before, "after": e.after} for e in group.examples]}


def _shares(before: Counter[str], after: Counter[str]) -> list[dict[str, Any]]:
    total = before.total()
    return [
        {"pool": pool, "before": before[pool], "after": after[pool],
         "before_share": round(before[pool] / total, 4), "after_share": round(after[pool] / total, 4)}
        for pool in sorted({*before, *after}, key=lambda p: (-before[p], p))
    ]  # fmt: skip
