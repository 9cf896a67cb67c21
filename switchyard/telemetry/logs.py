"""Log lines for people, and the decision log: one JSON line for each request, none lost.

Lines of the decision log are gathered in memory and written in batches, at least every half second and at the end.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TextIO

import msgspec

from switchyard.telemetry.record import Record

BATCH_BYTES = 256 * 1024
log = logging.getLogger("switchyard.decisions")


def set_up_logging(stream: TextIO, verbose: bool = False, level: str = "INFO") -> None:
    """Plain lines on a stream; uvicorn's and ours look alike, httpx is silent unless `verbose`."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%H:%M:%S"))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel("DEBUG" if verbose else level)
    for noisy in ("httpx", "httpcore", "asyncio", "uvicorn"):
        logging.getLogger(noisy).setLevel("INFO" if verbose else "WARNING")


class DecisionLog:
    """Appends records to a file. When the disk refuses, lines wait in memory up to a bound and the log says so once."""

    MAX_WAITING_BYTES = 32 * 1024 * 1024

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._waiting: list[bytes] = []
        self._size = 0
        self._failing = False
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("ab", buffering=0)

    def note(self, record: Record) -> None:
        """Add a line."""
        line = msgspec.json.encode(record.as_line()) + b"\n"
        if self._size + len(line) > self.MAX_WAITING_BYTES:
            self._complain("more than %d MB wait to be written; new records are dropped", self.MAX_WAITING_BYTES >> 20)
            return
        self._waiting.append(line)
        self._size += len(line)
        if self._size >= BATCH_BYTES and not self._failing:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        if not self._waiting:
            return
        data = b"".join(self._waiting)
        try:
            written = self._file.write(data) or 0
        except OSError as error:
            self._complain("%s can't be written: %s; records wait in memory", self._path, error)
            return
        self._waiting = [data[written:]] if written < len(data) else []
        self._size = len(data) - written
        self._failing = False

    def close(self) -> None:
        """Write the rest and close."""
        self.flush()
        self._file.close()

    def _complain(self, message: str, *details: object) -> None:
        if not self._failing:
            log.error(message, *details)
        self._failing = True
