"""An event loop whose time jumps: when nothing is ready, the clock goes to the next timer at once."""

from __future__ import annotations

import asyncio
import selectors


class NothingLeft(RuntimeError):
    """Everything waits and no timer runs: it would wait for ever."""


class _Skipping(selectors.SelectSelector):
    """A selector that, instead of waiting, lets the time pass. No file is ever ready."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise NothingLeft("everything waits, and nothing will happen any more")
        self.now_s += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop on virtual time, which begins at 0. Nothing may come from outside it: no sockets, no threads."""

    def __init__(self) -> None:
        self._skipping = _Skipping()
        super().__init__(self._skipping)

    def time(self) -> float:
        """Virtual seconds."""
        return self._skipping.now_s
