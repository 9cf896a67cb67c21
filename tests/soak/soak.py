"""Mixed traffic through a real gateway process for many minutes, with every request accounted for.

  python tests/soak/soak.py --minutes 20 [--rate 6] [--seed 1] [--json FILE]

Clients of three protocols talk, leave, read slowly and send megabytes; engines break off, hang, restart and refuse. At
the end each request must have ended in a way that fits what was done to it, the decision log must have one line for it,
all places must be free, and memory and open files must be where they were. Exit code 1 and a list when not.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])

from integration.client import eventually
from integration.gateway import Serve, policy, pool

from soak.accounts import compare_with_log, count_lines, growth, judge, look_for_failures, table
from soak.engines import Ledger, SoakEngine, Storm, rage
from soak.traffic import LONGEST_S, Traffic

CALM_S = 5.0
"""Kept engine connections are closed after four seconds."""
MOST_LEFT = 1.5
"""Memory after the last request over that before the first: a thousand records and the sessions are kept."""
FEW_FILES = 4
"""Open files that may come and go: probes."""


@dataclass
class Sample:
    """What a process holds."""

    at_s: float
    rss_mb: float
    files: int


@dataclass
class Report:
    """What came of a soak."""

    seed: int
    minutes: float
    requests: int = 0
    endings: dict[str, int] = field(default_factory=dict)
    storms: dict[str, int] = field(default_factory=dict)
    rss_mb: dict[str, float] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)
    log_lines: int = 0
    warnings: int = 0
    problems: list[str] = field(default_factory=list)
    table: str = ""


def make_policy(engines: dict[str, SoakEngine], log: Path) -> dict[str, Any]:
    """Two pools behind a route with rules, score and sessions; a narrow one for its queue."""
    timeouts = {"connect_s": 2, "first_byte_s": 5, "idle_s": 4, "total_s": 40}
    common: dict[str, Any] = {"timeouts": timeouts, "health": {"every_s": 0.5}}
    auto: dict[str, Any] = {
        "rules": [
            {"when": {"images": True}, "use": "big"},
            {"when": {"tool_errors_in_a_row": {"at_least": 2}}, "use": "big", "for": "2 turns"},
        ],
        "classify": [{"type": "embedded"}],
        "choose": [{"p_at_least": 0.6, "use": "small"}, {"use": "big"}],
    }
    return policy(
        {
            "small": pool(engines["small-1"], engines["small-2"], usage="ask", **common),
            "big": pool(engines["big-1"], engines["big-2"], balance="least_tokens", accepts=["tools", "images"], **common),
            "narrow": pool(engines["narrow"], limits={"in_flight": 2, "queue": 4, "queue_timeout_s": 1}, **common),
        },
        {"auto": auto, "checked": {**auto, "check": {"tool_calls": "escalate"}}},
        decision_log=str(log),
    )


async def soak(gateway: Serve, engines: dict[str, SoakEngine], ledger: Ledger, report: Report, rate: float) -> None:
    """Traffic, storms and samples for the report's minutes; then calm, and the accounts."""
    random = Random(report.seed)
    traffic = Traffic(gateway.port, ledger, random)
    await warm_up(traffic)
    await asyncio.sleep(CALM_S)
    samples = [sample(gateway)]
    end_s = time.monotonic() + 60 * report.minutes
    watching = asyncio.create_task(watch(gateway, traffic, samples, end_s))
    raging = asyncio.create_task(storm_until(end_s, engines, Random(report.seed + 1)))
    running: set[asyncio.Task[None]] = set()
    while time.monotonic() < end_s:
        task = asyncio.create_task(traffic.play())
        running.add(task)
        task.add_done_callback(running.discard)
        await asyncio.sleep(random.expovariate(rate))
    storms = await raging
    _, late = await asyncio.wait(running, timeout=2 * LONGEST_S) if running else ((), ())
    report.problems += [f"{len(late)} scenarios did not end"] if late else []
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await traffic.close()
    await asyncio.sleep(CALM_S)
    traffic_samples, last = samples[1:], sample(gateway)
    conclude(gateway, traffic, ledger, storms, report)
    note_resources(report, samples[0], traffic_samples, last)


async def warm_up(traffic: Traffic) -> None:
    """One of each scenario: what is made once is made before anything is measured."""
    await asyncio.gather(*(traffic.play_one(name) for name in traffic.scenarios))
    await traffic.close()


async def watch(gateway: Serve, traffic: Traffic, samples: list[Sample], end_s: float) -> None:
    """A sample each second, a line each ten."""
    for second in range(1, 10**6):
        await asyncio.sleep(1)
        samples.append(sample(gateway))
        if second % 10 == 0:
            left_s = max(0, end_s - time.monotonic())
            ended = sum(1 for s in traffic.sent.values() if s.ending)
            print(
                f"{left_s:5.0f} s left  {ended:6} requests ended  {traffic.open:3} scenarios open  "
                f"{samples[-1].rss_mb:6.1f} MB  {samples[-1].files:3} files  {len(traffic.problems)} problems",
                flush=True,
            )


async def storm_until(end_s: float, engines: dict[str, SoakEngine], random: Random) -> list[Storm]:
    """Now and then trouble with one engine; never with two of them at a time."""
    storms: list[Storm] = []
    while time.monotonic() < end_s - 6:
        await asyncio.sleep(random.uniform(2, 5))
        name = random.choice(list(engines))
        what = random.choice(["kill", "kill", "freeze", "busy"])
        storms.append(await rage(what, engines[name], name, random.uniform(0.2, 3)))
    return storms


def sample(gateway: Serve) -> Sample:
    folder = Path(f"/proc/{gateway.process.pid}")
    pages = int((folder / "statm").read_text().split()[1])
    return Sample(time.monotonic(), pages * 4096 / 1e6, len(list((folder / "fd").iterdir())))


def conclude(gateway: Serve, traffic: Traffic, ledger: Ledger, storms: list[Storm], report: Report) -> None:
    """Hold all accounts against each other."""
    sent = list(traffic.sent.values())
    report.requests = len(sent)
    for request in sent:
        report.endings[request.ending] = report.endings.get(request.ending, 0) + 1
    for storm in storms:
        report.storms[storm.what] = report.storms.get(storm.what, 0) + 1
    report.problems += traffic.problems
    report.problems += judge(sent, ledger, storms)
    for name in ("switchyard_in_flight", "switchyard_queued"):
        with contextlib.suppress(AssertionError):
            eventually(lambda name=name: not gateway.metric(name), 10)
        if left := gateway.metric(name):
            report.problems.append(f"{name} is {left:g} at the end")
    with contextlib.suppress(AssertionError):  # one that a late storm has taken out is tried again after a minute at most
        eventually(lambda: all(p["healthy"] == len(p["replicas"]) for p in gateway.ready().json()["pools"].values()), 90)
    for name, state in gateway.ready().json()["pools"].items():
        taken = sum(r["in_flight"] for r in state["replicas"].values())
        if taken or state["queued"] or state["healthy"] != len(state["replicas"]):
            report.problems.append(f"pool {name} at the end: {state}")
    log = gateway.file.with_name("decisions.jsonl")
    report.log_lines = count_lines(log)
    report.problems += compare_with_log(sent, log)
    counted = gateway.metric("switchyard_requests_total")
    if counted != report.log_lines:
        report.problems.append(f"the metrics counted {counted:g} requests, the decision log has {report.log_lines} lines")
    report.problems += look_for_failures(gateway.output)
    report.warnings = gateway.output.count("WARNING")
    report.table = table(sent)


def note_resources(report: Report, first: Sample, samples: list[Sample], last: Sample) -> None:
    """Memory and files: what they were, and whether they stayed."""
    rss = [s.rss_mb for s in samples]
    report.rss_mb = {"first": first.rss_mb, "most": max(rss), "last": last.rss_mb, "growth": growth(rss)}
    report.files = {"first": first.files, "most": max(s.files for s in samples), "last": last.files}
    limit = 1.1 if report.minutes >= 3 else 1.3  # a short run has its pools and caches still to fill
    if report.rss_mb["growth"] > limit:
        report.problems.append(f"memory grows: the last quarter has {report.rss_mb['growth']:.2f} times the second's")
    if last.rss_mb > MOST_LEFT * first.rss_mb:
        report.problems.append(f"{last.rss_mb:.1f} MB are held at the end, {first.rss_mb:.1f} at the beginning")
    if last.files > first.files + FEW_FILES:
        report.problems.append(f"{last.files} files are open at the end, {first.files} at the beginning")


def run(minutes: float, rate: float, seed: int) -> Report:
    """A whole soak, with its own gateway and engines."""
    report, ledger = Report(seed, minutes), Ledger()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
        models = {"small-1": "small", "small-2": "small", "big-1": "big", "big-2": "big", "narrow": "narrow"}
        engines = {n: stack.enter_context(SoakEngine(f"acme/{m}", ledger)) for n, m in models.items()}
        gateway = stack.enter_context(Serve(make_policy(engines, folder / "decisions.jsonl"), folder))
        gateway.wait_ready()
        asyncio.run(soak(gateway, engines, ledger, report, rate))
        gateway.terminate()
        if (code := gateway.exit_code()) != 0:
            report.problems.append(f"the gateway's exit code is {code}")
        report.problems += [p for p in look_for_failures(gateway.output) if p not in report.problems]
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--rate", type=float, default=6, help="scenarios begun each second")
    parser.add_argument("--seed", type=int, default=None, help="of chance; shown, so that a run can be repeated")
    parser.add_argument("--json", type=Path, help="file for the report")
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else int(time.time())
    print(f"soak of {given.minutes:g} minutes, {given.rate:g} scenarios a second, seed {seed}", flush=True)
    report = run(given.minutes, given.rate, seed)
    if given.json is not None:
        given.json.write_text(json.dumps(vars(report), indent=1))
    print(f"\n{report.requests} requests\n{report.table}")
    print(f"storms: {report.storms}; {report.log_lines} lines in the decision log; {report.warnings} warnings in the gateway's")
    print("memory in MB:", {k: round(v, 2) for k, v in report.rss_mb.items()}, " files:", report.files)
    for problem in report.problems[:50]:
        print("WRONG:", problem)
    print(f"{len(report.problems)} problems" if report.problems else "all accounts agree")
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
