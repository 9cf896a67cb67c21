"""Not every replica will do: some were tried before, one has the state, others are down or loading."""

import asyncio

import pytest

from .make import labels, load, pool_of, settle


def test_excluded_replicas_are_not_given_and_none_is_left_in_the_end(run):
    async def body() -> None:
        pool = pool_of(n=3, in_flight=5)
        tried: list[str] = []
        while (lease := await pool.admit("s", 1, tried)) is not None:
            assert lease.replica.label not in tried
            tried.append(lease.replica.label)
            lease.release()
        assert sorted(tried) == ["r0", "r1", "r2"]

    run(body())


def test_the_one_replica_that_can_serve_it(run):
    async def body() -> None:
        pool = pool_of(n=3, in_flight=1)
        lease = await pool.admit("s", 1, only="r2")
        assert lease.replica.label == "r2"
        waiting = asyncio.create_task(pool.admit("s", 1, only="r2"))
        await settle()
        assert not waiting.done()  # the others are free, and of no use
        lease.release()
        lease = await waiting
        assert lease.replica.label == "r2"
        lease.release()
        assert await pool.admit("s", 1, ["r2"], only="r2") is None

    run(body())


def test_the_one_replica_that_can_serve_it_is_waited_for_though_another_is_found_meanwhile(run):
    async def body() -> None:
        pool = pool_of(n=2, in_flight=1)
        first, second = pool.listed
        pool.list_replicas([first])
        lease = await pool.admit("s", 1)
        waiting = asyncio.create_task(pool.admit("s", 1, only="r0"))
        anywhere = asyncio.create_task(pool.admit("t", 1))
        await settle()
        pool.list_replicas([first, second])
        await settle()
        assert not waiting.done()
        assert (await anywhere).replica.label == "r1"
        lease.release()
        assert (await waiting).replica.label == "r0"

    run(body())


def test_a_waiter_does_not_get_the_replica_that_it_has_tried(run):
    async def body() -> None:
        pool = pool_of(n=2)
        leases = {lease.replica.label: lease for lease in [await pool.admit("s", 1), await pool.admit("s", 1)]}
        waiting = asyncio.create_task(pool.admit("w", 1, ["r0"]))
        await settle()
        leases["r0"].release()
        await settle()
        assert not waiting.done()
        leases["r1"].release()
        assert (await waiting).replica.label == "r1"

    run(body())


def test_those_behind_a_waiter_that_leaves_get_the_place_that_it_could_not_use(run):
    """When the first in the queue leaves, the next ones are looked at again."""

    async def body() -> None:
        pool = pool_of(n=2)
        leases = {lease.replica.label: lease for lease in [await pool.admit("s", 1), await pool.admit("s", 1)]}
        picky = asyncio.create_task(pool.admit("w", 1, ["r0"]))
        easy = asyncio.create_task(pool.admit("w", 1))
        await settle()
        leases["r0"].release()
        picky.cancel()
        await settle()
        assert easy.done()

    run(body())


def test_a_request_bound_to_one_replica_holds_nobody_else_up(run):
    """While one waits for its replica, others take those that are free."""

    async def body() -> None:
        pool = pool_of(n=2)
        first = await pool.admit("s", 1, only="r1")
        bound = asyncio.create_task(pool.admit("s", 1, only="r1"))
        await settle()
        free = asyncio.create_task(pool.admit("other", 1))
        await settle()
        assert free.done()
        assert free.result().replica.label == "r0"
        first.release()
        assert (await bound).replica.label == "r1"

    run(body())


@pytest.mark.parametrize("state", ["down", "loading"])
def test_a_replica_that_is_not_healthy_gets_nothing_while_others_live(run, state):
    async def body() -> None:
        pool = pool_of(n=2, in_flight=2)
        pool.replicas[0].mark(state)
        leases = [await pool.admit("s", 1) for _ in range(2)]
        assert labels(leases) == ["r1", "r1"]
        waiting = asyncio.create_task(pool.admit("s", 1))
        await settle()
        assert pool.queued == 1
        pool.replicas[0].mark("ready")
        pool.wake()  # what the probes do
        assert (await waiting).replica.label == "r0"

    run(body())


def test_when_all_seem_down_one_is_tried_all_the_same(run):
    async def body() -> None:
        pool = pool_of(n=2)
        for replica in pool.replicas:
            replica.mark("down", "refused")
        first = await pool.admit("s", 1)
        second = await pool.admit("s", 1, [first.replica.label])
        assert {first.replica.label, second.replica.label} == {"r0", "r1"}
        assert await pool.admit("s", 1, ["r0", "r1"]) is None
        first.release()
        second.release()
        assert load(pool) == (0, 0, 0)

    run(body())


def test_an_unknown_replica_is_tried_before_its_first_probe(run):
    async def body() -> None:
        pool = pool_of(n=1)
        pool.replicas[0].mark("unknown")
        assert (await pool.admit("s", 1)).replica.label == "r0"

    run(body())
