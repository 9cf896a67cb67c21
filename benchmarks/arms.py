"""What answers the requests of bench.py, how it is started, and one measurement of it."""

from __future__ import annotations

import http.client
import json
import shlex
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import bodies
import peers as peers_module
from measured import METRICS, Result
from peers import PEERS, Place
from processes import clean_environment, compiled, free_port, memory_mb, prepared, process_tree, set_realtime, stop


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
