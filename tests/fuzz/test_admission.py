"""A pool as a state machine: whoever comes, leaves, waits or gives up, places are neither lost nor given twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from switchyard.config.pool import Pool as PoolSettings
from switchyard.errors import PoolSaturated
from switchyard.pools.pool import Pool
from switchyard.pools.replica import Lease

QUEUE = 3
BALANCES = ["prefix", "p2c", "least_tokens", "random"]


def block(replicas: int, in_flight: int, balance: str) -> PoolSettings:
    urls = [f"http://127.0.0.1:{9000 + n}" for n in range(replicas)]
    limits = {"in_flight": in_flight, "queue": QUEUE, "queue_timeout_s": 600}
    return PoolSettings.model_validate({"model": "m", "replicas": urls, "balance": balance, "limits": limits})


class Admission(RuleBasedStateMachine):
    """Each step is followed by as much of the loop as it takes for all tasks to wait."""

    asked = Bundle("asked")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.pool = Pool("p", block(1, 1, "prefix"), Random(1))
        self.tasks: list[asyncio.Task[Lease | None]] = []
        self.leases: list[Lease] = []

    def teardown(self) -> None:
        for task in self.tasks:
            task.cancel()
        self._settle()
        for task in self.tasks:
            if not task.cancelled() and task.exception() is None and (lease := task.result()) is not None:
                self._do(lease.release)
        for lease in self.leases:
            self._do(lease.release)
        self._settle()
        taken = [(r.in_flight, r.tokens) for r in self.pool.replicas]
        self.loop.close()
        assert all(t == (0, 0) for t in taken), taken
        assert not self.pool.queued

    def _do(self, act: Callable[[], Any]) -> None:
        """As the gateway does it: with its loop running."""

        async def do() -> None:
            act()

        self.loop.run_until_complete(do())

    def _settle(self) -> None:
        async def rounds() -> None:
            for _ in range(8):
                await asyncio.sleep(0)

        self.loop.run_until_complete(rounds())
        for task in [t for t in self.tasks if t.done()]:
            self.tasks.remove(task)
            if task.cancelled():
                continue
            error = task.exception()
            assert error is None or isinstance(error, PoolSaturated), error
            if error is None and (lease := task.result()) is not None:
                self.leases.append(lease)

    @rule(
        target=asked, key=st.sampled_from("abcdef"), exclude=st.just(set()) | st.sets(st.integers(0, 2), max_size=2),
        only=st.none() | st.none() | st.integers(0, 2),
    )  # fmt: skip
    def ask(self, key: str, exclude: set[int], only: int | None) -> Any:
        labels = [r.label for r in self.pool.replicas]
        tried = [labels[n] for n in exclude if n < len(labels)]
        wanted = labels[only] if only is not None and only < len(labels) else None
        task = self.loop.create_task(self.pool.admit(key, 10, tried, wanted))
        self.tasks.append(task)
        self._settle()
        return task

    @rule(task=consumes(asked))
    def give_up(self, task: asyncio.Task[Lease | None]) -> None:
        """The client goes while it waits, or right after it got its place."""
        task.cancel()
        self._settle()

    @rule(which=st.integers(0, 20))
    def end(self, which: int) -> None:
        if self.leases:
            lease = self.leases.pop(which % len(self.leases))
            self._do(lease.release)
            self._do(lease.release)
        self._settle()

    @rule(which=st.integers(0, 20), task=asked, first=st.booleans())
    def end_and_give_up_at_once(self, which: int, task: asyncio.Task[Lease | None], first: bool) -> None:
        """A place becomes free in the moment in which one who waits for it goes."""

        def both() -> None:
            if first:
                task.cancel()
            if self.leases:
                self.leases.pop(which % len(self.leases)).release()
            task.cancel()

        self._do(both)
        self._settle()

    @rule(which=st.integers(0, 2), state=st.sampled_from(["ready", "ready", "down", "loading"]))
    def probe(self, which: int, state: Any) -> None:
        replica = self.pool.replicas[which % len(self.pool.replicas)]
        replica.mark(state)
        if replica.healthy:
            self._do(self.pool.wake)
        self._settle()

    @rule(task=asked, in_flight=st.integers(1, 3))
    def give_up_as_limits_grow(self, task: asyncio.Task[Lease | None], in_flight: int) -> None:
        """Several places become free in the moment in which one who waits goes."""

        def both() -> None:
            task.cancel()
            self.pool.reconfigure(block(len(self.pool.replicas), in_flight, self.pool.settings.balance))

        self._do(both)
        self._settle()

    @rule(which=st.integers(0, 2))
    def fail(self, which: int) -> None:
        replica = self.pool.replicas[which % len(self.pool.replicas)]
        self._do(lambda: self.pool.note_bad(replica, "x", self.loop.time()))
        self._settle()

    @rule(replicas=st.integers(1, 3), in_flight=st.integers(1, 3), balance=st.sampled_from(BALANCES))
    def reload(self, replicas: int, in_flight: int, balance: str) -> None:
        self._do(lambda: self.pool.reconfigure(block(replicas, in_flight, balance)))
        self._settle()

    @invariant()
    def places_are_counted_right(self) -> None:
        held: dict[int, int] = {}
        for lease in self.leases:
            held[id(lease.replica)] = held.get(id(lease.replica), 0) + 1
        for replica in self.pool.replicas:
            assert replica.in_flight == held.get(id(replica), 0), "a place is lost, or given twice"
        assert self.pool.queued == len(self.tasks), "somebody waits who is not in the queue, or the other way round"
        assert self.pool.queued <= QUEUE

    @invariant()
    def nobody_waits_beside_a_free_place(self) -> None:
        now_s = self.loop.time()
        for waiter in self.pool._admission._queue.in_order(now_s):
            fits = [r for r in self.pool.replicas if r.label not in waiter.exclude and waiter.only in {None, r.label}]
            free = [r for r in fits if r.has_room(now_s)]
            assert not free, "somebody waits beside a free place"


TestAdmission = Admission.TestCase
TestAdmission.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


def test_who_leaves_the_queue_takes_nobody_along() -> None:
    """A soak found it: the first in the queue goes in the moment in which places become free; the next gets one, not two."""

    async def body() -> None:
        pool = Pool("p", block(1, 1, "p2c"), Random(1))
        lease = await pool.admit("a", 10)
        assert lease is not None
        leaving, waiting = (asyncio.create_task(pool.admit("b", 10)) for _ in range(2))
        await asyncio.sleep(0)
        leaving.cancel()
        pool.replicas[0].limit = 3
        lease.release()
        got = await waiting
        assert got is not None
        assert pool.replicas[0].in_flight == 1
        got.release()
        assert (pool.replicas[0].in_flight, pool.queued) == (0, 0)

    asyncio.run(body())
