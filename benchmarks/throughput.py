"""What routing gains on eight nodes: routed throughput against all-big, emulated over real sockets and simulated.

usage: throughput.py [--shares 1,0.9,0.75,0.5,0.35,0.25,0.15] [--speedup 20] [--seconds 600] [--json OUT] [--svg OUT]

Each arm is an emulated cluster (`switchyard cluster emulate`), the real gateway in front of it (`switchyard serve`) and more
clients than the cluster has places, each with its next request as soon as it has its answer. Requests carry a label that the
policy's rule reads, and labels come in exact quotas: of the first n requests, round(n f) are hard. Answers have 100 to 300
tokens, the same lengths for both kinds. Completions are counted between the warm-up and the end, before the tail.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
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

HERE = Path(__file__).resolve().parent
SWITCHYARD = [str(Path(sys.executable).with_name("switchyard"))]
PROMPT_TOKENS = 500
ANSWER_TOKENS = range(100, 301)
WARM_UP = 0.25
"""Share of the run that isn't counted: queues fill, batches fall out of step."""
PLACES_TIMES = 2.0
"""Clients for each place of the cluster: the queue of the slower pool is never empty."""
LABEL = "x-label"


@dataclass
class Point:
    """One measured or simulated arm.

    Attributes:
        share: of hard requests that was asked for.
        realised: share of hard ones among those counted.
        requests_s: completions in an emulated second.
        gateway_cpu: share of a core that the gateway took; None where there was none.
    """

    share: float
    realised: float
    requests_s: float
    counted: int
    failed: int
    gateway_cpu: float | None = None


def arms(share: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """Cluster and policy of the routed arm; of the all-big one for share 0."""
    cluster = yaml.safe_load((HERE / "throughput.yaml").read_text())
    limits = {"queue": 10_000, "queue_timeout_s": 3600}
    pools = {name: {"limits": {**limits, "in_flight": p["engine"]["max_num_seqs"]}} for name, p in cluster["pools"].items()}
    if not share:
        cluster["pools"]["big"]["replicas"] = 4
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
        yield round(n * share) > round((n - 1) * share)


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
                    load = Load(port, share, int(places * PLACES_TIMES))
                    began, cpu_s = time.monotonic(), _cpu_s(gateway.pid)
                    asyncio.run(load.run(seconds / speedup))
                    cpu = (_cpu_s(gateway.pid) - cpu_s) / (time.monotonic() - began)
                finally:
                    gateway.send_signal(signal.SIGTERM)
                    gateway.send_signal(signal.SIGTERM)
        finally:
            emulator.send_signal(signal.SIGTERM)
    return count(share, load.done, seconds, speedup, load.failed, cpu)


def count(
    share: float, done: list[tuple[float, bool]], seconds: float, speedup: float, failed: int, cpu: float | None
) -> Point:
    """Completions after the warm-up. `done`: when, in seconds of the run's own clock, and whether it was hard."""
    begin, end = seconds / speedup * WARM_UP, seconds / speedup
    counted = [hard for at_s, hard in done if begin <= at_s < end]
    return Point(share, sum(counted) / len(counted), len(counted) / (end - begin) / speedup, len(counted), failed, cpu)


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
        self._next = (
            zip(quotas(share), itertools.count(), strict=False)
            if share
            else zip(itertools.repeat(True), itertools.count(), strict=False)
        )
        self._random = Random(1)
        self.done: list[tuple[float, bool]] = []
        self.failed = 0

    async def run(self, real_s: float) -> None:
        """Ask for so long; what runs at the end is dropped."""
        self._began = time.monotonic()
        tasks = [asyncio.create_task(self._ask_on()) for _ in range(self._clients)]
        await asyncio.sleep(real_s)
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    async def _ask_on(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 20)
        try:
            while True:
                hard, number = next(self._next)
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
        length = ANSWER_TOKENS[number * 7919 % len(ANSWER_TOKENS)]
        body = json.dumps({
            "model": "auto", "messages": [{"role": "user", "content": text}], "max_tokens": length, "ignore_eos": True,
            "stream": True,
        }).encode()  # fmt: skip
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{LABEL}: {'hard' if hard else 'easy'}\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        return head.encode() + body


def main() -> int:
    """Run all arms."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shares", default="1,0.9,0.75,0.5,0.35,0.25,0.15")
    parser.add_argument("--speedup", type=float, default=20.0)
    parser.add_argument("--seconds", type=float, default=600.0, help="emulated seconds of each arm")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        base = run_emulated(0, given.speedup, given.seconds, Path(work))
        print("all big", asdict(base))
        for share in map(float, given.shares.split(",")):
            point = run_emulated(share, given.speedup, given.seconds, Path(work))
            gain = point.requests_s / base.requests_s
            print(
                f"{share} {point} gain {gain:.3f} expected {3 / 4 / point.realised:.3f} off {gain * point.realised * 4 / 3 - 1:+.2%}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
