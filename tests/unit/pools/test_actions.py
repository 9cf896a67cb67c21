"""What operators do by hand: drain, undrain, eject, readmit; each tells what changed, and the last replica is kept."""

import asyncio

import pytest

from switchyard.errors import InvalidRequest, LastReplica, UnknownReplica
from switchyard.pools.actions import ACTIONS, act, find_replica
from switchyard.pools.report import describe_pool

from .make import labels, load, pool_of, settle


def test_a_drained_replica_gets_nothing_new_and_keeps_what_runs(run):
    async def body() -> None:
        pool = pool_of(n=2, in_flight=4)
        held = [await pool.admit("s", 10) for _ in range(4)]
        assert act(pool, pool.replicas[0], "drain", 0.0) is True
        assert act(pool, pool.replicas[0], "drain", 0.0) is False
        assert (pool.replicas[0].state, pool.replicas[0].in_flight) == ("draining", 2)
        held += [await pool.admit("s", 10) for _ in range(2)]
        assert labels(held) == ["r0", "r0", "r1", "r1", "r1", "r1"]
        for lease in held:
            lease.release()
        assert load(pool) == (0, 0, 0)
        assert act(pool, pool.replicas[0], "undrain", 0.0) is True
        assert pool.replicas[0].state == "ready"

    run(body())


def test_probes_and_traffic_change_nothing_about_a_drained_replica():
    pool = pool_of(n=2)
    replica = pool.replicas[0]
    act(pool, replica, "drain", 0.0)
    for probed in ("down", "loading", "ready"):
        replica.mark(probed, "why")
        assert (replica.state, replica.healthy) == ("draining", False)
    replica.mark("down", "refused")
    assert replica.problem == "drained by hand; refused"
    act(pool, replica, "undrain", 0.0)
    assert (replica.state, replica.problem) == ("down", "refused")


def test_the_last_one_is_taken_out_only_on_purpose(run):
    async def body() -> None:
        pool = pool_of(n=2)
        pool.replicas[1].mark("down", "refused")
        for action in ("drain", "eject"):
            with pytest.raises(LastReplica, match="r0 is the last replica of pool p that gets requests"):
                act(pool, pool.replicas[0], action, 0.0)
        assert act(pool, pool.replicas[1], "drain", 0.0), "it gets no requests anyway"
        assert act(pool, pool.replicas[0], "drain", 0.0, force=True)
        assert await pool.admit("s", 1) is None, "a drained replica is no last resort"

    run(body())


def test_who_waits_for_a_pool_that_is_drained_is_told_at_once(run):
    async def body() -> None:
        pool = pool_of(n=1)
        lease = await pool.admit("s", 1)
        waiting = asyncio.create_task(pool.admit("t", 1))
        await settle()
        act(pool, pool.replicas[0], "drain", 0.0, force=True)
        assert await waiting is None
        lease.release()
        assert load(pool) == (0, 0, 0)

    run(body())


def test_undraining_lets_those_in_who_wait(run):
    async def body() -> None:
        pool = pool_of(n=2)
        act(pool, pool.replicas[1], "drain", 0.0)
        lease = await pool.admit("s", 1)
        waiting = asyncio.create_task(pool.admit("t", 1))
        await settle()
        assert not waiting.done()
        act(pool, pool.replicas[1], "undrain", 0.0)
        assert (await waiting).replica.label == "r1"
        lease.release()

    run(body())


def test_ejecting_has_a_back_off_and_readmitting_ends_it_slowly():
    pool = pool_of(n=2, in_flight=10)
    replica = pool.replicas[0]
    assert act(pool, replica, "eject", 100.0) is True
    assert act(pool, replica, "eject", 100.0) is False
    assert (replica.state, replica.evidence.back_at_s) == ("ejected", 105.0)
    assert replica.problem == "ejected by hand, tried again after 5 s"
    assert act(pool, replica, "readmit", 101.0) is True
    assert act(pool, replica, "readmit", 101.0) is False
    assert (replica.state, replica.evidence.ejections) == ("ready", 0)
    assert [replica.limit_at(now_s) for now_s in (101.0, 111.0)] == [pytest.approx(1), 10]


def test_a_reload_keeps_what_was_done_by_hand():
    pool = pool_of(n=3)
    act(pool, pool.replicas[0], "drain", 0.0)
    act(pool, pool.replicas[1], "eject", 0.0)
    pool.reconfigure(pool_of(n=3, in_flight=7).settings)
    assert [r.state for r in pool.replicas] == ["draining", "ejected", "ready"]


def test_names_that_are_not_there_are_told_with_those_that_are():
    pools = {"p": pool_of(n=2)}
    with pytest.raises(UnknownReplica, match=r"there is no pool 'x' here; known: p"):
        find_replica(pools, "x", "r0")
    with pytest.raises(UnknownReplica, match=r"pool p has no replica 'r9'; known: r0, r1"):
        find_replica(pools, "p", "r9")
    pool, replica = find_replica(pools, "p", "r1")
    with pytest.raises(InvalidRequest, match="there is no action 'reboot'; known: drain, undrain, eject, readmit"):
        act(pool, replica, "reboot", 0.0)
    assert replica.state == "ready"


def test_every_action_is_harmless_on_any_state():
    for action in ACTIONS:
        for probed in ("unknown", "ready", "loading", "down"):
            pool = pool_of(n=2)
            pool.replicas[0].mark(probed)
            act(pool, pool.replicas[0], action, 0.0)
            act(pool, pool.replicas[0], action, 0.0)
            assert describe_pool(pool, 0.0)["replicas"][0]["state"] == pool.replicas[0].state
