"""Processes and the machine: cores, priorities, memory, ports, and programs in C."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "LD_PRELOAD")


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


def cpu_times() -> tuple[int, int]:
    """All ticks of all cores, and those that the host of a virtual machine took away."""
    ticks = [int(x) for x in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(ticks), ticks[7]
