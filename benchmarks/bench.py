#!/usr/bin/env python3
"""Measure a gateway process side by side with its peers, on one machine, in one run. See README.md."""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import os
import platform
import random
import resource
import shlex
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE))

import bodies  # noqa: E402
import peers as peers_module  # noqa: E402
from peers import PEERS, Place  # noqa: E402

Result = dict[str, Any]
DIRECT = "direct"
IDLE_LIMIT_S = 120.0  # for opening all idle streams
PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "LD_PRELOAD")


# ---- what is measured ----


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


# ---- processes ----


def process_tree(pid: int) -> list[int]:
    found = [pid]
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                found += process_tree(int(child))
    except OSError:
        pass
    return found


def memory_mb(pids: Sequence[int]) -> float:
    """PSS: shared pages count once, split among those who share them."""
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        except OSError:
            pass
    return round(total / 1024, 1)


def may_run_realtime() -> bool:
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        return True
    except OSError:
        return False


def set_realtime(pids: Sequence[int], on: bool) -> None:
    """For all threads of the processes."""
    policy, priority = (os.SCHED_FIFO, 10) if on else (os.SCHED_OTHER, 0)
    for pid in pids:
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                os.sched_setscheduler(int(thread), policy, os.sched_param(priority))
        except OSError:
            pass


def prepared(core: int | None, realtime: bool = False) -> Callable[[], None]:
    """For the first process of a new session: its core and its priority."""

    def prepare() -> None:
        if core is not None:
            os.sched_setaffinity(0, {core})
        try:
            os.setpriority(os.PRIO_PROCESS, 0, -19)
        except OSError:
            pass
        try:
            # Linux shares a core among sessions first; the priority of a process only counts within its session.
            Path("/proc/self/autogroup").write_text("-19")
        except OSError:
            pass
        if realtime:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))

    return prepare


def clean_environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k not in PROXY_VARIABLES} | (extra or {})


def stop(process: subprocess.Popen[bytes]) -> None:
    for number, patience in ((signal.SIGTERM, 6), (signal.SIGKILL, 5)):
        try:
            os.killpg(process.pid, number)
            process.wait(patience)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def free_port() -> int:
    """Below the range from which outgoing connections take theirs."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def compiled(work: Path, name: str) -> Path:
    source = HERE / f"{name}.c"
    target = work / "bin" / f"{name}-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_suffix(f".{os.getpid()}")
        subprocess.run([os.environ.get("CC", "cc"), "-O2", "-o", str(fresh), str(source)], check=True)
        fresh.rename(target)
    return target


# ---- arms ----


@dataclass
class Arm:
    """Something that answers requests: a gateway, or the engine itself."""

    name: str
    command: Callable[[Place], list[str]] | None = None  # None: the engine
    version: str = ""
    env: dict[str, str] = field(default_factory=dict)
    start_limit: float = 60.0
    shown: list[str] = field(default_factory=list)  # the last command line, for the report


class NotReady(Exception):
    pass


@dataclass
class Bench:
    work: Path
    model: str
    rate: int
    scale: float  # of all windows
    realtime: bool
    gateway_core: int | None
    other_core: int | None
    engines: tuple[int, int]
    engine_pid: int = 0
    body_files: dict[str, Path] = field(default_factory=dict)

    @contextmanager
    def engine(self) -> Iterator[None]:
        command = [str(compiled(self.work, "engine")), "-m", self.model, *map(str, self.engines)]
        process = subprocess.Popen(command, preexec_fn=prepared(self.other_core), start_new_session=True)
        try:
            for _ in range(100):
                if process.poll() is not None:
                    raise SystemExit("the engine did not start")
                try:
                    socket.create_connection(("127.0.0.1", self.engines[1]), 1).close()
                    break
                except OSError:
                    time.sleep(0.05)
            self.engine_pid = process.pid
            yield
        finally:
            stop(process)

    @contextmanager
    def running(self, arm: Arm) -> Iterator[tuple[int, int, Result]]:
        """Start the arm and wait for its first answer; gives its port, its process and what the start showed."""
        if arm.command is None:
            yield self.engines[0], self.engine_pid, {}
            return
        folder = self.work / "run" / arm.name
        folder.mkdir(parents=True, exist_ok=True)
        urls = (f"http://127.0.0.1:{self.engines[0]}", f"http://127.0.0.1:{self.engines[1]}")
        place = Place(folder, free_port(), free_port(), urls, self.model)
        arm.shown = arm.command(place)
        begin = time.monotonic()
        with (folder / "log.txt").open("wb") as log:
            try:
                process = subprocess.Popen(
                    arm.shown,
                    env=clean_environment(arm.env),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    preexec_fn=prepared(self.gateway_core),
                    start_new_session=True,
                )
            except OSError as e:
                raise NotReady(f"did not start: {e}") from None
        try:
            self.wait_ready(process, place.port, arm.start_limit, folder / "log.txt")
            started = time.monotonic() - begin
            time.sleep(0.5)
            yield place.port, process.pid, {"start_s": round(started, 2), "start_mb": memory_mb(process_tree(process.pid))}
        finally:
            stop(process)

    def wait_ready(self, process: subprocess.Popen[bytes], port: int, limit: float, log: Path) -> None:
        headers = {"content-type": "application/json", "authorization": f"Bearer {peers_module.KEY}"}
        body, seen, end = self.body_files["1k"].read_bytes(), "no answer", time.monotonic() + limit
        while time.monotonic() < end and process.poll() is None:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            try:
                connection.request("POST", "/v1/chat/completions", body, headers)
                response = connection.getresponse()
                answer = response.read()
                if response.status == 200 and b"choices" in answer:
                    return
                seen = f"status {response.status}: {answer[:200].decode(errors='replace')}"
            except (OSError, http.client.HTTPException) as e:
                seen = repr(e)
            finally:
                connection.close()
            time.sleep(0.1)
        ended = f"ended with {process.returncode}" if process.poll() is not None else f"not ready after {limit:.0f} s ({seen})"
        last = log.read_text(errors="replace").strip().splitlines()[-3:]
        raise NotReady(f"{ended}; log: {' / '.join(last)[:400]}")

    def open_streams(self) -> int:
        """As the engines count them."""
        total = 0
        for port in self.engines:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/metrics")
            lines = connection.getresponse().read().decode().splitlines()
            connection.close()
            total += sum(int(float(x.split()[-1])) for x in lines if x.startswith("vllm:num_requests_running"))
        return total

    def measure(self, name: str, port: int, pid: int) -> Result:
        metric = METRICS[name]
        realtime = metric.realtime and self.realtime
        _, stream = bodies.SHAPES[metric.body]
        pids = process_tree(pid)
        idle = name == "idle1000"
        seconds = metric.seconds * (1 if idle else self.scale)
        command = [str(compiled(self.work, "load")), "-p", str(port), "-f", str(self.body_files[metric.body])]
        command += [
            "-c",
            str(metric.connections),
            "-d",
            str(seconds),
            "-w",
            str(metric.warm_up),
            "-P",
            ",".join(map(str, pids)),
        ]
        if metric.open_loop:
            command += ["-r", str(int(self.rate * metric.open_loop))]
        if stream:
            command += ["-s", "-n", str(stream[0])]
        set_realtime([self.engine_pid, *pids], realtime)
        load = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=prepared(self.other_core, realtime),
            start_new_session=True,
        )
        memory = None
        try:
            if idle:
                end = time.monotonic() + seconds - 5
                while self.open_streams() < metric.connections and time.monotonic() < end and load.poll() is None:
                    time.sleep(0.2)
                time.sleep(1.5)
                memory = memory_mb(process_tree(pid))
                load.terminate()
            out, err = load.communicate(timeout=metric.warm_up + seconds + 30)
            result: Result = json.loads(out)
        except (subprocess.TimeoutExpired, ValueError):
            load.kill()
            out, err = load.communicate()
            return {"error": f"load generator failed: {err.decode(errors='replace')[:200]}"}
        finally:
            set_realtime([self.engine_pid, *pids], False)
        if memory is not None:
            result["memory_mb"] = memory
        return result

    def visit(self, arm: Arm, metrics: Sequence[str]) -> dict[str, Result]:
        """All metrics of one arm in one round."""
        results: dict[str, Result] = {}
        for fresh in (False, True):
            wanted = [m for m in metrics if METRICS[m].fresh == fresh and not (fresh and arm.command is None)]
            if not wanted:
                continue
            try:
                with self.running(arm) as (port, pid, start):
                    for name in wanted:
                        results[name] = start | self.measure(name, port, pid)
                        time.sleep(0.3)
            except NotReady as e:
                results |= {m: {"error": str(e)} for m in wanted if m not in results}
        return results


# ---- report ----


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


def cpu_times() -> tuple[int, int]:
    """All ticks of all cores, and those that the host of a virtual machine took away."""
    ticks = [int(x) for x in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(ticks), ticks[7]


# ---- command line ----


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


def gateway_arm(name: str, command: str, template: Path | None, limit: float) -> Arm:
    def build(at: Place) -> list[str]:
        config = ""
        if template:
            text = template.read_text()
            values = {"engine0": at.engines[0], "engine1": at.engines[1], "port": str(at.port), "model": at.model}
            for key, value in values.items():
                text = text.replace(f"{{{key}}}", value)
            config = at.write(f"config{template.suffix}", text)
        return [part.replace("{config}", config).replace("{port}", str(at.port)) for part in shlex.split(command)]

    return Arm(name, build, start_limit=limit)


def peer_arm(name: str, program: str, work: Path) -> Arm:
    peer = PEERS[name]
    version = peers_module.version(work, name, program)
    return Arm(name, lambda at: peer.command(program, at), version, dict(peer.env), peer.start_limit)


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
