"""Draw the results of bench.py as an SVG: one row of bars for each metric, all arms in one run.

usage: plot.py RESULTS.json OUT.svg
"""

from __future__ import annotations

import html
import json
import sys
from pathlib import Path
from typing import Any

WIDTH, LEFT, BAR, GAP = 860, 250, 13, 16
COLOURS = {
    "direct": "#bbbbbb",
    "switchyard": "#c2410c",
    "nginx": "#15803d",
    "vllm-router": "#1d4ed8",
    "nemo-switchyard": "#7e22ce",
}


def draw(data: dict[str, Any]) -> str:
    """The picture; bars are relative to the longest of their metric, figures are written out."""
    arms = list(data["arms"])
    parts: list[str] = []
    y = 46
    for label, row in data["summary"].items():
        medians = {a: row["arms"][a].get("median") for a in arms if row["arms"].get(a, {}).get("median") is not None}
        if row["added_over_direct"]:
            medians.pop("direct", None)
        if not medians:
            continue
        longest = max(abs(v) for v in medians.values()) or 1
        better = "more is better" if row["more_is_better"] else "less is better"
        parts.append(f'<text x="10" y="{y + 10}" class="label">{html.escape(label)}</text>')
        parts.append(f'<text x="10" y="{y + 25}" class="note">{better}</text>')
        for arm, value in medians.items():
            length = max(1.0, max(0.0, value) / longest * (WIDTH - LEFT - 190))
            colour = COLOURS.get(arm, "#57534e")
            parts.append(f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR}" fill="{colour}"/>')
            text = f"{arm}  {value:,.0f}" if abs(value) >= 100 else f"{arm}  {value:.3g}"
            parts.append(f'<text x="{LEFT + length + 6:.1f}" y="{y + BAR - 2}" class="value">{html.escape(text)}</text>')
            y += BAR + 3
        y += GAP
    style = ".label{font:bold 12px sans-serif}.note{font:11px sans-serif;fill:#666}"
    style += ".value{font:11px sans-serif}.head{font:13px sans-serif}"
    settings = data["settings"]
    head = f"{settings['date']}, {settings['cores']} cores, medians of {settings['rounds']} rounds, one run"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y + 10}"><style>{style}</style>'
        f'<rect width="100%" height="100%" fill="white"/><text x="10" y="24" class="head">{html.escape(head)}</text>'
        + "".join(parts)
        + "</svg>\n"
    )


def main() -> int:
    """Read, draw, write."""
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    Path(sys.argv[2]).write_text(draw(json.loads(Path(sys.argv[1]).read_text())))
    print(f"drew {sys.argv[2]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
