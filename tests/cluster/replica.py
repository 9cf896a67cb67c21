"""A vLLM replica on the nodes: a server on one, or ranks of one server over several. Built with `vllm_env`'s environment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.error import URLError
from urllib.request import Request, urlopen

from vllm_env import VllmEnv
from vllm_server import environment, serve_command

from .nodes import FABRIC, Node, end

MODEL = "smollm2"
PORT = 8000
MASTER_PORT = 29501
CONTEXT = 2048
READY_S = 300
"""Long: on two cores that others use too, three servers have taken three minutes."""


@dataclass(frozen=True)
class Rank:
    """One process of a replica.

    Attributes:
        node: where it runs.
        command: program and arguments.
        environment: all of it.
    """

    node: Node
    command: Sequence[str]
    environment: Mapping[str, str]


class Replica:
    """Ranks that serve one model together; the first has the HTTP server. A context manager: inside, it is started.

    Args:
        name: for its logs.
        ranks: in their order.
        folder: for logs, and where the ranks run.
    """

    def __init__(self, name: str, ranks: Sequence[Rank], folder: Path) -> None:
        self.name = name
        self.ranks = ranks
        self.url = f"http://{ranks[0].node.mgmt}:{PORT}"
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start all ranks and return at once."""
        self._processes = [
            rank.node.start(rank.command, rank.environment, self._log(number), self._folder)
            for number, rank in enumerate(self.ranks)
        ]

    def wait_ready(self, within_s: float = READY_S) -> None:
        """Wait until its health path is good."""
        deadline = time.monotonic() + within_s
        while not self.answers_health():
            ended = [number for number, process in enumerate(self._processes) if process.poll() is not None]
            assert not ended, f"{self.name}: ranks {ended} have ended before it was ready\n{self.last_words()}"
            assert time.monotonic() < deadline, f"{self.name}: not ready after {within_s:g} s\n{self.last_words()}"
            time.sleep(0.2)

    def answers_health(self) -> bool:
        """Whether /health says 200 now."""
        with suppress(URLError, OSError), urlopen(self.url + "/health", timeout=5) as answer:
            return bool(answer.status == 200)
        return False

    def works(self) -> bool:
        """Whether it gives a token within a few seconds."""
        body = {"model": MODEL, "prompt": "Hi", "max_tokens": 1}
        request = Request(self.url + "/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})
        with suppress(URLError, OSError), urlopen(request, timeout=20) as answer:
            return bool(answer.status == 200)
        return False

    def restart(self) -> None:
        """All ranks anew, as a supervisor does when one has died: ranks can't join a group that runs."""
        self.stop()
        self.start()
        self.wait_ready()

    def metric(self, name: str) -> float:
        """The sum of one of the engine's metrics over its labels."""
        with urlopen(self.url + "/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((name + "{", name + " ")))

    def kill(self, rank: int) -> None:
        """SIGKILL one rank with its workers, as when a node's memory runs out."""
        end(self._processes[rank])

    def wait_ended(self, rank: int, within_s: float) -> int:
        """Wait until a rank has ended by itself; gives its exit code."""
        return self._processes[rank].wait(within_s)

    def stop(self) -> None:
        """End all ranks, the way a supervisor does it: asked first, then killed."""
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            end(process)
        self._processes = []

    def last_words(self) -> str:
        """The ends of the ranks' logs, for messages."""
        tails = []
        for number in range(len(self.ranks)):
            lines = self._log(number).read_text(errors="replace").splitlines() if self._log(number).exists() else []
            tails.append("\n".join([f"--- {self.name}, rank {number}:", *lines[-25:]]))
        return "\n".join(tails)

    def _log(self, number: int) -> Path:
        return self._folder / f"{self.name}-rank{number}.log"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


def one_node_ranks(env: VllmEnv, node: Node) -> list[Rank]:
    """A replica on one node."""
    return [Rank(node, _serve(env, env.model_dir), {**environment(env), **own_core(1)})]


def two_node_ranks(env: VllmEnv, head: Node, other: Node) -> list[Rank]:
    """A tensor-parallel replica over two nodes, which have a cable between them."""
    group = ["--tensor-parallel-size", "2", "--nnodes", "2", "--master-addr", head.fabric, "--master-port", str(MASTER_PORT)]
    ranks = []
    for number, node in enumerate((head, other)):
        here = {"VLLM_HOST_IP": node.fabric, "GLOO_SOCKET_IFNAME": FABRIC, **own_core(number)}
        command = [*_serve(env, env.model_tp_dir), *group, "--node-rank", str(number), *(["--headless"] if number else [])]
        ranks.append(Rank(node, command, {**environment(env), **here}))
    return ranks


def _serve(env: VllmEnv, model: Path) -> list[str]:
    return serve_command(env, model, "0.0.0.0", PORT, MODEL, CONTEXT, max_num_seqs=8)


def own_core(number: int) -> dict[str, str]:
    """One core for each rank, so that ranks of one step don't wait for each other's turn."""
    cores = sorted(os.sched_getaffinity(0))
    return {"VLLM_CPU_OMP_THREADS_BIND": str(cores[number % len(cores)])}
