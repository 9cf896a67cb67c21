"""Log lines for people, and the decision log: one JSON line for each request, none lost.

Lines of the decision log are gathered in memory and written in batches, at least every half second and at the end.
"""

from __future__ import annotations

import logging
from collections import deque
from pathlib import Path
from typing import TextIO

import msgspec

from switchyard.telemetry.record import Record

log = logging.getLogger("switchyard.decisions")


def set_up_logging(stream: TextIO, verbose: bool = False, level: str = "INFO", who: str = "") -> None:
    """Plain lines on a stream; uvicorn's and ours look alike, httpx is silent unless `verbose`.

    Args:
        stream: where they go.
        verbose: more of them.
        level: least important ones.
        who: begins what a line says, where several processes write.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)-7s {who}%(name)s: %(message)s", "%H:%M:%S"))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel("DEBUG" if verbose else level)
    for noisy in ("httpx", "httpcore", "asyncio", "uvicorn"):
        logging.getLogger(noisy).setLevel("INFO" if verbose else "WARNING")


class DecisionLog:
    """Appends records to a file, in batches: `note` gathers, `flush` writes and may run in another thread.

    When the disk refuses, lines wait in memory up to a bound, and the log says so once.
    """

    MAX_WAITING_BYTES = 32 * 1024 * 1024

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._waiting: deque[bytes] = deque()
        self._noted_bytes = 0  # written to by `note` only, the next by `flush` only: they may be in two threads
        self._written_bytes = 0
        self._failing = False
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("ab", buffering=0)

    def note(self, record: Record) -> None:
        """Add a line."""
        line = msgspec.json.encode(record.as_line()) + b"\n"
        if self._noted_bytes - self._written_bytes + len(line) > self.MAX_WAITING_BYTES:
            self._complain("more than %d MB wait to be written; new records are dropped", self.MAX_WAITING_BYTES >> 20)
            return
        self._waiting.append(line)
        self._noted_bytes += len(line)

    def flush(self) -> None:
        """Write what waits; lines that come meanwhile wait for the next time."""
        lines = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if not lines:
            return
        data = b"".join(lines)
        try:
            written = self._file.write(data) or 0
        except OSError as error:
            written = 0
            self._complain("%s can't be written: %s; records wait in memory", self._path, error)
        else:
            self._failing = False
        if written < len(data):
            self._waiting.appendleft(data[written:])
        self._written_bytes += written

    def close(self) -> None:
        """Write the rest and close."""
        self.flush()
        self._file.close()

    def _complain(self, message: str, *details: object) -> None:
        if not self._failing:
            log.error(message, *details)
        self._failing = True
