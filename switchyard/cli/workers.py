"""`serve --workers N`: starts the worker processes, which share one listening socket, and starts another when one dies.

The parent serves nothing. It holds the socket, so that no connection is lost between a worker's death and its successor;
passes signals on; and ends when all workers have. When the parent itself dies, the workers drain.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import MutableMapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from secrets import token_hex
from types import FrameType

from switchyard.telemetry.added_up import forget_worker

VARIABLE = "SWITCHYARD_WORKER"
TICK_S = 0.05
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 10.0  # before a worker that keeps dying is started again
GRACE_S = 10.0  # on top of the time to drain

log = logging.getLogger("switchyard.workers")


@dataclass(frozen=True)
class Worker:
    """What a worker is told by its parent.

    Attributes:
        number: from 1.
        count: of workers.
        crew: name that they have in common.
        folder: for metrics.
        listener: file descriptor of the socket.
        lifeline: file descriptor that ends when the parent does.
        serving: file descriptor on which it says that it takes requests.
    """

    number: int
    count: int
    crew: str
    folder: str
    listener: int
    lifeline: int
    serving: int

    @staticmethod
    def take_from(environment: MutableMapping[str, str]) -> Worker | None:
        """The place of this process, if it is a worker; children of its own don't get to see it."""
        text = environment.pop(VARIABLE, None)
        return Worker(**json.loads(text)) if text else None

    def drain_with_parent(self) -> None:
        """From now on, end as on SIGTERM when the parent is gone."""

        def wait() -> None:
            os.read(self.lifeline, 1)
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=wait, name="parent", daemon=True).start()

    def say_that_it_serves(self) -> None:
        """Tell the parent that this worker can run."""
        os.write(self.serving, b"1")


@dataclass
class _Running:
    process: subprocess.Popen[bytes]
    began_s: float


class Crew:
    """The workers of one `serve`.

    Args:
        command: starts a worker.
        count: of workers.
        listener: what they listen on.
        drain_s: longest time that they need to end.
    """

    def __init__(self, command: Sequence[str], count: int, listener: socket.socket, drain_s: float) -> None:
        self._command = list(command)
        self._count = count
        self._listener = listener
        self._drain_s = drain_s
        self._running: dict[int, _Running] = {}
        self._start_at_s: dict[int, float] = dict.fromkeys(range(1, count + 1), 0.0)
        self._deaths: dict[int, int] = {}
        self._signals: list[int] = []
        self._stopping_since_s = 0.0
        self._crew = token_hex(8)
        self._lifeline = os.pipe()
        self._serving = os.pipe()
        os.set_blocking(self._serving[0], False)
        self._settled = False  # a worker has served: they can

    def run(self) -> int:
        """Run until a signal ends it; gives the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._note_signal)
        code = 0
        with tempfile.TemporaryDirectory(prefix="switchyard-workers-") as folder:
            try:
                while not (self._stopping_since_s and not self._running):
                    self._pass_signals_on()
                    code = self._bury(Path(folder)) or code
                    self._start_due(folder)
                    self._end_late_ones()
                    time.sleep(TICK_S)
            finally:
                for running in self._running.values():
                    running.process.kill()
                    running.process.wait()
        return code

    def _note_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)

    def _pass_signals_on(self) -> None:
        signals, self._signals = self._signals, []
        for number in signals:
            if number == signal.SIGHUP:
                self._send(signal.SIGHUP)
            else:
                self._stop()

    def _stop(self) -> None:
        """The workers drain; a second time they end at once."""
        if not self._stopping_since_s:
            self._stopping_since_s = time.monotonic()
            self._listener.close()  # the workers' own copies go when they have said so long enough
        self._start_at_s.clear()
        self._send(signal.SIGTERM)

    def _send(self, number: int) -> None:
        for running in self._running.values():
            running.process.send_signal(number)

    def _bury(self, folder: Path) -> int:
        """Note who has died, and when its successor is due; gives an exit code when there is no point in going on."""
        code = 0
        now_s = time.monotonic()
        for number, running in list(self._running.items()):
            ended = running.process.poll()
            if ended is None:
                continue
            del self._running[number]
            forget_worker(running.process.pid, folder)
            if self._stopping_since_s:
                continue
            if not self._one_has_served() and ended > 0:
                code = ended
                self._stop()
                continue
            self._deaths[number] = 1 if now_s - running.began_s > LONGEST_PAUSE_S else self._deaths.get(number, 0) + 1
            pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (self._deaths[number] - 1))
            self._start_at_s[number] = now_s + pause_s
            how = f"was killed by signal {-ended}" if ended < 0 else f"has ended with exit code {ended}"
            log.error("worker %d (process %d) %s; another is started in %.1f s", number, running.process.pid, how, pause_s)
        return code

    def _one_has_served(self) -> bool:
        """Whether workers can run at all: time wouldn't tell, a slow machine needs long to find out that they can't."""
        with contextlib.suppress(BlockingIOError):
            self._settled = os.read(self._serving[0], 4096) != b"" or self._settled
        return self._settled

    def _start_due(self, folder: str) -> None:
        for number, at_s in list(self._start_at_s.items()):
            if time.monotonic() >= at_s:
                del self._start_at_s[number]
                self._running[number] = _Running(self._start(number, folder), time.monotonic())

    def _start(self, number: int, folder: str) -> subprocess.Popen[bytes]:
        listener, lifeline, serving = self._listener.fileno(), self._lifeline[0], self._serving[1]
        worker = Worker(number, self._count, self._crew, folder, listener, lifeline, serving)
        return subprocess.Popen(
            self._command,
            env=os.environ | {VARIABLE: json.dumps(asdict(worker))},
            pass_fds=[listener, lifeline, serving],
            process_group=0,  # Ctrl-C comes to the parent alone, which passes it on
        )

    def _end_late_ones(self) -> None:
        if self._stopping_since_s and time.monotonic() - self._stopping_since_s > self._drain_s + GRACE_S:
            for running in self._running.values():
                running.process.kill()


def worker_command(arguments: Sequence[str]) -> list[str]:
    """How a worker of this command line is started."""
    return [sys.executable, "-m", "switchyard", "serve", *arguments]
