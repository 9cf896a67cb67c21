"""Graded prompts: what a score is held against. Plain values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Graded:
    """A request that both pools answered, with how good their answers were.

    Attributes:
        name: what it is called in messages: a line's number, a case, a request's id.
        small_ok: whether the small pool's answer was good.
        big_ok: whether the big pool's was.
        p: the score that it got under the policy as it is; None when no classifier gave one.
        by: who gave it.
        text: the human's words, for learning from; None where the source has none.
    """

    name: str
    small_ok: bool
    big_ok: bool
    p: float | None = None
    by: str = ""
    text: str | None = None

    @property
    def good(self) -> bool:
        """Whether the small pool's answer was as good: what p is the probability of."""
        return self.small_ok or not self.big_ok
