"""A terminal with a person at it, for agents that do more there than in a pipe."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable

ROWS, COLUMNS = 50, 200
QUIET_S = 0.4
_CONTROL = re.compile(r"\x1b(?:\[[0-9;?<>=]*[a-zA-Z]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][A-Z0-9]|[=>78])")


class Terminal:
    """What a process sees as its terminal, and what it wrote there. Close it at the end."""

    def __init__(self) -> None:
        self._ours, self.theirs = pty.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self._raw = b""

    @property
    def text(self) -> str:
        """All that was written so far, without control sequences."""
        return _CONTROL.sub("", self._raw.decode(errors="replace"))

    def type_line(self, line: str) -> None:
        """Type, wait until the screen is quiet, and press Enter."""
        os.write(self._ours, line.encode())
        self.wait_quiet()
        os.write(self._ours, b"\r")

    def wait_for(self, what: Callable[[], bool], within_s: float) -> bool:
        """Read until something holds; whether it came to that."""
        deadline = time.monotonic() + within_s
        while not what():
            if time.monotonic() > deadline:
                return False
            self._read(0.05)
        return True

    def wait_quiet(self, within_s: float = 10) -> None:
        """Read until nothing more comes for a moment."""
        deadline = time.monotonic() + within_s
        while self._read(QUIET_S) and time.monotonic() < deadline:
            pass

    def wait_end(self, process: subprocess.Popen[bytes], within_s: float) -> bool:
        """Read until a process has ended; whether it did."""
        return self.wait_for(lambda: process.poll() is not None, within_s)

    def close(self) -> None:
        os.close(self._ours)
        os.close(self.theirs)

    def _read(self, wait_s: float) -> bool:
        if not select.select([self._ours], [], [], wait_s)[0]:
            return False
        try:
            data = os.read(self._ours, 65536)
        except OSError:  # nobody has the other side open any more
            return False
        self._raw += data
        return bool(data)
