"""What bench.py measures: the metrics, the lines of its tables, and when a result does not count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import bodies

Result = dict[str, Any]
DIRECT = "direct"
IDLE_LIMIT_S = 120.0  # for opening all idle streams


@dataclass(frozen=True)
class Metric:
    body: str
    connections: int
    seconds: float = 2.5
    warm_up: float = 0.5
    open_loop: float = 0.0  # share of --rate; 0: closed loop
    realtime: bool = False  # run everything above the machine's other processes
    fresh: bool = False  # in a process of its own


METRICS = {
    "sat1k": Metric("1k", 32),
    "sat50k": Metric("50k", 32),
    "rate2k": Metric("2k", 8, open_loop=1, realtime=True),
    "rate50k": Metric("50k", 8, open_loop=1, realtime=True),
    "rate500k": Metric("500k", 8, open_loop=1, realtime=True),
    "ttft": Metric("stream-one", 8, open_loop=0.5, realtime=True),
    "flood256": Metric("stream-flood", 256, warm_up=1),
    "paced256": Metric("stream-paced", 256, warm_up=1, realtime=True),
    "idle1000": Metric("stream-idle", 1000, seconds=IDLE_LIMIT_S, warm_up=0, fresh=True),
}


@dataclass(frozen=True)
class Row:
    """One line of the tables."""

    metric: str
    label: str
    value: Callable[[Result], float | None]
    more_is_better: bool = False
    added: bool = False  # what is above the direct arm's value of the same round
    for_direct: bool = True


def field_of(name: str, index: int | None = None) -> Callable[[Result], float | None]:
    def get(result: Result) -> float | None:
        value = result.get(name)
        value = value if index is None or value is None else value[index]
        return None if value is None or value < 0 else float(value)

    return get


def latency_rows(metric: str, what: str, name: str) -> list[Row]:
    return [Row(metric, f"added {what} {p}, µs", field_of(name, i), added=True) for i, p in enumerate(("p50", "p99"))]


ROWS = [
    Row("sat1k", "requests/s on one core, 1 KB", field_of("rps"), more_is_better=True),
    Row("sat1k", "CPU µs per request, 1 KB", field_of("us_per_request"), for_direct=False),
    Row("sat50k", "requests/s on one core, 50 KB", field_of("rps"), more_is_better=True),
    Row("sat50k", "CPU µs per request, 50 KB", field_of("us_per_request"), for_direct=False),
    *latency_rows("rate2k", "latency 2 KB", "latency_us"),
    *latency_rows("rate50k", "latency 50 KB", "latency_us"),
    *latency_rows("rate500k", "latency 500 KB", "latency_us"),
    *latency_rows("ttft", "time to first chunk", "first_byte_us"),
    Row("flood256", "chunks/s, 256 flooding streams", field_of("chunks_s"), more_is_better=True),
    Row("flood256", "CPU µs per chunk, flooding", field_of("us_per_chunk"), for_direct=False),
    Row("paced256", "chunk delay p50, 256 streams, µs", field_of("chunk_delay_us", 0)),
    Row("paced256", "chunk delay p99, 256 streams, µs", field_of("chunk_delay_us", 1)),
    Row("idle1000", "memory at 1000 idle streams, MB", field_of("memory_mb"), for_direct=False),
]


def judge(name: str, metric: Metric, rate: int, r: Result, direct: bool) -> tuple[list[str], list[str]]:
    """Why a result does not count, and what a reader of a result that counts should know."""
    faults = [
        f"{r[k]} {text}" for k, text in (("errors", "errors"), ("non200", "non-200"), ("bad", "broken streams")) if r.get(k)
    ]
    notes: list[str] = []
    if faults and r.get("problem"):
        faults.append(f"first: {r['problem']}")
    if "error" in r:
        return [r["error"]], notes
    if metric.open_loop and not faults and (r["late"] or r["rps"] < 0.95 * rate):
        faults.append(f"over capacity: {r['rps']:.0f} of {rate} requests/s answered")
    if name.startswith("sat") and not faults and not r["done"]:
        faults.append("nothing answered")
    if name.startswith("sat") and not direct and not faults and r.get("cpu", 1) < 0.9:
        notes.append(f"used only {r['cpu']:.0%} of its core")
    if name == "flood256" and not faults and not r["chunks_s"]:
        faults.append("no chunks")
    if name == "paced256" and not faults:
        _, stream = bodies.SHAPES[metric.body]
        assert stream
        share = r["chunks_s"] * stream[1] / 1e6 / metric.connections
        if share > 1.1:
            faults.append("the pace did not reach the engine (is `seed` passed on?)")
        elif share == 0:
            faults.append("no chunks")
        elif share < 0.9:
            notes.append(f"behind: only {share:.0%} of the chunks came in time")
    if name == "idle1000" and r["open"] < metric.connections:
        faults.append(f"only {r['open']} of {metric.connections} streams open")
    return faults, notes
