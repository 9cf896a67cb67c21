"""What routing gains on eight nodes: routed throughput against all-big, emulated over real sockets and simulated.

usage: throughput.py [--shares 1,0.9,...] [--speedup 12] [--seconds 600] [--json OUT] [--svg OUT] [--replot]

Each arm is an emulated cluster (`switchyard cluster emulate`), the real gateway in front of it (`switchyard serve`) and
half as many clients again as the cluster has places, each with its next request as soon as it has its answer. Requests
carry a label that the policy's rule reads, and labels come in exact quotas: of the first n requests, round(n f) are hard.
Answers have 100 to 300 tokens, the same lengths for both kinds. Completions are counted between the warm-up and the end,
before the tail. The same arms are simulated (`switchyard cluster simulate`), without sockets.

The more answers an arm gives, the slower its emulated time passes, and the sooner it ends: the way through three processes
takes real milliseconds, and with --speedup 12 each is a dozen emulated ones in which a place is empty.

Exit code 1 when a routed arm is more than 3 % off the algebra at the share f that was realised, which is 3/(4f) while the
small pool keeps up, or when simulation and emulation differ by more than 3 %.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import yaml

from switchyard.cluster.pool_speed import pool_speed
from switchyard.cluster.spec import parse_cluster
from switchyard.cluster.traffic import Conversations, Mix, answer_length, is_nth
from switchyard.config.load import parse_policy
from switchyard.simulate.stage import run, set_stage

HERE = Path(__file__).resolve().parent
SWITCHYARD = [str(Path(sys.executable).with_name("switchyard"))]
PROMPT_TOKENS = 500
ANSWER_TOKENS = 200
"""In the mean; 100 to 300."""
WARM_UP = 0.25
"""Share of the run that isn't counted: queues fill, batches fall out of step."""
TOLERANCE = 0.03
CLIENTS = 1.5
"""For each place: a pool that limits has a queue to draw on, at the corner where both do, too."""
REAL_ANSWERS_S = 80.0
"""Answers in a real second that no arm goes beyond; load, gateway and engines take about half of a core together then."""
ANSWERS = 4500
"""Answers that are enough of an arm."""
LATE_MS, TRIES = 3.0, 3
"""With timers later than that in the mean, something else had the machine: the arm is run again, whatever came out of it, and
the run with the least late timers counts."""
LOOK_EVERY_S = 0.05
LABEL = "x-label"


@dataclass
class Point:
    """One measured or simulated arm.

    Attributes:
        share: of hard requests that was asked for.
        realised: share of hard ones among those counted.
        requests_s: completions in an emulated second.
        speedup: emulated seconds in a real one; None where nothing was emulated.
        gateway_cpu: share of a core that the gateway took; None where there was none.
        lag_ms: how late a timer of the load generator was in the mean, in real time: other load on the machine shows here.
    """

    share: float
    realised: float
    requests_s: float
    counted: int
    failed: int
    speedup: float | None = None
    gateway_cpu: float | None = None
    lag_ms: float = 0.0


def arms(share: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """Cluster and policy of the routed arm; of the all-big one for share 0."""
    cluster = yaml.safe_load((HERE / "throughput.yaml").read_text())
    limits = {"queue": 10_000, "queue_timeout_s": 3600}
    pools = {name: {"limits": {**limits, "in_flight": p["engine"]["max_num_seqs"]}} for name, p in cluster["pools"].items()}
    if not share:
        cluster["pools"]["big"] |= {"replicas": 4, "placement": [[f"s{i}", f"s{i + 1}"] for i in (1, 3, 5, 7)]}
        del cluster["pools"]["small"], pools["small"]
        route: dict[str, Any] = {"use": "big"}
    else:
        route = {"rules": [{"when": {f"header.{LABEL}": "hard"}, "use": "big"}], "otherwise": "small",
                 "choose": [{"p_at_least": 1, "use": "small"}, {"use": "big"}]}  # fmt: skip
    for name, block in pools.items():
        block |= {"model": cluster["pools"][name]["model"], "replicas": ["http://127.0.0.1:1"]}
    return cluster, {"version": 1, "pools": pools, "routes": {"auto": route}}


def quotas(share: float) -> Iterator[bool]:
    """Whether each request is hard: of the first n, round(n share) are."""
    for n in itertools.count(1):
        yield is_nth(n, share)


# ---- over real sockets ----


def run_emulated(share: float, speedup: float, seconds: float, folder: Path) -> Point:
    """One arm; `share` 0 is all-big."""
    cluster, policy = arms(share)
    (folder / "cluster.json").write_text(json.dumps(cluster))
    (folder / "policy.json").write_text(json.dumps(policy))
    emulate = [*SWITCHYARD, "cluster", "emulate", str(folder / "cluster.json"), "--policy", str(folder / "policy.json")]
    emulate += ["--speedup", str(speedup), "--port", "0", "--write", str(folder / "emulated.yaml"), "--json"]
    with subprocess.Popen(emulate, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as emulator:
        try:
            assert emulator.stdout is not None
            if not emulator.stdout.readline():
                raise SystemExit("the emulation did not start")
            log = (folder / "gateway.log").open("w+")
            serve = [*SWITCHYARD, "serve", str(folder / "emulated.yaml"), "--port", "0"]
            with log, subprocess.Popen(serve, stderr=log) as gateway:
                try:
                    port = _gateway_port(folder / "gateway.log", gateway)
                    places = sum(p["replicas"] * p["engine"]["max_num_seqs"] for p in cluster["pools"].values())
                    load = Load(port, share, round(CLIENTS * places))
                    began, cpu_s = time.monotonic(), _cpu_s(gateway.pid)
                    asyncio.run(load.run(seconds / speedup))
                    cpu = (_cpu_s(gateway.pid) - cpu_s) / (time.monotonic() - began)
                finally:
                    gateway.send_signal(signal.SIGTERM)
                    gateway.send_signal(signal.SIGTERM)
        finally:
            emulator.send_signal(signal.SIGTERM)
    point = count(share, load.done, seconds, speedup, load.failed)
    point.speedup, point.gateway_cpu, point.lag_ms = speedup, cpu, 1000 * load.lag_s
    return point


def run_undisturbed(share: float, speedup: float, seconds: float) -> Point:
    """One arm, and again while something else has the machine."""
    points: list[Point] = []
    for _ in range(TRIES):
        with tempfile.TemporaryDirectory() as work:
            point = run_emulated(share, speedup, seconds, Path(work))
        print(
            f"share {share:g}: {point.requests_s:.3f} answers/s at {speedup:.1f} times the pace, gateway "
            f"{point.gateway_cpu:.0%} of a core, timers {point.lag_ms:.1f} ms late",
            flush=True,
        )
        points.append(point)
        if point.lag_ms <= LATE_MS:
            break
    return min(points, key=lambda point: point.lag_ms)


def count(share: float, done: list[tuple[float, bool]], seconds: float, speedup: float, failed: int) -> Point:
    """Completions after the warm-up. `done`: when, in seconds of the run's own clock, and whether it was hard."""
    begin, end = seconds / speedup * WARM_UP, seconds / speedup
    counted = [hard for at_s, hard in done if begin <= at_s < end]
    return Point(share, sum(counted) / len(counted), len(counted) / (end - begin) / speedup, len(counted), failed)


def _gateway_port(log: Path, gateway: subprocess.Popen[bytes]) -> int:
    for _ in range(200):
        time.sleep(0.05)
        text = log.read_text()
        if "listens on http://" in text:
            return int(text.split("listens on http://")[1].split()[0].rpartition(":")[2])
        if gateway.poll() is not None:
            raise SystemExit(text)
    raise SystemExit("the gateway did not start")


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Load:
    """Clients in a closed loop, over keep-alive connections.

    Args:
        port: the gateway's.
        share: of hard requests; 0: all are, and go to the only pool.
        clients: how many at once.
    """

    def __init__(self, port: int, share: float, clients: int) -> None:
        self._port = port
        self._clients = clients
        self._labels = quotas(share or 1.0)
        self._numbers = itertools.count()
        self._random = Random(1)
        self.done: list[tuple[float, bool]] = []
        self.failed = 0
        self.lag_s = 0.0

    async def run(self, real_s: float) -> None:
        """Ask for so long; what runs at the end is dropped."""
        self._began = time.monotonic()
        tasks = [asyncio.create_task(self._ask_on()) for _ in range(self._clients)]
        lags = []
        while (begin_s := time.monotonic()) < self._began + real_s:
            await asyncio.sleep(LOOK_EVERY_S)
            lags.append(time.monotonic() - begin_s - LOOK_EVERY_S)
        self.lag_s = sum(lags) / len(lags)
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    async def _ask_on(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 20)
        try:
            while True:
                hard, number = next(self._labels), next(self._numbers)
                writer.write(self._request(hard, number))
                status = await reader.readline()
                tail = b""
                while not tail.endswith(b"0\r\n\r\n"):
                    data = await reader.read(1 << 16)
                    if not data:
                        raise ConnectionError("the gateway closed a connection")
                    tail = (tail + data)[-5:]
                    if b" 200 " not in status:
                        break
                if b" 200 " in status:
                    self.done.append((time.monotonic() - self._began, hard))
                else:
                    self.failed += 1
                    raise ConnectionError(f"{status!r} {data!r}")
        finally:
            writer.close()

    def _request(self, hard: bool, number: int) -> bytes:
        text = f"{number:08d}" + "".join(f"{self._random.randrange(1000):03d} " for _ in range(PROMPT_TOKENS - 3))
        length = answer_length(number, ANSWER_TOKENS)
        body = json.dumps({
            "model": "auto", "messages": [{"role": "user", "content": text}], "max_tokens": length, "ignore_eos": True,
            "stream": True,
        }).encode()  # fmt: skip
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{LABEL}: {'hard' if hard else 'easy'}\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        return head.encode() + body


# ---- on virtual time ----


def run_simulated(share: float, seconds: float) -> Point:
    """The same arm without sockets."""
    cluster, policy = arms(share)
    if share:  # a log line has no headers: here a score tells hard from easy, and goes the same way
        policy["routes"]["auto"] = {"classify": [{"type": "embedded"}],
                                    "choose": [{"p_at_least": 0.5, "use": "small"}, {"use": "big"}]}  # fmt: skip
    parsed = parse_policy(json.dumps(policy).encode())
    stage = set_stage(parse_cluster(json.dumps(cluster).encode()).value, parsed)
    conversations = Conversations(Mix(share or 1.0, "auto", PROMPT_TOKENS, ANSWER_TOKENS), stage.policy)
    clients = round(CLIENTS * stage.places)
    results = run(stage, lambda s: s.saturate(conversations, clients, seconds))
    done = [(o.ended_s, o.pool == "big") for o in results.outcomes if not o.error]
    return count(share, done, seconds, 1.0, sum(bool(o.error) for o in results.outcomes))


# ---- results ----


def answers_s(share: float) -> float:
    """Answers a second by the algebra: X(f) = min(3 r_big / f, 2 r_small / (1 - f)), or 4 r_big for share 0, all-big."""
    cluster = parse_cluster((HERE / "throughput.yaml").read_bytes()).value
    big, small = (
        pool_speed(cluster, name).requests_s(int(str(pool.engine["max_num_seqs"])), PROMPT_TOKENS, ANSWER_TOKENS)
        for name, pool in cluster.pools.items()
    )
    if not share:
        return 4 * big
    return min(3 * big / share, 2 * small / (1 - share) if share < 1 else math.inf)


def expected(share: float) -> float:
    """The gain over all-big by the algebra; 3/(4f), whatever the speeds are, while the big pool is the limit."""
    return answers_s(share) / answers_s(0)


def summarise(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Each share's gain over all-big in both ways, beside what the algebra says at the realised share."""
    emulated, simulated = found["emulated"], found["simulated"]
    rows = []
    for real, virtual in zip(emulated[1:], simulated[1:], strict=True):
        gain, virtual_gain = (
            p["requests_s"] / base["requests_s"] for p, base in ((real, emulated[0]), (virtual, simulated[0]))
        )
        rows.append({
            "share": real["share"], "realised": real["realised"], "expected": expected(real["realised"]), "emulated": gain,
            "simulated": virtual_gain, "off": gain / expected(real["realised"]) - 1,
            "simulated_off_emulated": virtual["requests_s"] / real["requests_s"] - 1,
        })  # fmt: skip
    return rows


def show(rows: list[dict[str, Any]]) -> bool:
    """The table; False when something is further off than it may be."""
    good = True
    print("share  realised  algebra  emulated     off  simulated  simulated against emulated, answers/s")
    for row in rows:
        within = max(abs(row["simulated_off_emulated"]), abs(row["off"])) <= TOLERANCE
        good &= within
        print(
            f"{row['share']:5.2f}  {row['realised']:8.4f}  {row['expected']:7.3f}  {row['emulated']:8.3f}  {row['off']:+6.2%}"
            f"  {row['simulated']:9.3f}  {row['simulated_off_emulated']:+.2%}" + ("" if within else "   TOO FAR OFF")
        )
    return good


WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 720, 420, 60, 50, 40


def draw(found: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """Share against throughput, emulated and simulated, with the curve of the algebra."""
    high = 1.1 * max(row["emulated"] for row in rows)

    def x(share: float) -> float:
        return LEFT + share * (WIDTH - LEFT - 20)

    def y(gain: float) -> float:
        return HEIGHT - BOTTOM - gain / high * (HEIGHT - BOTTOM - TOP)

    parts = []
    for tick in range(0, 101, 25):
        parts.append(f'<line x1="{x(tick / 100):.1f}" y1="{TOP}" x2="{x(tick / 100):.1f}" y2="{y(0):.1f}" class="grid"/>')
        parts.append(f'<text x="{x(tick / 100):.1f}" y="{HEIGHT - 30}" text-anchor="middle">{tick} %</text>')
    for tick in range(int(high) + 1):
        parts.append(f'<line x1="{LEFT}" y1="{y(tick):.1f}" x2="{x(1):.1f}" y2="{y(tick):.1f}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick}x</text>')
    curve = [(f / 200, expected(f / 200)) for f in range(10, 201)]
    line = " ".join(f"{x(f):.1f},{y(g):.1f}" for f, g in curve if g <= high)
    parts.append(f'<polyline points="{line}" class="curve"/>')
    parts.append(f'<line x1="{LEFT}" y1="{y(1):.1f}" x2="{x(1):.1f}" y2="{y(1):.1f}" class="base"/>')
    for row in rows:
        here = x(row["realised"])
        parts.append(f'<circle cx="{here:.1f}" cy="{y(row["emulated"]):.1f}" r="5" class="emulated"/>')
        a, b = here, y(row["simulated"])
        parts.append(f'<path d="M{a - 4:.1f},{b - 4:.1f}l8,8m0,-8l-8,8" class="simulated"/>')
        anchor = "end" if row["realised"] > 0.95 else "start"
        label = f'x="{here + (4 if anchor == "end" else 8):.1f}" y="{y(row["emulated"]) - 10:.1f}" text-anchor="{anchor}"'
        parts.append(f"<text {label}>{row['emulated']:.2f}</text>")
    legend = x(0.52)
    parts.append(
        f'<circle cx="{legend}" cy="60" r="5" class="emulated"/><text x="{legend + 12}" y="64">emulated, real sockets</text>'
    )
    parts.append(f'<path d="M{legend - 4},76l8,8m0,-8l-8,8" class="simulated"/><text x="{legend + 12}" y="84">simulated</text>')
    parts.append(f'<line x1="{legend - 8}" y1="100" x2="{legend + 8}" y2="100" class="curve"/>')
    parts.append(f'<text x="{legend + 12}" y="104">min(3/(4f), what the small pool makes)</text>')
    style = (
        "text{font:12px sans-serif;fill:#333}.grid{stroke:#e5e5e5}.base{stroke:#999;stroke-dasharray:4}"
        ".curve{stroke:#1d4ed8;fill:none;stroke-width:1.5}.emulated{fill:#c2410c}.simulated{stroke:#111;stroke-width:1.5}"
    )
    head = f"Answers a second against all-big on the same eight nodes ({found['date']})"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}"><style>{style}</style>'
        f'<rect width="100%" height="100%" fill="white"/><text x="{LEFT}" y="22">{head}</text>{"".join(parts)}'
        f'<text x="{x(0.5):.1f}" y="{HEIGHT - 10}" text-anchor="middle">share of requests on the big pool</text></svg>\n'
    )


def main() -> int:
    """Run all arms, show and draw them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shares", default="1,0.9,0.75,0.5,0.35,0.25,0.15,0.08", help="of hard requests")
    parser.add_argument("--speedup", type=float, default=12.0, help="emulated seconds in a real one, at most")
    parser.add_argument("--seconds", type=float, default=600.0, help="emulated seconds of each arm, at most")
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--svg", type=Path, help="write the picture here")
    parser.add_argument("--replot", action="store_true", help="run nothing: read the figures from --json")
    given = parser.parse_args()
    found: dict[str, Any]
    if given.replot:
        found = json.loads(given.json.read_text())
    else:
        shares = [0.0, *map(float, given.shares.split(","))]
        found = {"date": time.strftime("%Y-%m-%d"), "speedup": given.speedup, "seconds": given.seconds}
        found |= {"simulated": [], "emulated": []}
        for share in shares:
            speedup = min(given.speedup, REAL_ANSWERS_S / answers_s(share))
            seconds = min(given.seconds, ANSWERS / answers_s(share))
            found["simulated"].append(asdict(run_simulated(share, seconds)))
            found["emulated"].append(asdict(run_undisturbed(share, speedup, seconds)))
    rows = summarise(found)
    good = show(rows)
    if given.json and not given.replot:
        given.json.write_text(json.dumps({**found, "rows": rows}, indent=1) + "\n")
    if given.svg:
        given.svg.write_text(draw(found, rows))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
