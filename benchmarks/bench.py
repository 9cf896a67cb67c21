#!/usr/bin/env python3
"""Measure a gateway process side by side with its peers, on one machine, in one run. See README.md."""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import bodies
import peers as peers_module
from arms import Arm, Bench, gateway_arm, peer_arm
from measured import DIRECT, METRICS
from peers import PEERS
from processes import cpu_times, free_port, may_run_realtime
from report import Report


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument(
        "action", nargs="?", choices=["run", "setup-peers"], default="run", help="setup-peers installs missing peers"
    )
    p.add_argument("--gateway", action="append", default=[], metavar="NAME=COMMAND", help="{config} and {port} are filled in")
    p.add_argument(
        "--config-template", action="append", default=[], metavar="[NAME=]FILE", help="{engine0}, {engine1} are filled in"
    )
    p.add_argument("--peers", default=",".join(PEERS), help="those to measure or to install; empty: none")
    p.add_argument("--only", default=",".join(METRICS), help="metrics")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--rate", type=int, default=200, help="requests/s of the latency metrics; ttft uses half of it")
    p.add_argument("--scale", type=float, default=1.0, help="makes all measuring windows longer")
    p.add_argument("--model", default="m", help="model name in the requests; also what the engines serve")
    p.add_argument("--engine-ports", default="", metavar="A,B", help="fixed ports for the engines (else free ones)")
    p.add_argument("--start-limit", type=float, default=60.0, help="seconds a gateway may take to start")
    p.add_argument("--no-realtime", action="store_true", help="never use real-time priority")
    p.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    p.add_argument(
        "--work", type=Path, default=Path(tempfile.gettempdir()) / "gateway-bench", help="folder for builds, peers and logs"
    )
    a = p.parse_args(argv)
    a.peers, a.only = ([x for x in text.split(",") if x] for text in (a.peers, a.only))
    for kind, given, known in (("peer", a.peers, PEERS), ("metric", a.only, METRICS)):
        if unknown := [x for x in given if x not in known]:
            p.error(f"unknown {kind}: {', '.join(unknown)}; known: {', '.join(known)}")
    a.only = [m for m in METRICS if m in a.only]
    a.work = a.work.resolve()
    a.gateway = [(name, command) for name, _, command in (g.partition("=") for g in a.gateway)]
    names = [name for name, _ in a.gateway]
    if any(not command for _, command in a.gateway) or len(set(names) | set(PEERS) | {DIRECT}) < len(names) + len(PEERS) + 1:
        p.error("--gateway needs NAME=COMMAND, with names of their own")
    templates: dict[str, Path] = {}
    for given in a.config_template:
        name, _, file = given.partition("=")
        templates |= {name: Path(file)} if name in names else {n: Path(given) for n in names if n not in templates}
    for name, command in a.gateway:
        if "{config}" in command and name not in templates:
            p.error(f"{name}: {{config}} needs --config-template")
    if unread := [str(f) for f in templates.values() if not f.is_file()]:
        p.error(f"no such file: {', '.join(unread)}")
    a.templates = templates
    return a


def main(argv: Sequence[str]) -> int:
    a = arguments(argv)
    a.work.mkdir(parents=True, exist_ok=True)
    if a.action == "setup-peers":
        return 0 if peers_module.setup(a.work, a.peers) else 1
    if not shutil.which(os.environ.get("CC", "cc")):
        print("a C compiler is needed (cc, or the one named by CC)", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    arms = [Arm(DIRECT)]
    arms += [gateway_arm(name, command, a.templates.get(name), a.start_limit) for name, command in a.gateway]
    for name in a.peers:
        program = peers_module.find(a.work, name)
        if program:
            arms.append(peer_arm(name, program, a.work))
        else:
            print(f"skipped {name}: not installed, see {peers_module.hint(name)}", file=sys.stderr)

    cores = sorted(os.sched_getaffinity(0))
    realtime = not a.no_realtime and may_run_realtime()
    engine_ports = tuple(int(x) for x in a.engine_ports.split(",")) if a.engine_ports else (free_port(), free_port())
    bench = Bench(
        work=a.work,
        model=a.model,
        rate=a.rate,
        scale=a.scale,
        realtime=realtime,
        gateway_core=cores[1] if len(cores) > 1 else None,
        other_core=cores[0] if len(cores) > 1 else None,
        engines=(engine_ports[0], engine_ports[1]),
    )
    bench.body_files = bodies.write_all(a.work / "bodies", a.model)
    settings = {
        "rounds": a.rounds, "rate": a.rate, "scale": a.scale, "metrics": a.only, "realtime": realtime, "pinned": len(cores) > 1,
        "cores": len(cores), "machine": platform.machine(), "kernel": platform.release(), "python": platform.python_version(),
        "load_before": os.getloadavg()[0], "date": time.strftime("%Y-%m-%d %H:%M:%S"),
    }  # fmt: skip
    report = Report(arms, [name for name, _ in a.gateway], a.only, a.rate)
    total, stolen = cpu_times()
    try:
        with bench.engine():
            for turn in range(a.rounds):
                order = arms[turn % len(arms) :] + arms[: turn % len(arms)]
                report.rounds.append({})
                for arm in order:
                    print(f"round {turn + 1} of {a.rounds}: {arm.name}", file=sys.stderr, flush=True)
                    report.rounds[-1][arm.name] = bench.visit(arm, a.only)
    finally:
        later, stolen_later = cpu_times()
        settings["stolen"] = round((stolen_later - stolen) / max(1, later - total), 4)
        if a.json and report.rounds:
            a.json.write_text(json.dumps({"settings": settings} | report.data(), indent=1) + "\n")
    priority = "real-time priority for latencies" if realtime else "no real-time priority"
    pinned = "gateway on a core of its own" if len(cores) > 1 else "ONE CORE FOR ALL: figures are of little use"
    print(f"{settings['date']}, {platform.machine()}, {len(cores)} cores, {pinned}, {priority}, rate {a.rate}/s")
    print(f"load before {settings['load_before']:.1f}, time taken by the machine's host {settings['stolen']:.1%}")
    print("; ".join(f"{arm.name} {arm.version}" for arm in arms if arm.version) + "\n")
    print(report.text())
    return 1 if any(report.judged(g, m)[0] for g in report.gateways for m in a.only) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
