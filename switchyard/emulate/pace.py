"""Time of emulated engines: it passes faster than real time, and for each engine it can run slow or stand still."""

from __future__ import annotations

from collections.abc import Callable


class Pace:
    """The clock of one engine, in emulated seconds.

    Args:
        read_s: real time, like `loop.time`.
        speedup: emulated seconds in a real one.
    """

    def __init__(self, read_s: Callable[[], float], speedup: float = 1.0) -> None:
        self._read_s = read_s
        self.speedup = speedup
        self._rate = 1.0
        self._base_s = 0.0
        self._since_s = read_s()

    def now_s(self) -> float:
        """Emulated time of the engine."""
        return self._base_s + (self._read_s() - self._since_s) * self.speedup * self._rate

    def set_rate(self, rate: float) -> None:
        """From now on, let so much of its time pass in each emulated second; 0 stops it."""
        self._base_s, self._since_s, self._rate = self.now_s(), self._read_s(), rate

    def real_s_until(self, at_s: float) -> float | None:
        """Real seconds until its clock shows this; None while it stands still."""
        if not self._rate:
            return None
        return max(0.0, (at_s - self.now_s()) / (self.speedup * self._rate))
