"""What traffic and its own figures say about a replica: failures in a row, stalls, growing back-off, slow return.

Pure; time comes in. A client's mistakes, cancelled requests and context overflows are nobody's fault and never come here.
"""

from __future__ import annotations

FAILURES_IN_A_ROW = 3
SUSPICIOUS = 2
"""After so many failures in a row the replica is asked for a token, so that no third client has to find out."""
FIRST_BACK_OFF_S = 5.0
LONGEST_BACK_OFF_S = 60.0
SLOW_START_S = 10.0
"""A replica that has come back gets its full share only after this."""
PREFILL_TOKENS_S = 1_000.0
"""Prompt tokens a second that a working engine does, until it has shown that it is slower."""
SLOWEST_PREFILL_TOKENS_S = 100.0
"""What is seen as slower than this was something else than a prefill."""
LONG_PROMPT_TOKENS = 2_000
"""Shorter prompts say nothing about the speed of a prefill."""


class Evidence:
    """The record of one replica.

    Attributes:
        failures: failures in a row.
        ejections: how often it was ejected since it last worked for a while.
        back_at_s: when it may be tried again; 0 when it is not ejected.
        returned_s: when it last came back; 0 when it never was away.
        worked_s: when it last gave a good answer, or was asked for one; 0 when never.
        prefill_tokens_s: the slowest prefill that was seen.
    """

    def __init__(self) -> None:
        self.failures = 0
        self.ejections = 0
        self.back_at_s = 0.0
        self.returned_s = 0.0
        self.worked_s = 0.0
        self.prefill_tokens_s = PREFILL_TOKENS_S
        self._progress: tuple[float, ...] = ()
        self._moved_s = 0.0

    @property
    def suspicious(self) -> bool:
        """Whether it should show that it works."""
        return self.failures >= SUSPICIOUS

    def note_good(self, now_s: float) -> None:
        """A request was answered."""
        self.failures = 0
        self.worked_s = now_s

    def note_bad(self) -> bool:
        """A request failed by the engine's fault; True when that is enough to eject it."""
        self.failures += 1
        return self.failures >= FAILURES_IN_A_ROW

    def note_prefill(self, tokens: int, took_s: float) -> None:
        """The first token of a lone request came after so long: patience grows with engines that are slow."""
        if tokens >= LONG_PROMPT_TOKENS and took_s > 0:
            self.prefill_tokens_s = max(SLOWEST_PREFILL_TOKENS_S, min(self.prefill_tokens_s, tokens / took_s))

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
        """It works again, shown by a completion or, where it was only down, by its health path."""
        self.failures = 0
        self.back_at_s = 0.0
        self.returned_s = self.worked_s = now_s
        self._progress = ()

    def share(self, now_s: float) -> float:
        """How much of its normal load it may take (0..1): grows after it has come back."""
        if not self.returned_s:
            return 1.0
        return min(1.0, 0.1 + 0.9 * (now_s - self.returned_s) / SLOW_START_S)

    def patience_s(self, stall_s: float, prefill_tokens: int) -> float:
        """How long nothing may move: the policy's `stall_s`, and the time that these prompts may take it."""
        return stall_s + prefill_tokens / self.prefill_tokens_s

    def still_s(self, working: bool, progress: tuple[float, ...], now_s: float) -> float:
        """Seconds for which it has been working with nothing moving; 0 when it is idle or something moved.

        Args:
            working: whether it has something to do, by its own figures or by ours.
            progress: figures that move while it works, in any fixed order.
            now_s: time of this reading.
        """
        if not working or progress != self._progress:
            self._progress = progress
            self._moved_s = now_s
        return now_s - self._moved_s
