"""The share-quality curve as SVG, and as a page of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from switchyard.calibration.curve import Curve
from switchyard.calibration.propose import Step

WIDE, HIGH = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 58, 18, 18, 46

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 720px; margin: 2rem auto; padding: 0 1rem }}
body {{ color: #1c2733; background: #fff }} svg {{ width: 100%; height: auto }}
pre {{ white-space: pre-wrap; background: #f3f5f7; padding: 1rem; border-radius: 6px; font-size: 13px }}
@media (prefers-color-scheme: dark) {{ body {{ color: #dfe6ec; background: #14191f }} pre {{ background: #1d252d }} }}
</style></head><body><h1>{title}</h1>{chart}<pre>{text}</pre></body></html>
"""


def as_page(title: str, curve: Curve, step: Step | None, lines: Iterable[str]) -> str:
    """A self-contained HTML page: the chart, and the report's lines."""
    return _PAGE.format(title=escape(title), chart=as_svg(curve, step), text=escape("\n".join(lines)))


def as_svg(curve: Curve, step: Step | None) -> str:
    """The curve with its 90 % band, the line of chance, and the proposed threshold."""
    ends = [p.interval.low for p in curve.points] + [p.interval.high for p in curve.points]
    low, high = max(0.0, min(ends) - 0.02), min(1.0, max(ends) + 0.02)

    def at(share: float, quality: float) -> tuple[float, float]:
        x = LEFT + share * (WIDE - LEFT - RIGHT)
        return x, TOP + (high - quality) / ((high - low) or 1) * (HIGH - TOP - BOTTOM)

    band = [at(p.share, p.interval.high) for p in curve.points] + [at(p.share, p.interval.low) for p in curve.points[::-1]]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {HIGH}" role="img" font-family="system-ui, sans-serif" '
        'font-size="13" fill="#66717d" aria-label="share of good answers against the share of the big pool">'
    ]
    for tick in _ticks(low, high):
        x, y = at(0, tick)
        parts.append(f'<line x1="{x:.1f}" x2="{WIDE - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#8894a055"/>')
        parts.append(f'<text x="{x - 8:.1f}" y="{y + 4:.1f}" text-anchor="end">{tick * 100:g} %</text>')
    for share in (0, 0.25, 0.5, 0.75, 1):
        parts.append(f'<text x="{at(share, low)[0]:.1f}" y="{HIGH - BOTTOM + 20}" text-anchor="middle">{share:.0%}</text>')
    parts.append(f'<text x="{(LEFT + WIDE) / 2:.0f}" y="{HIGH - 6}" text-anchor="middle">share of the big pool</text>')
    parts.append(f'<polygon points="{_points(band)}" fill="#2b7bba33"/>')
    chance = [at(0, curve.small), at(1, curve.big)]
    parts.append(f'<polyline points="{_points(chance)}" fill="none" stroke="#8894a0" stroke-dasharray="4 4"/>')
    x, y = at(0.8, curve.small + 0.8 * (curve.big - curve.small))
    parts.append(f'<text x="{x:.1f}" y="{y + 20:.1f}">chance</text>')
    line = [at(p.share, p.quality) for p in curve.points]
    parts.append(f'<polyline points="{_points(line)}" fill="none" stroke="#2b7bba" stroke-width="2.5"/>')
    if step is not None:
        x, y = at(step.share, step.quality)
        anchor, side = ("end", -10) if step.share > 0.6 else ("start", 10)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5.5" fill="#d1602a"/>')
        parts.append(
            f'<text x="{x + side:.1f}" y="{y + 20:.1f}" text-anchor="{anchor}" fill="#d1602a">'
            f"p_at_least {step.p_at_least:g}</text>"
        )
    return "".join(parts) + "</svg>"


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _ticks(low: float, high: float) -> list[float]:
    """Round qualities inside a range, six of them at most."""
    step = next(s for s in (0.01, 0.02, 0.05, 0.1, 0.2) if (high - low) / s <= 6)
    first = int(low / step) + 1
    return [round(n * step, 4) for n in range(first, int(high / step + 1e-9) + 1)]
