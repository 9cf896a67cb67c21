"""The line that says how far a run is."""

from __future__ import annotations

import io

from switchyard.evals.progress import ProgressLine

from .runs import finished


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_one_line_that_goes_away() -> None:
    out = Terminal()
    progress = ProgressLine(10, out)
    for done in (11, 12):
        progress.note(finished("big", f"c{done}"), done, 40)
    progress.end()
    shown = out.getvalue()
    assert shown.count("\n") == 0
    assert "12/40  30%  big c12 pass  about 0 s left" in shown
    assert shown.endswith("\r\x1b[K")


def test_a_log_has_few_lines() -> None:
    out = io.StringIO()
    progress = ProgressLine(0, out)
    for done in range(1, 101):
        progress.note(finished("big", "c"), done, 100)
    progress.end()
    assert [line.split()[0] for line in out.getvalue().splitlines()] == ["1/100", "100/100"]
