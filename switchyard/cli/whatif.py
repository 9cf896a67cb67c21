"""Decide recorded traffic anew under another policy: which requests move, and what that does to shares and queues.

  switchyard whatif new.yaml decisions.jsonl
  switchyard whatif new.yaml monday.jsonl tuesday.jsonl --json
  switchyard whatif new.yaml decisions.jsonl --context qwen=262144 --examples 20

The log is what server.decision_log writes; no text of prompts is needed, no engine is asked. Scores are those that were
made: a request that was decided without one, and would need one now, can't be decided anew, and is counted apart. So is
one whose record lacks a signal that the new policy looks at. Contexts that the policy leaves to the engines
(context: auto) are taken from the log where it names them, else as unlimited; --context says them.

Lines that are no records are named and left out; a log with nothing else ends with exit code 3.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from switchyard.cli.files import read_policy
from switchyard.cli.main import COULD_NOT_RUN, GOOD, WRONG_USE, CommandFailed

if TYPE_CHECKING:
    from switchyard.config.policy import Policy
    from switchyard.deciding import Decider, Target
    from switchyard.routing.replay import Parts, Replay

MOST_BAD = 10  # lines named; the rest are only counted
PROGRESS_EVERY_S = 0.5
LONGEST_LINE = 4 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("policy", metavar="NEW.yaml", help="the policy to try")
    parser.add_argument("logs", metavar="LOG.jsonl", nargs="+", help="decision logs, oldest first; - for standard input")
    parser.add_argument("--examples", type=int, default=5, metavar="N", help="requests named of each kind (default: 5)")
    parser.add_argument(
        "--context", action="append", default=[], metavar="POOL=TOKENS", help="context of a pool that has context: auto"
    )
    parser.add_argument("--json", action="store_true", help="everything as JSON")


def run(given: argparse.Namespace) -> int:
    """Replay the logs."""
    from switchyard.routing.recorded import BadRecord, read_line
    from switchyard.routing.tally import Tally

    policy = read_policy(given.policy)
    replay = make_replay(policy, dict(_parse_context(text, policy) for text in given.context))
    tally = Tally(replay.pools, max(0, given.examples))
    bad: list[dict[str, Any]] = []
    bad_count = 0
    for file, number, line in _read_lines(given.logs):
        try:
            record = read_line(line)
        except BadRecord as error:
            bad_count += 1
            if len(bad) < MOST_BAD:
                bad.append({"file": file, "line": number, "why": str(error)})
            continue
        tally.add(record, replay.decide(record))
    report = {**tally.as_report(), "bad_lines": {"count": bad_count, "first": bad}, "notes": list(_notes(policy, replay))}
    if given.json:
        print(json.dumps(report, indent=2))
    elif not tally.states:
        what = f"no decision records, only {bad_count} lines of something else" if bad_count else "no lines: nothing to decide"
        print(f"{', '.join(given.logs)}: {what}")
        _print(_describe_bad(report))
    else:
        _print(describe(report, given.policy))
    return COULD_NOT_RUN if bad_count and not tally.states else GOOD


def make_replay(policy: Policy, contexts: dict[str, int] | None = None) -> Replay:
    """A replay with the gateway's own decider."""
    from switchyard.deciding import Decider, Target
    from switchyard.routing.lookup import Names
    from switchyard.routing.replay import Replay

    names = Names(policy)

    def find_target(model: str) -> Target | None:
        found = names.find(model)
        return Target(*found, found[1].pools) if found is not None else None

    def make_decider(parts: Parts) -> Decider:
        return Decider(find_target, parts.pools, parts.classifiers, parts.steering, parts.pins, parts.stored, {})

    return Replay(policy, make_decider, contexts)


def _parse_context(text: str, policy: Policy) -> tuple[str, int]:
    pool, _, tokens = text.partition("=")
    if pool not in policy.pools or not tokens.isdecimal() or not int(tokens):
        raise CommandFailed(f"--context {text}: POOL=TOKENS is expected, with one of {', '.join(policy.pools)}", WRONG_USE)
    return pool, int(tokens)


# ---- reading ----


def _read_lines(paths: Sequence[str]) -> Iterator[tuple[str, int, bytes]]:
    """File, number and text of every line that isn't empty, with progress on a terminal."""
    for path in paths:
        try:
            with sys.stdin.buffer if path == "-" else open(path, "rb") as file:
                yield from _watch(path, file)
        except OSError as error:
            raise CommandFailed(f"can't read {path}: {error.strerror}", COULD_NOT_RUN) from None


def _watch(path: str, file: BinaryIO) -> Iterator[tuple[str, int, bytes]]:
    size = os.fstat(file.fileno()).st_size if path != "-" else 0
    shown_s, shows, read = time.monotonic(), sys.stderr.isatty(), 0
    number = 0
    while line := file.readline(LONGEST_LINE):
        number += 1
        read += len(line)
        while not line.endswith(b"\n") and len(line) >= LONGEST_LINE and (rest := file.readline(LONGEST_LINE)):
            read += len(rest)  # longer than any record: it is one bad line, and isn't kept in memory
            line = line[:80] + rest[-1:] if rest.endswith(b"\n") else line
        if line.strip():
            yield path, number, line
        if shows and time.monotonic() - shown_s > PROGRESS_EVERY_S:
            shown_s = time.monotonic()
            print(f"\r{path}: {number:,} lines" + (f", {read / size:.0%}" if size else ""), end="", file=sys.stderr)
    if shows and number:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


# ---- showing ----


def _notes(policy: Policy, replay: Replay) -> Iterator[str]:
    """What the reader must know to trust the numbers."""
    unlimited = [name for name, pool in replay.pools.items() if pool.context_tokens is None]
    if unlimited:
        yield f"contexts of {', '.join(unlimited)} are not known here and taken as unlimited; --context POOL=TOKENS says them"
    if any(route.share or route.pressure for route in policy.routes.values()):
        yield (
            "share and pressure are replayed in the order of the log, and queues are known only where they moved a request: "
            "totals hold, single requests may differ"
        )


def _print(lines: Iterator[str]) -> None:
    for line in lines:
        print(line)


def describe(report: dict[str, Any], policy: str) -> Iterator[str]:
    """The report as lines for people."""
    requests = report["requests"]
    yield f"{requests['all']:,} requests of {_duration(report['span_s'])} under {policy}"
    words = {
        "same": "stay where they were", "moved": "move", "unknown": "can't be decided anew", "refused": "would be refused",
        "undecided": "were never decided (refused before)",
    }  # fmt: skip
    for state, word in words.items():
        if requests[state]:
            yield f"  {requests[state]:>9,}  {requests[state] / requests['all']:>6.1%}  {word}"
    for move in report["moves"]:
        yield ""
        yield f"{move['from']} -> {move['to']}: {move['count']:,}"
        for example in move["examples"]:
            yield f"  {example['id']}  {example['after']}   (was: {example['before']})"
    for state in ("unknown", "refused", "undecided"):
        if report[state]:
            yield ""
            yield f"{words[state]}:"
        for group in report[state]:
            ids = ", ".join(e["id"] for e in group["examples"][:3])
            yield f"  {group['count']:>9,}  {group['why']}   ({ids})"
    yield from _describe_shares(report)
    yield from _describe_load(report["load"])
    yield from _describe_bad(report)
    for note in report["notes"]:
        yield ""
        yield f"note: {note}"


def _describe_shares(report: dict[str, Any]) -> Iterator[str]:
    if not report["shares"]:
        return
    groups = [("all", report["shares"])]
    for name in ("request_class", "client"):
        groups += [(f"{name} {key}", shares) for key, shares in report[f"by_{name}"].items()]
    pools = [entry["pool"] for entry in report["shares"]]
    wide = max(len(label) for label, _ in groups)
    yield ""
    yield f"{'shares, before -> after':<{wide + 11}}" + "".join(f"  {pool:>15}" for pool in pools)
    for label, shares in groups:
        found = {entry["pool"]: entry for entry in shares}
        count = sum(entry["before"] for entry in shares)
        cells = [
            f"{found[p]['before_share']:.1%} -> {found[p]['after_share']:.1%}" if p in found else "-" for p in pools
        ]  # fmt: skip
        yield f"  {label:<{wide}} {count:>8,}" + "".join(f"  {cell:>15}" for cell in cells)


def _describe_load(loads: list[dict[str, Any]]) -> Iterator[str]:
    from switchyard.routing.tally import WINDOW_S

    yield ""
    yield f"places taken, on the average and in the busiest {WINDOW_S // 60} minutes (replicas x limits.in_flight, estimated)"
    for load in loads:
        before, after = load["before"], load["after"]
        worst = after["busiest"]
        if worst is None:
            remark = "   the log has nothing that shows how fast its engines are"
        else:
            remark = "   it would queue" if worst >= 1 else "   little is left" if worst >= 0.8 else ""
        yield (
            f"  {load['pool']}: {load['places']} places   mean {_percent(before['mean'])} -> {_percent(after['mean'])}   "
            f"busiest {_percent(before['busiest'])} -> {_percent(worst)}{remark}"
        )


def _describe_bad(report: dict[str, Any]) -> Iterator[str]:
    bad = report["bad_lines"]
    if bad["count"]:
        yield ""
        yield f"{bad['count']:,} bad line{'s were' if bad['count'] > 1 else ' was'} left out:"
        yield from (f"  {b['file']}:{b['line']}: {b['why']}" for b in bad["first"])


def _percent(share: float | None) -> str:
    return "?" if share is None else f"{share:.1%}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
