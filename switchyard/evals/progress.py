"""How far a run is and what is left: one line that updates on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import time
from typing import TextIO

from switchyard.evals.folder import Finished

LINE_EVERY_S = 10.0  # where lines can't be updated


class ProgressLine:
    """See the module.

    Args:
        done: trials that were finished before; they say nothing about the time that is left.
        stream: where to write.
    """

    def __init__(self, done: int, stream: TextIO) -> None:
        self._began_s, self._before = time.monotonic(), done
        self._shown_s = 0.0
        self._stream, self._live = stream, stream.isatty()

    def note(self, trial: Finished, done: int, total: int) -> None:
        """See `runner.Progress`."""
        now_s = time.monotonic()
        if not self._live and now_s - self._shown_s < LINE_EVERY_S and done < total:
            return
        self._shown_s = now_s
        left_s = (now_s - self._began_s) / (done - self._before) * (total - done)
        text = f"{done}/{total}  {done / total:.0%}  {trial.arm} {trial.case} {trial.state}  about {_duration(left_s)} left"
        self._write(f"\r\x1b[K{text}" if self._live else f"{text}\n")

    def end(self) -> None:
        """Leave the line."""
        if self._live:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
