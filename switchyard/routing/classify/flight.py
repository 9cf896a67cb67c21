"""Asking a slow thing as seldom as possible: remembered answers, one question for all who ask the same, a limit.

What is asked and what the answers mean is the caller's business. Keys are digests, so no text of prompts is kept here.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, Protocol, TypeVar

T = TypeVar("T")

DEFAULT_CONCURRENCY = 4
DEFAULT_CACHE_SIZE = 4096  # answers; about 1 MB
DEFAULT_CACHE_TTL_S = 600.0

How = Literal["asked", "cached", "joined"]


class Elsewhere(Protocol[T]):
    """Answers that other gateways have had, too."""

    async def find(self, key: bytes) -> T | None:
        """The answer to a question, if one is known; never waits long."""

    def keep(self, key: bytes, answer: T) -> None:
        """Let the others have it."""


class Busy(Exception):
    """As many questions as allowed are under way."""


@dataclass(slots=True)
class _Question(Generic[T]):
    """One that is under way, and how many wait for its answer."""

    task: asyncio.Task[T]
    waiting: int = 0
    found: bool = False  # elsewhere


class Flight(Generic[T]):
    """Shares answers among those who ask the same.

    Args:
        worth_keeping: whether an answer is good enough to be remembered; failures are not.
        concurrency: most questions under way at the same time.
        cache_size: most answers remembered, 0 for none; the longest unused goes first.
        cache_ttl_s: how long an answer is good for.
        clock: seconds, rising.
        elsewhere: asked before a question is put; left out: nobody.
    """

    def __init__(
        self,
        worth_keeping: Callable[[T], bool],
        concurrency: int = DEFAULT_CONCURRENCY,
        cache_size: int = DEFAULT_CACHE_SIZE,
        cache_ttl_s: float = DEFAULT_CACHE_TTL_S,
        clock: Callable[[], float] = time.monotonic,
        elsewhere: Elsewhere[T] | None = None,
    ) -> None:
        self._elsewhere = elsewhere
        self._worth_keeping = worth_keeping
        self._concurrency = concurrency
        self._cache_size = cache_size
        self._cache_ttl_s = cache_ttl_s
        self._clock = clock
        self._answers: OrderedDict[bytes, tuple[float, T]] = OrderedDict()
        self._open: dict[bytes, _Question[T]] = {}  # may be joined
        self._tasks: set[asyncio.Task[T]] = set()  # hold a place, also while they are being cancelled

    @property
    def under_way(self) -> int:
        """Questions that hold a place."""
        return len(self._tasks)

    @property
    def remembered(self) -> int:
        """Answers in memory, too old ones included."""
        return len(self._answers)

    async def ask(self, key: bytes, ask: Callable[[], Coroutine[Any, Any, T]]) -> tuple[T, How]:
        """The answer to a question, and how it was come by.

        Whoever waits may be cancelled without harm to the others; when the last one leaves, the question is taken back.
        The question's own deadline is `ask`'s business: who joins it waits no longer than who began it.

        Args:
            key: the same for equal questions.
            ask: puts the question.

        Raises:
            Busy: it would be one too many.
        """
        remembered = self._recall(key)
        if remembered is not None:
            return remembered[0], "cached"
        question = self._open.get(key)
        how: How = "joined"
        if question is None:
            if len(self._tasks) >= self._concurrency:
                raise Busy
            work = ask() if self._elsewhere is None else self._look_around(self._elsewhere, key, ask)
            task = asyncio.get_running_loop().create_task(work, name="classify")
            question = self._open[key] = _Question(task)
            self._tasks.add(task)
            task.add_done_callback(partial(self._close, key))
            how = "asked"
        question.waiting += 1
        try:
            answer = await asyncio.shield(question.task)
            return answer, "cached" if question.found else how
        finally:
            question.waiting -= 1
            if not question.waiting and not question.task.done():
                self._forget(key, question.task)  # nobody may join a question that is being taken back
                question.task.cancel()

    async def _look_around(self, elsewhere: Elsewhere[T], key: bytes, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Ask the others first; who asks in vain lets them have its answer."""
        found = await elsewhere.find(key)
        if found is not None:
            if (question := self._open.get(key)) is not None:
                question.found = True
            return found
        answer = await ask()
        if self._worth_keeping(answer):
            elsewhere.keep(key, answer)
        return answer

    def _recall(self, key: bytes) -> tuple[T] | None:
        found = self._answers.get(key)
        if found is None:
            return None
        kept_s, answer = found
        if self._clock() - kept_s > self._cache_ttl_s:
            del self._answers[key]
            return None
        self._answers.move_to_end(key)
        return (answer,)

    def _close(self, key: bytes, task: asyncio.Task[T]) -> None:
        self._tasks.discard(task)
        self._forget(key, task)
        if task.cancelled() or task.exception() is not None or not self._worth_keeping(task.result()):
            return
        if self._cache_size:
            self._answers[key] = (self._clock(), task.result())
            self._answers.move_to_end(key)
            while len(self._answers) > self._cache_size:
                self._answers.popitem(last=False)

    def _forget(self, key: bytes, task: asyncio.Task[T]) -> None:
        question = self._open.get(key)
        if question is not None and question.task is task:
            del self._open[key]
