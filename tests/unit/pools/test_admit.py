"""A place on a replica: at once, after waiting in order, or not at all; whatever happens, no place is lost."""

import asyncio

import pytest

from switchyard.errors import PoolSaturated, QueueDeadline
from switchyard.pools.pool import Pool

from .make import labels, load, pool_of, settle


def queue_up(pool: Pool, n: int, **how) -> list[asyncio.Task]:
    return [asyncio.create_task(pool.admit(f"s{i}", 10, **how)) for i in range(n)]


def test_places_are_given_up_to_the_limit_of_each_replica(run):
    async def body() -> None:
        pool = pool_of(n=2, in_flight=2)
        leases = [await pool.admit("s", 100) for _ in range(4)]
        assert labels(leases) == ["r0", "r0", "r1", "r1"]
        assert load(pool) == (4, 400, 0)
        for lease in leases:
            lease.release()
            lease.release()  # more than once is no harm
        assert load(pool) == (0, 0, 0)
        assert [r.served for r in pool.replicas] == [2, 2]

    run(body())


def test_those_who_wait_are_served_in_their_order(run):
    async def body() -> None:
        pool = pool_of(n=1)
        lease = await pool.admit("first", 10)
        waiting = queue_up(pool, 4)
        await settle()
        assert load(pool) == (1, 10, 4)
        for i in range(4):
            assert [task.done() for task in waiting] == [True] * i + [False] * (4 - i)
            lease.release()
            await settle()
            lease = waiting[i].result()
        lease.release()
        assert load(pool) == (0, 0, 0)

    run(body())


def test_nobody_overtakes_those_who_wait(run):
    async def body() -> None:
        pool = pool_of(n=1)
        lease = await pool.admit("first", 10)
        (waiting,) = queue_up(pool, 1)
        await settle()
        lease.release()  # the place is the waiter's, though its task has not run yet
        late = asyncio.create_task(pool.admit("late", 10))
        await settle()
        assert (waiting.done(), late.done()) == (True, False)
        waiting.result().release()
        (await late).release()

    run(body())


def test_a_full_queue_refuses_and_says_how_busy_it_is(run):
    async def body() -> None:
        pool = pool_of(n=2, in_flight=3, queue=2)
        leases = [await pool.admit("s", 1) for _ in range(6)]
        waiting = queue_up(pool, 2)
        await settle()
        with pytest.raises(PoolSaturated) as caught:
            await pool.admit("s", 1)
        assert caught.value.message == "pool p: 2 of 2 replicas have 3 requests each, and 2 wait already; retry in 2 s"
        assert caught.value.retry_after_s == 2
        for lease in leases:
            lease.release()
        for task in waiting:
            (await task).release()
        assert load(pool) == (0, 0, 0)

    run(body())


def test_no_queue_at_all(run):
    async def body() -> None:
        pool = pool_of(n=1, queue=0)
        lease = await pool.admit("s", 1)
        with pytest.raises(PoolSaturated):
            await pool.admit("s", 1)
        lease.release()
        assert await pool.admit("s", 1) is not None

    run(body())


def test_waiting_has_a_deadline(run):
    async def body() -> None:
        pool = pool_of(n=1, timeout_s=0.01)
        lease = await pool.admit("s", 1)
        with pytest.raises(QueueDeadline) as caught:
            await pool.admit("s", 1)
        assert caught.value.message == "pool p: no place within 0.01 s; 1 of 1 replicas have 1 requests each"
        assert load(pool) == (1, 1, 0)
        lease.release()
        assert load(pool) == (0, 0, 0)

    run(body())


@pytest.mark.parametrize("when", ["waiting", "place given in the same moment"])
def test_a_waiter_that_leaves_takes_no_place_with_it(run, when):
    async def body() -> None:
        pool = pool_of(n=1)
        lease = await pool.admit("s", 5)
        leaving, staying = queue_up(pool, 2)
        await settle()
        if when == "waiting":
            leaving.cancel()
            await settle()
            assert pool.queued == 1
            lease.release()
        else:
            lease.release()
            leaving.cancel()
        await settle()
        assert leaving.cancelled()
        assert load(pool) == (1, 10, 0)
        staying.result().release()
        assert load(pool) == (0, 0, 0)

    run(body())
