"""The nodes themselves: they see each other and no more, and nothing is left of them, however a test run ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from integration.client import eventually

from .nodes import Node

TESTS = Path(__file__).parents[1]
RUN = """
import time
from pathlib import Path
from agents.network import loopback_only
from cluster.nodes import nodes
with loopback_only(), nodes(1) as (node,):
    sleeper = node.start(["sleep", "1000"], {"PATH": "/usr/bin:/bin"}, Path("log"), Path("."))
    print(sleeper.pid, node.pid, flush=True)
    time.sleep(1000)
"""


def test_they_see_each_other_and_no_more(machines: list[Node], tmp_path: Path) -> None:
    first, second, third = machines

    def reaches(node: Node, address: str) -> bool:
        command = ["python3", "-c", f"import socket; socket.create_connection(('{address}', 9), 1)"]
        log = tmp_path / "log"
        node.start(command, dict(os.environ), log, tmp_path).wait(30)
        said, _ = log.read_text(), log.unlink()
        return "Connection refused" in said  # nobody listens there, but somebody is there

    assert reaches(first, second.fabric)
    assert reaches(second, first.fabric)
    assert not reaches(third, first.fabric)
    assert not reaches(first, third.mgmt)


def test_a_killed_run_leaves_nothing(machines: list[Node], tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    run = subprocess.Popen([sys.executable, "-c", RUN], stdout=subprocess.PIPE, cwd=tmp_path, env=environment)
    assert run.stdout is not None
    pids = [int(pid) for pid in run.stdout.readline().split()]
    assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    run.send_signal(signal.SIGKILL)
    run.wait()
    run.stdout.close()
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 10)
