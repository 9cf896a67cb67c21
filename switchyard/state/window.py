"""How much came in the last minute, by the second. Pure; time comes in."""

from __future__ import annotations

from collections import deque

WINDOW_S = 60


class Window:
    """A sliding minute. What came in a second counts until no part of that second is younger than a minute.

    So a limit is never exceeded within any 60 s, and a steady rate gets at least 60/61 of it.
    """

    __slots__ = ("_seconds", "_total")

    def __init__(self) -> None:
        self._seconds: deque[list[int]] = deque()  # [second, amount], rising
        self._total = 0

    def total(self, now_s: float) -> int:
        """What counts now."""
        while self._seconds and self._seconds[0][0] < int(now_s) - WINDOW_S:
            self._total -= self._seconds.popleft()[1]
        return self._total

    def add(self, amount: int, now_s: float) -> None:
        """Something came."""
        self._total += amount
        second = int(now_s)
        if self._seconds and self._seconds[-1][0] >= second:
            self._seconds[-1][1] += amount
        else:
            self._seconds.append([second, amount])

    def take_back(self, amount: int, second: int) -> None:
        """Less had come in a second than was said then; nothing when that is long ago."""
        for slot in reversed(self._seconds):
            if slot[0] <= second:
                if slot[0] == second:
                    amount = min(amount, slot[1])
                    slot[1] -= amount
                    self._total -= amount
                return

    def room_in_s(self, amount: int, limit: int, now_s: float) -> int:
        """Whole seconds until `amount` more fits under a limit that it fits under by itself."""
        left = self.total(now_s)
        for second, held in self._seconds:
            left -= held
            if left + amount <= limit:
                return max(1, second + WINDOW_S + 1 - int(now_s))
        return 1
