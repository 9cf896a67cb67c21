"""A conversation stays where its cache is: at home, or where it was last (field case F51)."""

import asyncio
from collections import defaultdict

from switchyard.pools.pool import Pool

from .make import pool_of

KEYS = [f"session-{n}" for n in range(60)]


async def place(pool: Pool, key: str) -> str:
    lease = await pool.admit(key, 10)
    lease.release()
    return lease.replica.label


async def places(pool: Pool) -> dict[str, str]:
    return {key: await place(pool, key) for key in KEYS}


def test_a_conversation_stays_on_its_replica_and_every_gateway_finds_it(run):
    async def body() -> None:
        pool, other = pool_of(n=3, in_flight=9, balance="prefix"), pool_of(n=3, in_flight=9, balance="prefix")
        home = await places(pool)
        assert set(home.values()) == {"r0", "r1", "r2"}
        assert await places(pool) == home
        assert await places(other) == home

    run(body())


def test_on_death_only_its_conversations_move_once_and_stay_when_it_returns(run):
    async def body() -> None:
        pool = pool_of(n=3, in_flight=9, balance="prefix")
        home = await places(pool)
        pool.replicas[0].mark("down")
        moved = await places(pool)
        assert all(moved[key] == home[key] for key in KEYS if home[key] != "r0")
        assert {moved[key] for key in KEYS if home[key] == "r0"} == {"r1", "r2"}
        assert await places(pool) == moved
        pool.replicas[0].mark("ready")
        assert await places(pool) == moved

    run(body())


def test_a_second_death_moves_them_again(run):
    async def body() -> None:
        pool = pool_of(n=3, in_flight=9, balance="prefix")
        await places(pool)
        pool.replicas[0].mark("down")
        await places(pool)
        pool.replicas[1].mark("down")
        assert set((await places(pool)).values()) == {"r2"}
        pool.replicas[0].mark("ready")
        after = await places(pool)
        assert await places(pool) == after

    run(body())


def test_a_hot_conversation_spills_over_and_stays_where_it_was_last(run):
    async def body() -> None:
        pool = pool_of(n=3, in_flight=50, balance="prefix")
        await place(pool, "hot")
        leases = [await pool.admit("hot", 10) for _ in range(30)]
        counts: dict[str, int] = defaultdict(int)
        for lease in leases:
            counts[lease.replica.label] += 1
        assert len(counts) == 3
        assert max(counts.values()) <= 16  # ceil(1.5 * 31 / 3)
        assert {lease.affinity for lease in leases} == {"hit", "repin"}
        last = leases[-1].replica.label
        for lease in leases:
            lease.release()
        assert await place(pool, "hot") == last

    run(body())


def test_a_full_home_is_passed_over(run):
    async def body() -> None:
        pool = pool_of(n=2, in_flight=1, balance="prefix")
        first = await pool.admit("s", 10)
        second = await pool.admit("s", 10)
        assert {first.replica.label, second.replica.label} == {"r0", "r1"}
        assert [first.affinity, second.affinity] == ["miss", "repin"]
        first.release()
        second.release()
        assert await place(pool, "s") == second.replica.label, "its cache is there now"

    run(body())


def test_under_new_settings_a_replica_that_stays_keeps_its_load_and_health(run):
    async def body() -> None:
        pool = pool_of(n=3, in_flight=2)
        leases = [await pool.admit("s", 10) for _ in range(3)]
        pool.replicas[1].mark("down")
        stays = pool.replicas[:2]
        pool.reconfigure(pool_of(n=2, in_flight=7, balance="p2c").settings)
        assert all(now is before for now, before in zip(pool.replicas, stays, strict=True))
        assert [(r.state, r.limit) for r in pool.replicas] == [("ready", 7), ("down", 7)]
        for lease in leases:
            lease.release()
        assert [(r.in_flight, r.tokens) for r in pool.replicas] == [(0, 0), (0, 0)]

    run(body())


def test_new_settings_with_more_room_let_those_who_wait_in(run):
    async def body() -> None:
        pool = pool_of(n=1, in_flight=1)
        await pool.admit("s", 10)
        waiting = asyncio.create_task(pool.admit("w", 10))
        await asyncio.sleep(0)
        assert pool.queued == 1
        pool.reconfigure(pool_of(n=1, in_flight=2).settings)
        assert (await waiting).replica.label == "r0"

    run(body())


def test_an_engine_that_others_use_counts_as_busy(run):
    """Another gateway, or somebody who asks the engine directly: seen in its own figures."""

    async def body() -> None:
        for balance in ("least_tokens", "p2c", "prefix"):
            pool = pool_of(n=2, in_flight=50, balance=balance)
            pool.replicas[0].foreign, pool.replicas[0].foreign_tokens = 20.0, 40_000.0
            leases = [await pool.admit(f"s{i}", 10) for i in range(10)]
            assert {lease.replica.label for lease in leases} == {"r1"}

    run(body())


def test_who_refused_is_asked_last_for_a_while(run):
    async def body() -> None:
        pool = pool_of(n=2, in_flight=2)
        now_s = asyncio.get_running_loop().time()
        pool.note_busy(pool.replicas[0], 5.0, now_s)
        leases = [await pool.admit("s", 1) for _ in range(4)]
        assert [lease.replica.label for lease in leases] == ["r1", "r1", "r0", "r0"], "rather than nobody"
        pool.note_busy(pool.replicas[0], 86_400.0, now_s)
        assert pool.replicas[0].busy_until_s <= now_s + 30, "an engine may not ask for a day"

    run(body())


def test_who_has_come_back_takes_it_slowly_unless_all_have(run):
    async def body() -> None:
        pool = pool_of(n=2, in_flight=10)
        now_s = asyncio.get_running_loop().time()
        pool.replicas[0].evidence.readmit(now_s)
        leases = [await pool.admit("s", 1) for _ in range(11)]
        assert sorted(lease.replica.label for lease in leases).count("r0") <= 2
        pool.replicas[1].evidence.readmit(now_s)
        leases += [await pool.admit("s", 1) for _ in range(9)]
        assert [r.in_flight for r in pool.replicas] == [10, 10]

    run(body())


def test_what_failed_before_its_return_is_not_held_against_it(run):
    """Requests that a hung engine had taken run into their time-outs when it has long come back."""

    async def body() -> None:
        pool = pool_of(n=2, in_flight=9)
        now_s = asyncio.get_running_loop().time()
        old = [await pool.admit("s", 1) for _ in range(6)]
        ill = pool.replicas[0]
        pool.eject(ill, "stalled", now_s)
        pool.readmit(ill, now_s + 5)
        for lease in old:
            pool.note_bad(lease.replica, "no answer", now_s + 6, lease.began_s)
        assert (ill.state, ill.evidence.failures) == ("ready", 0)
        for _ in range(3):
            pool.note_bad(ill, "no answer", now_s + 7, now_s + 6)
        assert ill.state == "ejected" or pool.replicas[1].state == "ejected"

    run(body())


def test_new_conversations_do_not_all_rush_to_who_has_come_back(run):
    async def body() -> None:
        pool = pool_of(n=3, in_flight=99, balance="prefix")
        now_s = asyncio.get_running_loop().time()
        pool.eject(pool.replicas[0], "stalled", now_s)
        for n in range(200):
            await place(pool, f"before-{n}")
        pool.readmit(pool.replicas[0], now_s)
        found = [await place(pool, f"after-{n}") for n in range(90)]
        assert 15 <= found.count("r0") <= 45

    run(body())
