"""Under random admissions, releases, cancellations and deaths, the books of a pool are always right and empty in the end."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from switchyard.errors import PoolSaturated
from switchyard.pools.replica import Lease

from .make import load, pool_of

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), st.integers(0, 5), st.sampled_from([(), ("r0",), ("r1", "r2")])),
        st.tuples(st.just("release"), st.integers(0, 50), st.none()),
        st.tuples(st.just("cancel"), st.integers(0, 50), st.none()),
        st.tuples(st.just("turn"), st.integers(0, 3), st.none()),
        st.tuples(st.just("down"), st.integers(0, 2), st.none()),
        st.tuples(st.just("ready"), st.integers(0, 2), st.none()),
    ),
    max_size=60,
)


@given(STEPS, st.sampled_from(["prefix", "least_tokens", "p2c", "round_robin", "random"]), st.integers(1, 2), st.integers(0, 6))
def test_no_place_and_no_token_is_ever_lost(run, steps, balance, in_flight, queue):
    async def body() -> None:
        pool = pool_of(n=3, in_flight=in_flight, queue=queue, balance=balance)
        tasks: list[asyncio.Task[Lease | None]] = []
        held: list[Lease] = []

        def collect() -> None:
            for task in [t for t in tasks if t.done()]:
                tasks.remove(task)
                if not task.cancelled() and task.exception() is None and (lease := task.result()) is not None:
                    held.append(lease)
                elif not task.cancelled():
                    assert isinstance(task.exception(), PoolSaturated | None)

        async def turn() -> None:
            for _ in range(4):
                await asyncio.sleep(0)
            collect()
            assert load(pool)[0] == len(held)
            assert load(pool)[1] == sum(lease.tokens for lease in held)
            assert pool.queued == len(tasks) <= queue

        for what, number, exclude in steps:
            if what == "admit":
                tasks.append(asyncio.create_task(pool.admit(f"s{number}", 10 + number, exclude)))
            elif what == "release" and held:
                held.pop(number % len(held)).release()
            elif what == "cancel" and tasks:
                tasks[number % len(tasks)].cancel()
            elif what == "turn":
                await turn()
            elif what in {"down", "ready"}:
                pool.replicas[number].mark(what)
                pool.wake()
        await turn()
        for replica in pool.replicas:
            replica.mark("ready")
        pool.wake()
        while tasks or held:  # everybody who still waits gets a place in the end
            await turn()
            assert held or not tasks
            for lease in held:
                lease.release()
            held.clear()
        assert load(pool) == (0, 0, 0)
        assert all((r.in_flight, r.tokens) == (0, 0) for r in pool.replicas)

    run(body())
