"""A run's report as one HTML page that needs nothing else: no script, no font, no network; readable in light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from switchyard.evals import report as words
from switchyard.evals.chart import curve_chart, difference_chart

Json = Mapping[str, Any]

STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5d6878; --line: #d8dee8; --back: #f6f8fb;
  --card: #fff; --good: #12805c; --bad: #c0392b; --open: #b7791f; --big: #2f5fd0; --small: #8a5bd6; --chance: #8b95a5; }
@media (prefers-color-scheme: dark) { :root { --ink: #e7ecf3; --soft: #9aa7b8; --line: #303a49; --back: #12161d;
  --card: #1a2029; --good: #3fbf93; --bad: #ef7566; --open: #e0a94a; --big: #7aa2f7; --small: #b692f0; --chance: #77818f; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 20px; margin: 0 0 16px; } h2 { font-size: 16px; margin: 32px 0 8px; }
section.verdict { background: var(--card); border: 1px solid var(--line); border-left: 6px solid var(--tone);
  border-radius: 8px; padding: 16px 20px; }
.verdict b { color: var(--tone); font-size: 22px; letter-spacing: .02em; } .verdict p { margin: 6px 0 0; }
.non-inferior { --tone: var(--good); } .inferior { --tone: var(--bad); } .inconclusive { --tone: var(--open); }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 16px; }
@media (max-width: 800px) { .pair { grid-template-columns: 1fr; } }
figure { margin: 16px 0 0; background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 12px; }
figcaption { color: var(--soft); font-size: 13px; } svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--soft); font: 12px system-ui, sans-serif; }
svg .name { fill: var(--ink); paint-order: stroke; stroke: var(--card); stroke-width: 4px; }
.scroll { overflow-x: auto; background: var(--card); border: 1px solid var(--line); border-radius: 8px; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th, td { padding: 6px 10px; text-align: left; white-space: nowrap; } th { color: var(--soft); font-weight: 600; }
tr + tr td { border-top: 1px solid var(--line); } td:first-child { font-weight: 600; }
.note { color: var(--soft); font-size: 13px; } .cases { font: 13px/1.6 ui-monospace, monospace; overflow-wrap: anywhere; }
li { margin: 3px 0; }
"""


def as_html(report: Json) -> str:
    """The page."""
    verdict = report["verdict"]
    lines = [words.at_margin(verdict), *list(words.headline(report))[1:]]
    parts = [
        f"<h1>{escape(words.title(report))}</h1>",
        f'<section class="verdict {escape(verdict["word"])}"><b>{escape(verdict["word"])}</b>'
        + "".join(f"<p>{escape(line)}</p>" for line in lines)
        + "</section>",
        '<div class="pair">',
        _figure(difference_chart(report), "Difference of pass rates in points, with 90 % intervals. Dashed: the margin."),
        _figure(curve_chart(report), _curve_words(report)) if report["curve"] else "",
        "</div>",
        "<h2>Arms</h2>",
        _table(words.HEAD, words.arm_rows(report)),
        '<p class="note">pass: full points, with a 90 % interval. speed: cases per second against big. cost: engine time '
        "against big, in big-model units. tokens/s: output.</p>",
        "<h2>What it shows</h2><ul>",
        *(f"<li>{escape(line.strip())}</li>" for line in words.findings(report) if not line.startswith("  ")),
        "</ul>",
    ]
    if report["comparison"]:
        parts.append("<h2>Discordant cases</h2>")
        parts += [
            f'<p><b>{said} ({len(names)})</b><br><span class="cases">{escape(", ".join(names) or "none")}</span></p>'
            for said, names in words.discordant(report)
        ]
    if report["categories"]:
        parts += [
            '<h2>Categories</h2><p class="note">Exploratory: intervals are not corrected for their number; alarms are, by '
            "Holm.</p>",
            _table(words.category_head(report), words.category_rows(report)),
        ]
    if report["problems"]:
        listed = "".join(f"<li>{escape(line)}</li>" for line in words.problems(report, 200))
        parts.append(f'<h2>Errors and unscored trials</h2><ul class="cases">{listed}</ul>')
    parts += ["<h2>How it was run</h2>", _table(("what", "value"), words.how(report))]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(words.title(report))}</title><style>{STYLE}</style><main>\n" + "\n".join(parts) + "\n</main></html>\n"
    )


def _curve_words(report: Json) -> str:
    curve = report["curve"]
    return (
        "Pass rate against the share of the big pool. Line: what other thresholds of the score would have given "
        f"({curve['scored']} of {curve['cases']} cases were decided by a score). "
        "Dotted: a random choice. Grey: the best possible."
    )


def _figure(chart: str, caption: str) -> str:
    return f"<figure>{chart}<figcaption>{escape(caption)}</figcaption></figure>" if chart else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{"".join(f"<th>{escape(cell)}</th>" for cell in head)}</tr>{body}</table></div>'
