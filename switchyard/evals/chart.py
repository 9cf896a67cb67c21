"""The page's two charts as inline SVG: differences with their intervals, and the share-quality curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

Json = Mapping[str, Any]
WIDE, HIGH = 520, 330
LEFT, RIGHT, TOP, BOTTOM = 52, 16, 16, 40


# ---- differences ----


def difference_chart(report: Json) -> str:
    """Each comparison as a point with its interval, and the margin as a line; empty when nothing was compared."""
    named = (
        ("routed - big", report["comparison"], "--tone"), ("big again - big", report["noise_floor"], "--chance"),
        ("small - big", report["small"], "--small"), ("routed - random", report["against_random"], "--chance"),
    )  # fmt: skip
    rows = [(name, c["difference_points"], c["interval_points"], tone) for name, c, tone in named if c]
    if advantage := report["advantage"]:
        rows.append(("routed - chance", advantage["difference_points"], advantage["interval_points"], "--big"))
    if not rows:
        return ""
    margin = -report["verdict"]["margin_points"]
    low = min([margin, *(ends[0] for _, _, ends, _ in rows)]) - 2
    high = max([2.0, *(ends[1] for _, _, ends, _ in rows)]) + 2
    label, step = 118, 44
    high_px = TOP + step * len(rows) + BOTTOM

    def x(points: float) -> float:
        return float(label + (points - low) / (high - low) * (WIDE - label - RIGHT))

    bottom = high_px - BOTTOM
    parts = [f'<svg viewBox="0 0 {WIDE} {high_px}" role="img" aria-label="differences of pass rates">']
    parts += [
        f'<line x1="{x(at):.1f}" x2="{x(at):.1f}" y1="{TOP}" y2="{bottom}" stroke="var(--line)"/>'
        f'<text x="{x(at):.1f}" y="{bottom + 18}" text-anchor="middle">{f"{at:+g}" if at else "0"}</text>'
        for at in _ticks(low, high)
    ]
    parts.append(f'<line x1="{x(0):.1f}" x2="{x(0):.1f}" y1="{TOP}" y2="{bottom}" stroke="var(--soft)"/>')
    parts.append(
        f'<line x1="{x(margin):.1f}" x2="{x(margin):.1f}" y1="{TOP}" y2="{bottom}" stroke="var(--bad)" stroke-width="1.5" '
        f'stroke-dasharray="5 4"/><text x="{x(margin):.1f}" y="{bottom + 34}" text-anchor="middle">margin</text>'
    )
    word = escape(report["verdict"]["word"])
    for i, (name, middle, (begin, end), tone) in enumerate(rows):
        y = TOP + step * i + step / 2
        colour = f'class="{word}" style="stroke:var({tone});fill:var({tone})"'
        parts.append(
            f'<text class="name" x="0" y="{y + 4:.1f}">{escape(name)}</text><g {colour}>'
            f'<line x1="{x(begin):.1f}" x2="{x(end):.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke-width="3"/>'
            f'<circle cx="{x(middle):.1f}" cy="{y:.1f}" r="5"/></g>'
        )
    return "".join(parts) + "</svg>"


# ---- the curve ----


def curve_chart(report: Json) -> str:
    """Pass rate against the share of the big pool: thresholds, chance, the best possible, and the arms as they ran."""
    curve, arms = report["curve"], report["arms"]
    shown = {name: (arm["big_share"], arm["pass_rate"]) for name, arm in arms.items() if arm["pass_rate"] is not None}
    line = [(p["share"], p["quality"]) for p in curve["points"]]
    qualities = [q for _, q in [*line, *map(tuple, curve["oracle"]), *shown.values()]]
    low, high = max(0.0, min(qualities) - 0.03), min(1.0, max(qualities) + 0.03)

    def at(point: Sequence[float]) -> str:
        x = LEFT + point[0] * (WIDE - LEFT - RIGHT)
        y = TOP + (high - point[1]) / (high - low or 1) * (HIGH - TOP - BOTTOM)
        return f"{x:.1f},{y:.1f}"

    parts = [f'<svg viewBox="0 0 {WIDE} {HIGH}" role="img" aria-label="pass rate against the share of the big pool">']
    for tick in _ticks(low * 100, high * 100):
        x, y = at((0, tick / 100)).split(",")
        parts.append(
            f'<line x1="{x}" x2="{WIDE - RIGHT}" y1="{y}" y2="{y}" stroke="var(--line)"/>'
            f'<text x="{LEFT - 8}" y="{float(y) + 4:.1f}" text-anchor="end">{tick:g} %</text>'
        )
    for share in (0, 0.25, 0.5, 0.75, 1):
        x = at((share, low)).split(",")[0]
        parts.append(f'<text x="{x}" y="{HIGH - BOTTOM + 18}" text-anchor="middle">{share:.0%}</text>')
    parts.append(f'<text x="{(LEFT + WIDE) / 2:.0f}" y="{HIGH - 4}" text-anchor="middle">share of the big pool</text>')
    parts.append(_line(map(at, curve["oracle"]), "--chance", "1"))
    if "small" in shown and "big" in shown:
        parts.append(_line(map(at, (shown["small"], shown["big"])), "--chance", "1.5", dashes="2 4"))
    parts.append(_line(map(at, line), "--big", "2.5"))
    tones = {"big": "--big", "small": "--small", "routed": "--tone", "big-again": "--chance", "random": "--chance"}
    # Both runs of big stand at the right edge: the lower one has its name under it.
    under = min((name for name in ("big-again", "big") if name in shown), key=lambda name: shown[name][1], default="")
    for name, point in sorted(shown.items(), key=lambda item: item[0] == "routed"):  # on top of what it may equal
        x, y = at(point).split(",")
        end = float(x) > WIDE * 0.7
        word = f' class="{escape(report["verdict"]["word"])}"' if name == "routed" else ""
        parts.append(
            f'<g{word}><circle cx="{x}" cy="{y}" r="5.5" style="fill:var({tones[name]})"/></g><text class="name" '
            f'x="{float(x) + (-10 if end else 10):.1f}" y="{float(y) + (18 if name == under else -8):.1f}" '
            f'text-anchor="{"end" if end else "start"}">{escape(name)}</text>'
        )
    return "".join(parts) + "</svg>"


def _line(points: Any, tone: str, width: str, dashes: str = "") -> str:
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<polyline points="{" ".join(points)}" fill="none" style="stroke:var({tone})" stroke-width="{width}"{dashed}/>'


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers inside a range, about six of them."""
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100) if (high - low) / s <= 7)
    first = int(low // step) + 1
    return [n * step for n in range(first, int(high // step) + 1)]
