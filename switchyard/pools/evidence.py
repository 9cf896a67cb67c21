"""What real traffic says about a replica: failures in a row, ejection with growing back-off, slow return. Pure; time comes in.

A client's mistakes, cancelled requests and context overflows are nobody's fault and never come here.
"""

from __future__ import annotations

FAILURES_IN_A_ROW = 3
FIRST_BACK_OFF_S = 2.0
LONGEST_BACK_OFF_S = 60.0
SLOW_START_S = 10.0
"""A replica that has come back gets its full share only after this."""
SLOWEST_PREFILL_TOKENS_S = 1_000.0
"""Prompt tokens a second that a working engine surely does: patience for a long prefill, during which no counter moves."""


class Evidence:
    """The record of one replica.

    Attributes:
        failures: failures in a row.
        ejections: how often it was ejected since it last worked for a while.
        back_at_s: when it may be tried again; 0 when it is not ejected.
        returned_s: when it last came back.
    """

    def __init__(self) -> None:
        self.failures = 0
        self.ejections = 0
        self.back_at_s = 0.0
        self.returned_s = 0.0
        self._progress: tuple[float, ...] = ()
        self._moved_s = 0.0

    def note_good(self) -> None:
        """A request was answered."""
        self.failures = 0

    def note_bad(self) -> bool:
        """A request failed by the engine's fault; True when that is enough to eject it."""
        self.failures += 1
        return self.failures >= FAILURES_IN_A_ROW

    def eject(self, now_s: float) -> float:
        """Take it out; gives the seconds until it may be tried again, doubling each time."""
        if now_s - self.returned_s > LONGEST_BACK_OFF_S and self.returned_s:
            self.ejections = 0
        back_off_s: float = min(LONGEST_BACK_OFF_S, FIRST_BACK_OFF_S * 2**self.ejections)
        self.ejections += 1
        self.back_at_s = now_s + back_off_s
        return back_off_s

    def extend(self, now_s: float) -> float:
        """A try has failed: wait longer."""
        return self.eject(now_s)

    def readmit(self, now_s: float) -> None:
        """A real completion worked."""
        self.failures = 0
        self.back_at_s = 0.0
        self.returned_s = now_s
        self._progress = ()

    def share(self, now_s: float) -> float:
        """How much of its normal load it may take (0..1): grows after it has come back."""
        if not self.returned_s:
            return 1.0
        return min(1.0, 0.1 + 0.9 * (now_s - self.returned_s) / SLOW_START_S)

    def stalled(self, running: float, progress: tuple[float, ...], tokens_in_flight: int, stall_s: float, now_s: float) -> bool:
        """Whether it works on requests and nothing has moved for too long.

        Args:
            running: requests the engine says it works on.
            progress: its counters of work (generated tokens, prompt tokens, cache usage), in any fixed order.
            tokens_in_flight: estimated tokens of our own requests on it: a long prefill moves no counter.
            stall_s: the policy's patience besides.
            now_s: time of this reading.
        """
        if running <= 0 or progress != self._progress:
            self._progress = progress
            self._moved_s = now_s
            return False
        return now_s - self._moved_s > stall_s + tokens_in_flight / SLOWEST_PREFILL_TOKENS_S
