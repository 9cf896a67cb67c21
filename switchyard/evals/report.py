"""A run's report for the terminal and as Markdown, from the same rows. The HTML page is `page`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Json = Mapping[str, Any]
NAMED = 12  # discordant cases that the terminal names; the files name all

HEAD = ("arm", "pass", "score", "big share", "infra", "requests", "tokens in/out", "case p50/p95", "tokens/s", "speed", "cost")  # fmt: skip  # noqa: E501


def as_text(report: Json) -> str:
    """For a terminal."""
    lines = [title(report), "", *headline(report), "", *_columns(HEAD, arm_rows(report))]
    lines += ["", *(f"  {line}" for line in findings(report))]
    if report["categories"]:
        lines += ["", "categories (exploratory; alarms corrected by Holm)"]
        lines += _columns(category_head(report), category_rows(report))
    lines += [f"  {line}" for line in problems(report, NAMED)]
    return "\n".join(map(_one_line, lines)) + "\n"


def as_markdown(report: Json) -> str:
    """For a file, or a pull request."""
    verdict, *rest = map(_escaped, headline(report))
    parts = [f"# {_escaped(title(report))}", f"**{verdict}**", *rest, _table(HEAD, arm_rows(report))]
    found = [_escaped(line.strip()) for line in findings(report) if not line.startswith("  ")]  # names of cases come below
    parts.append("\n".join(f"- {line}" for line in found))
    for words, names in discordant(report):
        parts.append(_escaped(f"{words} ({len(names)}): {', '.join(names) or 'none'}"))
    if report["categories"]:
        parts += ["## Categories", "Exploratory: intervals are not corrected; alarms are, by Holm."]
        parts.append(_table(category_head(report), category_rows(report)))
    if report["problems"]:
        listed = "\n".join(f"- {_escaped(line)}" for line in problems(report, len(report["problems"])))
        parts += ["## Errors and unscored trials", listed]
    parts += ["## How it was run", _table(("what", "value"), how(report))]
    return "\n\n".join(part for part in parts if part) + "\n"


# ---- what is said ----


def title(report: Json) -> str:
    """What was run, in a line."""
    run = report["run"]
    trials = f" x {run['trials']} trials" if run["trials"] > 1 else ""
    names = run["names"]
    return (
        f"{run['suite']}: {len(run['cases'])} cases x {len(run['arms'])} arms{trials}; "
        f"route {names['route']} between {names['big']} (big) and {names['small']} (small)"
    )


def headline(report: Json) -> Iterator[str]:
    """The verdict, why, and what would settle it."""
    verdict, comparison = report["verdict"], report["comparison"]
    yield f"{verdict['word'].upper()} {at_margin(verdict)}"
    if comparison:
        yield (
            f"pass rate, routed minus big: {difference(comparison)} points, 90 % interval {interval(comparison)} "
            f"({comparison['method']}, {comparison['cases']} cases, psi {comparison['discordance']:.1%})"
        )
    if verdict["settled_by"]:
        yield settle(verdict, comparison["cases"])
    yield from (f"caution: {caution}" for caution in report["cautions"])
    if not report["complete"]:
        yield f"the run is not complete: {report['finished']} of {report['expected']} trials; --resume goes on"


def at_margin(verdict: Json) -> str:
    """What the verdict rests on."""
    return f"at a margin of {verdict['margin_points']:g} points: {verdict['why']}"


def settle(verdict: Json, cases: int) -> str:
    """How many more cases would settle it."""
    more, seen = verdict["settled_by"] - cases, verdict["settled_as_seen"]
    if more > 0:
        text = f"about {more:,} more cases would settle it, with 80 % power, if both are equally good"
    else:
        text = f"{cases:,} cases would have settled it, with 80 % power, if both were equally good"
    if seen is None:
        return text + "; if the difference is the margin itself, no number will"
    if seen > cases:
        return text + f"; about {seen - cases:,} more if the difference stays as it was seen"
    return text


def findings(report: Json) -> Iterator[str]:
    """One line for each thing that the run shows besides the verdict."""
    comparison, noise, small = report["comparison"], report["noise_floor"], report["small"]
    if comparison:
        several = comparison["trials"] > 1
        test, word = ("exact sign test", "more often under") if several else ("exact McNemar", "only")
        yield (
            f"discordant cases: {len(comparison['lost'])} {word} big, {len(comparison['won'])} {word} routed "
            f"({test} p {probability(comparison['p_mcnemar'])}"
            + ("; REGRESSION: more were lost than chance explains)" if comparison["regressed"] else ")")
        )
        for name, arm in (("lost", "big"), ("won", "routed")):
            if comparison[name]:
                more = len(comparison[name]) - NAMED
                yield f"  {word} {arm}: {', '.join(comparison[name][:NAMED])}" + (f" and {more} more" if more > 0 else "")
        yield (
            f"points, routed minus big: {comparison['score_difference_points']:+.1f}, 90 % interval "
            f"{_range(comparison['score_interval_points'])} (bootstrap over cases)"
        )
    if noise:
        yield (
            f"noise floor, big against big again: {noise['discordance']:.1%} of the cases differ, difference "
            f"{difference(noise)} points ({interval(noise)})"
        )
    if small:
        yield f"small minus big: {difference(small)} points ({interval(small)})"
    if advantage := report["advantage"]:
        shown = "better than chance" if advantage["shown"] else "NOT shown to be better than chance"
        yield (
            f"choice of requests, at {advantage['share']:.1%} on big: {advantage['difference_points']:+.1f} points over a "
            f"random choice, 90 % interval {_range(advantage['interval_points'])}: {shown}"
        )
    if against := report["against_random"]:
        yield f"routed minus the random arm as it ran: {difference(against)} points ({interval(against)})"


def discordant(report: Json) -> Iterator[tuple[str, Sequence[str]]]:
    """The cases on which big and routed differ, all by name, with what they have in common."""
    if comparison := report["comparison"]:
        several = comparison["trials"] > 1
        yield "Passed more often under big" if several else "Only big passes", comparison["lost"]
        yield "Passed more often under routed" if several else "Only routed passes", comparison["won"]


def difference(comparison: Json) -> str:
    """Of the pass rates, in points."""
    return f"{comparison['difference_points']:+.1f}"


def interval(comparison: Json) -> str:
    """Of that difference."""
    return _range(comparison["interval_points"])


def _range(ends: Sequence[float]) -> str:
    return f"{ends[0]:+.1f} .. {ends[1]:+.1f}"


def problems(report: Json, most: int) -> Iterator[str]:
    """Trials that the infrastructure broke, or that could not be graded."""
    found = report["problems"]
    for problem in found[:most]:
        trial = f" trial {problem['trial']}" if report["run"]["trials"] > 1 else ""
        yield _one_line(f"{problem['state']}: {problem['arm']} {problem['case']}{trial}: {problem['detail'][:160]}")
    if len(found) > most:
        yield f"and {len(found) - most} more errors and unscored trials"


# ---- rows ----


def arm_rows(report: Json) -> list[list[str]]:
    """The table of arms, under `HEAD`."""
    rows = []
    for name, arm in report["arms"].items():
        low, high = arm["pass_interval"] or (None, None)
        rows.append(
            [
                name,
                percent(arm["pass_rate"]) + (f" ({low:.0%}..{high:.0%})" if low is not None else ""),
                f"{arm['score'] * 100:.1f}" if arm["score"] is not None else "-",
                percent(arm["big_share"]),
                str(arm["states"].get("error", 0)),
                f"{arm['requests']:,}",
                f"{count(arm['tokens']['input'])}/{count(arm['tokens']['output'])}",
                f"{seconds(arm['trial_s'], 'p50')}/{seconds(arm['trial_s'], 'p95')}",
                f"{arm['output_tokens_per_s']:,.0f}" if arm["output_tokens_per_s"] is not None else "-",
                f"{arm['speed']:.2f}x" if arm["speed"] is not None else "-",
                f"{arm['cost']:.2f}" if arm["cost"] is not None else "-",
            ]
        )
    return rows


def category_head(report: Json) -> list[str]:
    """Column names of the categories' table."""
    return ["category", "cases", *report["arms"], "routed - big", "90 % interval", "big share", "alarm"]


def category_rows(report: Json) -> list[list[str]]:
    """The table of categories, under `category_head`."""
    return [
        [
            row["category"], str(row["cases"]), *(percent(row["rates"].get(arm)) for arm in report["arms"]), difference(row),
            interval(row), percent(row["big_share"]), f"p {probability(row['p_regression'])}" if row["regressed"] else "",
        ]
        for row in report["categories"]
    ]  # fmt: skip


def how(report: Json) -> list[list[str]]:
    """How the run was made."""
    run = report["run"]
    names = {
        "suite": f"{run['suite']}, version {run['version']}", "policy": run.get("policy") or "-",
        "policy's hash": run.get("policy_hash") or "-", "gateway": run["gateway"], "started": run["started"],
        "seed": str(run["seed"]), "concurrency": str(run["concurrency"]), "settings": str(run["settings"] or "-"),
        "switchyard": run["switchyard"], "run": run["run_id"],
    }  # fmt: skip
    return [[name, value] for name, value in names.items()]


def probability(p: float) -> str:
    """A p-value for people."""
    return f"{p:.3f}" if p >= 0.001 else "<0.001"


def percent(share: float | None) -> str:
    """A proportion for people."""
    return "-" if share is None else f"{share:.1%}"


def count(tokens: int | None) -> str:
    """A number of tokens for people."""
    if tokens is None:
        return "-"
    return f"{tokens / 1000:.1f}k" if tokens >= 10_000 else str(tokens)


def seconds(quantiles: Json | None, name: str) -> str:
    """A time for people."""
    return "-" if quantiles is None else f"{quantiles[name]:.2f} s"


def _columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    wide = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, wide, strict=True)).rstrip() for row in (head, *rows)]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(_escaped, line)) + " |" for line in lines)


def _one_line(text: str) -> str:
    """Without what moves a cursor or ends a line: messages come from engines, names from anybody's suite."""
    return "".join(c if c.isprintable() else " " for c in text)


def _escaped(text: str) -> str:
    """As Markdown that shows this text. An underscore inside a word means nothing there."""
    return re.sub(r"[\\`*\[\]<>&|~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\\g<0>", _one_line(text))
