"""What several workers say about the same replicas, as one would say it."""

from switchyard.pools.pool import Pool
from switchyard.pools.report import add_up, describe_pool

from .make import pool_of


def shown(*pools: Pool) -> dict:
    (found,) = add_up([[describe_pool(pool, 0.0)] for pool in pools])
    return found


def test_load_adds_up_and_what_is_foreign_is_foreign_to_all(run):
    async def it() -> None:
        pools = [pool_of(n=1, in_flight=4) for _ in range(3)]
        for pool, count in zip(pools, (2, 0, 1), strict=True):
            for _ in range(count):
                assert await pool.admit("s", 10)
            pool.replicas[0].foreign = 5.0 - count  # the engine says 5
        found = shown(*pools)
        (replica,) = found["replicas"]
        assert (replica["in_flight"], replica["limit"], replica["tokens"], replica["foreign"]) == (3, 12, 30, 2.0)
        assert (found["queue_limit"], found["taking"], replica["state"], replica["reason"]) == (30, 1, "ready", "")
        assert found.keys() == describe_pool(pools[0], 0.0).keys()
        assert replica.keys() == describe_pool(pools[0], 0.0)["replicas"][0].keys()

    run(it())


def test_a_replica_takes_requests_when_all_say_so():
    pools = [pool_of(n=2) for _ in range(2)]
    pools[1].eject(pools[1].replicas[0], "3 failures", 0.0)
    found = shown(*pools)
    assert (found["taking"], found["replicas"][0]["state"], found["replicas"][0]["reason"]) == (1, "ejected", "3 failures")
    assert (found["replicas"][0]["ejections"], found["replicas"][0]["back_in_s"]) == (1, 5.0)
    assert found["replicas"][1]["back_in_s"] is None


def test_pools_and_replicas_that_another_worker_does_not_know_yet():
    one, other = pool_of(n=2), pool_of(n=1)
    assert [r["limit"] for r in shown(one, other)["replicas"]] == [2, 1]
    assert add_up([[describe_pool(one, 0.0)], []]) == [describe_pool(one, 0.0)] == add_up([[describe_pool(one, 0.0)]])
