"""What bench.py found, as tables for people and as data."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from arms import Arm
from measured import DIRECT, METRICS, ROWS, Result, Row, judge


@dataclass
class Report:
    arms: list[Arm]
    gateways: list[str]
    metrics: list[str]
    rate: int
    rounds: list[dict[str, dict[str, Result]]] = field(default_factory=list)  # round, arm, metric

    def judged(self, arm: str, metric: str) -> tuple[list[str], list[str]]:
        """Faults and notes over all rounds, each once."""
        faults: dict[str, None] = {}
        notes: dict[str, None] = {}
        for number, results in enumerate(self.rounds, 1):
            if metric in results.get(arm, {}):
                rate = int(self.rate * METRICS[metric].open_loop)
                bad, known = judge(metric, METRICS[metric], rate, results[arm][metric], arm == DIRECT)
                faults |= {f"round {number}: {'; '.join(bad)}": None} if bad else {}
                notes |= {f"round {number}: {n}": None for n in known}
        return list(faults), list(notes)

    def values(self, row: Row, arm: str) -> dict[int, float]:
        """By round; empty when a fault makes the row invalid."""
        if (arm == DIRECT and not row.for_direct) or self.judged(arm, row.metric)[0]:
            return {}
        found: dict[int, float] = {}
        for number, results in enumerate(self.rounds):
            value = row.value(results.get(arm, {}).get(row.metric, {}))
            if value is not None and row.added and arm != DIRECT:
                base = row.value(results.get(DIRECT, {}).get(row.metric, {}))
                value = None if base is None else value - base
            if value is not None:
                found[number] = value
        return found

    def ratio(self, row: Row, gateway: str, other: str) -> float | None:
        """How many times as good the gateway is: the median over the rounds."""
        mine, theirs = self.values(row, gateway), self.values(row, other)
        if row.added and other == DIRECT:
            return None
        least = 10.0 if row.added else 0.0  # smaller added times are noise
        pairs = [(mine[n], theirs[n]) for n in mine if n in theirs and mine[n] > least and theirs[n] > least]
        if not pairs or len(pairs) < len(mine):
            return None
        return statistics.median(m / t if row.more_is_better else t / m for m, t in pairs)

    def cell(self, row: Row, arm: str) -> str:
        if arm == DIRECT and not row.for_direct:
            return ""
        faults, notes = self.judged(arm, row.metric)
        if faults:
            return "over" if all("over capacity" in f for f in faults) else "INVALID"
        values = list(self.values(row, arm).values())
        if not values:
            return "-"
        middle = statistics.median(values)
        spread = f" ±{(max(values) - min(values)) / 2 / abs(middle):.0%}" if len(values) > 1 and middle else ""
        base = "=" if row.added and arm == DIRECT else ""
        return f"{base}{number(middle)}{spread}{'*' if notes else ''}"

    def rows(self) -> list[Row]:
        return [r for r in ROWS if r.metric in self.metrics]

    def text(self) -> str:
        names = [a.name for a in self.arms]
        out = [
            f"Medians of {len(self.rounds)} rounds, ± half the range. `=`: the base that is subtracted; `*`: see the notes.",
            "",
        ]
        out += table(["", *names], [[r.label, *(self.cell(r, n) for n in names)] for r in self.rows()])
        for gateway in self.gateways:
            others = [n for n in names if n != gateway]
            if not any(self.values(r, gateway) for r in self.rows()):
                continue
            out += ["", f"{gateway} compared: how many times as good (above 1: {gateway} is better)", ""]
            lines = [[r.label, *(number(x) if (x := self.ratio(r, gateway, n)) else "-" for n in others)] for r in self.rows()]
            out += table(["", *others], [line for line in lines if set(line[1:]) != {"-"}])
        remarks: dict[str, list[str]] = {}  # text: metrics
        for name in names:
            for metric in self.metrics:
                faults, notes = self.judged(name, metric)
                for remark in [f"does not count, {f}" for f in faults] + notes:
                    remarks.setdefault(f"{name}: {remark}", []).append(metric)
        if remarks:
            out += ["", "Notes", "", *(f"- {text} ({', '.join(metrics)})" for text, metrics in remarks.items())]
        return "\n".join(out)

    def data(self) -> dict[str, Any]:
        summary = {}
        for row in self.rows():
            line: dict[str, Any] = {"metric": row.metric, "more_is_better": row.more_is_better, "added_over_direct": row.added}
            line["arms"] = {}
            for arm in self.arms:
                values = list(self.values(row, arm.name).values())
                stats = {"median": statistics.median(values), "min": min(values), "max": max(values)} if values else {}
                line["arms"][arm.name] = stats | {"faults": self.judged(arm.name, row.metric)[0]}
            line["times_as_good"] = {
                g: {a.name: self.ratio(row, g, a.name) for a in self.arms if a.name != g} for g in self.gateways
            }
            summary[row.label] = line
        arms = {a.name: {"version": a.version, "command": a.shown} for a in self.arms}
        return {"arms": arms, "summary": summary, "rounds": self.rounds}


def number(x: float) -> str:
    digits = next((d for d, least in enumerate((100, 10, 0.1)) if abs(x) >= least), 3)
    return f"{x:.{digits}f}"


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(line[i]) for line in [head, *lines]) for i in range(len(head))]

    def render(line: Sequence[str]) -> str:
        return (
            "| "
            + " | ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True)))
            + " |"
        )

    return [render(head), "|" + "|".join("-" * (w + 2) for w in widths) + "|", *map(render, lines)]
