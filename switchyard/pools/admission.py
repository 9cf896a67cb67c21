"""Waiting for a place on a replica: a bounded, fair queue with a deadline, and nothing lost when somebody leaves it.

Who comes next is `fair.py`; which replica it gets is the pool's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from switchyard.pools.fair import FairQueue
from switchyard.pools.replica import Lease


class QueueFull(Exception):
    """No room to wait in, or the room is needed for somebody who has had less."""


class Waiter:
    """A request that wants a place.

    Attributes:
        session: its conversation, for turns and for affinity.
        tokens: estimated tokens of the request, prompt and wanted answer.
        prompt_tokens: the prompt's part of them.
        exclude: labels of replicas that it can't use.
        only: label of the one replica that it can use; None when any will do.
        api_key: name of its API key.
        background: whether nobody sits in front of it.
        lease: its place, once it has one; None when no replica is left for it.
    """

    def __init__(
        self,
        session: str,
        tokens: int,
        prompt_tokens: int,
        exclude: Collection[str],
        only: str | None,
        api_key: str,
        background: bool,
    ) -> None:
        self.session = session
        self.tokens = tokens
        self.prompt_tokens = prompt_tokens
        self.exclude = exclude
        self.only = only
        self.api_key = api_key
        self.background = background
        loop = asyncio.get_running_loop()
        self.arrived_s = loop.time()
        self.waits = False  # is in the queue
        self.lease: asyncio.Future[Lease | None] = loop.create_future()

    @property
    def undemanding(self) -> bool:
        """Whether any replica will do."""
        return not self.exclude and self.only is None

    def leave(self) -> None:
        """Give back a place that came too late."""
        if self.lease.done() and not self.lease.cancelled() and self.lease.exception() is None:
            if (lease := self.lease.result()) is not None:
                lease.release()
        else:
            self.lease.cancel()


class Admission:
    """Those who wait for one pool.

    Args:
        place: gives a waiter a place where there is one for it.
        serves: whether a replica is left at all that it may wait for.
        queue: most who may wait.
        timeout_s: longest wait.
    """

    def __init__(
        self, place: Callable[[Waiter], Lease | None], serves: Callable[[Waiter], bool], queue: int, timeout_s: float
    ) -> None:
        self._place = place
        self._serves = serves
        self._queue: FairQueue[Waiter] = FairQueue(timeout_s / 2)
        self._undemanding = 0  # who wait for any replica at all
        self.reconfigure(queue, timeout_s)

    def __len__(self) -> int:
        return len(self._queue)

    def reconfigure(self, queue: int, timeout_s: float) -> None:
        """Other limits; who waits already keeps the deadline that it came with."""
        self._limit = queue
        self._timeout_s = timeout_s
        self._queue.patience_s = timeout_s / 2

    @property
    def free(self) -> bool:
        """Whether nobody waits who could take any place that is there."""
        return not self._undemanding

    async def wait(self, waiter: Waiter) -> Lease | None:
        """Wait for a place; None when there is nothing left to wait for.

        Raises:
            QueueFull: there is no room to wait in, or somebody else needed it more.
            TimeoutError: no place came in time.
        """
        if len(self._queue) >= self._limit:
            self._make_room(waiter)
        self._enter(waiter)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await waiter.lease
        except (TimeoutError, asyncio.CancelledError):
            waiter.leave()
            raise
        finally:
            if waiter.waits:
                self._remove(waiter)
                self.wake()  # who stood behind it may be able to use what it could not

    def wake(self) -> None:
        """Give free places to those who wait, in their order; who can't use a place lets the next one have it."""
        while (found := self._next()) is not None:
            waiter, lease = found
            self._undemanding -= waiter.undemanding
            self._queue.serve(waiter)
            waiter.waits = False
            if not waiter.lease.done():
                waiter.lease.set_result(lease)
            elif lease is not None:  # it left in this very moment
                lease.release()

    def _next(self) -> tuple[Waiter, Lease | None] | None:
        if not self._queue:
            return None
        for waiter in self._queue.in_order(asyncio.get_running_loop().time()):
            lease = self._place(waiter)
            if lease is not None or not self._serves(waiter):
                return waiter, lease
            if waiter.undemanding:
                return None  # no replica has room
        return None

    def _make_room(self, newcomer: Waiter) -> None:
        loser = self._queue.give_way(newcomer) if self._limit else None
        if loser is None:
            raise QueueFull
        self._remove(loser)
        if not loser.lease.done():
            loser.lease.set_exception(QueueFull())

    def _enter(self, waiter: Waiter) -> None:
        self._queue.add(waiter)
        self._undemanding += waiter.undemanding
        waiter.waits = True

    def _remove(self, waiter: Waiter) -> None:
        self._queue.remove(waiter)
        self._undemanding -= waiter.undemanding
        waiter.waits = False
