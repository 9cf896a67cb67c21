"""A server process of our own: started in its own process group, waited for, and always ended.

Both the demo's engine and the tests' engines are such processes. What is started and with which options is the
caller's business.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

LOOPBACK = "127.0.0.1"

_POLL_INTERVAL_S = 0.05
_PROBE_TIMEOUT_S = 5.0
_TAIL_BYTES = 8192


class EngineFailed(Exception):
    """An engine did not start or did not become ready; the message ends with what it wrote last."""


class EngineProcess:
    """One engine as a child process that listens on the loopback address.

    Use it as a context manager (`with` starts and stops it; `async with` also waits until it is ready), or call
    `start`, `wait_ready` and `stop`. Nothing is left running after `stop`, the engine's own children included.

    Args:
        command: The program and its arguments.
        name: What to call it in messages.
        port: The port it was told to listen on.
        ready_within_s: How long it may take to answer `/health` after its start.
        environ: Its whole environment; this process's own if left out.
        log_path: Where its output goes; an unnamed temporary file if left out.
        stop_within_s: How long it may take to end on SIGTERM before it is killed.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str,
        port: int,
        ready_within_s: float,
        environ: Mapping[str, str] | None = None,
        log_path: Path | None = None,
        stop_within_s: float = 5.0,
    ) -> None:
        self.command = list(command)
        self.name = name
        self.port = port
        self.log_path = log_path
        self._ready_within_s = ready_within_s
        self._stop_within_s = stop_within_s
        self._environ = environ
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    @property
    def url(self) -> str:
        """The engine's base address, without a path."""
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The process's id, which is also its group's; None while it is not started."""
        return self._process.pid if self._process else None

    @property
    def is_running(self) -> bool:
        """Whether the process was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process and return at once."""
        if self._process is not None:
            raise RuntimeError(f"{self.name} was started already")
        # A stranger on our port would answer `/health` in the engine's place.
        if reason := why_taken(self.port):
            raise EngineFailed(f"{self.name} cannot have port {self.port}: {reason}")
        # Opened for both, since the same file later shows the last lines of a process that failed.
        log = self.log_path.open("w+b") if self.log_path else tempfile.TemporaryFile()  # noqa: SIM115 (closed by stop)
        try:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environ,
                # A group of its own: Ctrl-C in a terminal reaches only us, and `stop` reaches all its children.
                process_group=0,
            )
        except OSError as error:
            log.close()
            raise EngineFailed(f"{self.name} did not start: {error}") from error
        self._log = log

    async def wait_ready(self, timeout_s: float | None = None) -> None:
        """Wait until `/health` answers 200.

        Raises:
            EngineFailed: The process ended first, or was not ready in time (`ready_within_s` unless given here).
        """
        timeout_s = self._ready_within_s if timeout_s is None else timeout_s
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        deadline = time.monotonic() + timeout_s
        while True:
            if (status := self._process.poll()) is not None:
                raise EngineFailed(f"{self.name} ended with status {status} before it was ready{self._quoted_tail()}")
            if await _answers_health(self.port):
                return
            if time.monotonic() >= deadline:
                raise EngineFailed(f"{self.name} was not ready after {timeout_s:g} s{self._quoted_tail()}")
            await asyncio.sleep(_POLL_INTERVAL_S)

    def stop(self) -> None:
        """End the process and everything in its group; does nothing if there is none."""
        process, self._process = self._process, None
        if process is not None:
            _signal_group(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(self._stop_within_s)
            # Also after a clean end: a child that outlived the first process is still in the group.
            _signal_group(process.pid, signal.SIGKILL)
            process.wait()
            _wait_group_gone(process.pid, self._stop_within_s)
        if self._log is not None:
            self._log.close()
            self._log = None

    def tail(self, lines: int = 10) -> str:
        """The last lines that the process wrote, while it is started."""
        if self._log is None:
            return ""
        size = os.fstat(self._log.fileno()).st_size
        # pread: the child writes through the same file offset, which must not move.
        text = os.pread(self._log.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES)).decode(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def _quoted_tail(self) -> str:
        text = self.tail()
        return f". Its last lines:\n{text}" if text else "; it wrote nothing"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        try:
            await asyncio.to_thread(self.start)
            await self.wait_ready()
        except BaseException:
            await asyncio.to_thread(self.stop)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)


def pick_port() -> int:
    """A loopback port that is free now; another process may still take it before its user does."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def why_taken(port: int) -> str | None:
    """Why nobody can listen on a loopback port now; None if that is possible."""
    try:
        with socket.create_server((LOOPBACK, port)):
            return None
    except OSError as error:
        return os.strerror(error.errno) if error.errno else str(error)


async def _answers_health(port: int) -> bool:
    """Whether `GET /health` gets a 200; written out to spare the demo an HTTP client."""
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            try:
                writer.write(f"GET /health HTTP/1.1\r\nHost: {LOOPBACK}:{port}\r\nConnection: close\r\n\r\n".encode())
                return (await reader.readline()).split(b" ")[1:2] == [b"200"]
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    except OSError:  # refused while it loads, or silent for too long (TimeoutError is one)
        return False


def _signal_group(group: int, number: int) -> bool:
    """Send a signal to a process group; False if it has no living process left."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):  # the latter is macOS's answer where only dead ones are left
        return False
    return True


def _wait_group_gone(group: int, timeout_s: float) -> None:
    """Give killed processes a moment to disappear, so that their ports and memory are free when we return."""
    deadline = time.monotonic() + timeout_s
    while _signal_group(group, 0) and time.monotonic() < deadline:
        time.sleep(_POLL_INTERVAL_S)
