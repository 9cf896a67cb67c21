"""The store on a real Redis: several of them agree, none waits, none loses what it was told while Redis was gone."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis_server import RedisServer

from switchyard.config.server import KeyLimits
from switchyard.routing.session import Pin
from switchyard.state.base import Claim, Refusal
from switchyard.state.memory import Ledger
from switchyard.state.redis import RedisStore

BUDGET_S = 0.5  # generous: other load must not decide what these tests see


@asynccontextmanager
async def stores(server: RedisServer, count: int = 1, prefix: str = "t:", budget_s: float = BUDGET_S) -> AsyncIterator[list]:
    made = [RedisStore(server.url, prefix, budget_s, 3600, time.monotonic) for _ in range(count)]
    tasks = [asyncio.create_task(store.run()) for store in made]
    try:
        for store in made:
            await asyncio.wait_for(store.link.tried.wait(), 10)
        yield made
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(condition, within_s: float = 10):
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


_ids = iter(range(10**9))


def claim(tokens: int = 10, key: str = "key-1", **limits: int) -> Claim:
    return Claim(key, KeyLimits(**limits), tokens, f"req-{next(_ids)}")


# ---- sessions, places, answers, boards ----


def test_what_one_remembers_the_other_knows(run, redis):
    async def it():
        async with stores(redis, 2) as (a, b):
            fields = {"pin:auto": "big\t3\t0\t", "at:big": "r1"}
            a.remember("s1", "pin:auto", "big\t3\t0\t")
            a.remember("s1", "at:big", "r2")
            a.remember("s1", "at:big", "r1")
            a.remember_place("resp_1", "big\tr1")
            a.keep(b"\x01", "0.5", 60)
            a.post("fleet", "x", "news")
            known = await a.arrive(None, "s1", None)
            assert known.session == fields, "its own word counts before it is written"
            await a.flush()
            known = await b.arrive(None, "s1", "resp_1")
            assert (known.session, known.place) == (fields, "big\tr1")
            assert await b.recall(b"\x01") == "0.5"
            assert await b.recall(b"\x02") is None
            assert await b.read(["fleet", "crew"]) == {"fleet": {"x": "news"}, "crew": {}}
            known = await b.arrive(None, "other", "resp_2")
            assert (known.session, known.place) == ({}, None)

    run(it())


def test_a_notice_is_taken_down_unless_another_has_its_place(run, redis):
    async def it():
        async with stores(redis, 2) as (a, b):
            a.post("fleet", "x", "old")
            a.post("fleet", "y", "old")
            await a.flush()
            b.post("fleet", "y", "new")
            await b.flush()
            for name in ("x", "y", "z"):
                a.take_down("fleet", name, "old")
            await a.flush()
            assert await b.read(["fleet"]) == {"fleet": {"y": "new"}}

    run(it())


def test_every_key_has_the_prefix_and_a_time_to_live(run, redis):
    async def it():
        async with stores(redis, 1, "mine:") as (a,):
            everything = {"requests_per_minute": 5, "tokens_per_minute": 500, "concurrent_requests": 5}
            assert (await a.arrive(claim(**everything), "s", "r")).refusal is None
            a.remember("s", "pin:auto", "x")
            a.remember_place("r", "p\tr")
            a.keep(b"q", "1", 0.1)
            a.post("fleet", "x", "y")
            await a.flush()
            await a.read(["fleet"])

    run(it())
    keys = redis.command("KEYS", "*")
    assert len(keys) == 6
    for key in keys:
        assert key.startswith("mine:")
        assert 0 < redis.command("TTL", key) <= 86_400, key


def test_two_prefixes_don_t_see_each_other(run, redis):
    async def it():
        async with stores(redis, 1, "a:") as (a,), stores(redis, 1, "b:") as (b,):
            a.remember("s", "pin:auto", "x")
            await a.flush()
            assert (await b.arrive(None, "s", None)).session == {}

    run(it())


# ---- limits ----


def test_limits_hold_over_several_stores_that_ask_at_once(run, redis):
    async def it():
        async with stores(redis, 4) as four:
            asked = [store.arrive(claim(requests_per_minute=100), "", None) for _ in range(60) for store in four]
            known = await asyncio.gather(*asked)
            assert sum(k.refusal is None for k in known) == 100
            refusals = {k.refusal.limit for k in known if k.refusal is not None}
            assert refusals == {"requests_per_minute"}
            assert all(1 <= k.refusal.retry_after_s <= 61 for k in known if k.refusal is not None)

    run(it())


def test_places_at_once_are_given_back_to_whoever_asks_next(run, redis):
    async def it():
        async with stores(redis, 2) as (a, b):
            held = [claim(concurrent_requests=2) for _ in range(2)]
            for one in held:
                assert (await a.arrive(one, "", None)).refusal is None
            assert (await b.arrive(claim(concurrent_requests=2), "", None)).refusal == Refusal("concurrent_requests", 1)
            a.settle(held[0], None)
            await a.flush()
            assert (await b.arrive(claim(concurrent_requests=2), "", None)).refusal is None
            assert (await a.arrive(claim(concurrent_requests=2), "", None)).refusal is not None

    run(it())


def test_tokens_are_corrected_for_all(run, redis):
    async def it():
        async with stores(redis, 2) as (a, b):
            first = claim(80, tokens_per_minute=100)
            assert (await a.arrive(first, "", None)).refusal is None
            assert (await b.arrive(claim(30, tokens_per_minute=100), "", None)).refusal.limit == "tokens_per_minute"
            a.settle(first, 40)
            await a.flush()
            second = claim(30, tokens_per_minute=100)
            assert (await b.arrive(second, "", None)).refusal is None
            b.settle(second, 130)
            await b.flush()
            assert (await a.arrive(claim(1, tokens_per_minute=100), "", None)).refusal.limit == "tokens_per_minute"
            assert (await a.arrive(claim(101, tokens_per_minute=100), "", None)).refusal == Refusal("tokens_per_minute", None)

    run(it())


def test_running_requests_of_a_gateway_that_died_are_free_after_their_lease(run, redis):
    async def it():
        async with stores(redis, 1) as (gone,):
            assert (await gone.arrive(claim(concurrent_requests=1), "", None)).refusal is None
        async with stores(redis, 1) as (a,):
            (key,) = await asyncio.to_thread(redis.command, "KEYS", "*running")
            assert (await a.arrive(claim(concurrent_requests=1), "", None)).refusal is not None
            (member,) = await asyncio.to_thread(redis.command, "ZRANGE", key, 0, -1)
            await asyncio.to_thread(redis.command, "ZADD", key, 1, member)  # the lease is over
            alive = claim(concurrent_requests=1)
            assert (await a.arrive(alive, "", None)).refusal is None
            await asyncio.to_thread(redis.command, "DEL", key)  # Redis has forgotten: running requests are told again
            a.link.send(a._renewals())
            await a.flush()
            assert await asyncio.to_thread(redis.command, "ZRANGE", key, 0, -1) == [alive.id]

    run(it())


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 60), st.integers(0, 99)), max_size=40),
    most=st.tuples(*[st.none() | st.integers(1, 100)] * 3),
)
def test_redis_and_the_ledger_of_a_process_judge_alike(run, redis, steps, most):
    """Within one second; what time does to the window is the window's own test."""
    limits = KeyLimits(requests_per_minute=most[0], tokens_per_minute=most[1], concurrent_requests=most[2])

    async def it():
        await asyncio.to_thread(redis.command, "FLUSHALL")
        ledger, running = Ledger(), []
        async with stores(redis) as (store,):
            for ends, tokens, used in steps:
                if ends and running:
                    here, there = running.pop()
                    ledger.settle(here, 100, used, 100.0)
                    store.settle(there, used)
                    continue
                here, there = (Claim("k", limits, tokens, f"req-{next(_ids)}") for _ in range(2))
                wanted = ledger.claim(here, 100.0)
                found = (await store.arrive(there, "", None)).refusal
                assert (wanted and wanted.limit) == (found and found.limit)
                if wanted is None:
                    running.append((here, there))

    # The second may turn in the middle: only what is taken back from an earlier one could differ, and it doesn't.
    run(it())


def test_what_is_older_than_a_minute_no_longer_counts_in_redis_either(run, redis):
    async def it():
        async with stores(redis) as (store,):
            limits = {"requests_per_minute": 10, "tokens_per_minute": 100}
            assert (await store.arrive(claim(10, **limits), "", None)).refusal is None
            (key,) = await asyncio.to_thread(redis.command, "KEYS", "*")
            now = int((await asyncio.to_thread(redis.command, "TIME"))[0])

            async def say(*seconds: tuple[int, int, int]) -> None:
                """What came so many seconds ago: requests and tokens."""
                await asyncio.to_thread(redis.command, "DEL", key)
                oldest = max(ago for ago, _, _ in seconds)
                words = ["o", now - oldest, "R", sum(r for _, r, _ in seconds), "T", sum(t for _, _, t in seconds)]
                for ago, requests, tokens in seconds:
                    words += [f"r:{now - ago}", requests, f"t:{now - ago}", tokens]
                await asyncio.to_thread(redis.command, "HSET", key, *words)

            await say((90, 10, 100), (70, 5, 50), (65, 2, 20))
            assert (await store.arrive(claim(100, **limits), "", None)).refusal is None, "all of that is gone"
            await say((70, 5, 50), (30, 10, 0))
            refusal = (await store.arrive(claim(1, **limits), "", None)).refusal
            assert refusal.limit == "requests_per_minute"
            assert 28 <= refusal.retry_after_s <= 31, "when those of 30 s ago are more than a minute old"
            await say((40, 1, 50), (20, 1, 40))
            refusal = (await store.arrive(claim(20, **limits), "", None)).refusal
            assert refusal.limit == "tokens_per_minute"
            assert 18 <= refusal.retry_after_s <= 21
            assert (await store.arrive(claim(5, **limits), "", None)).refusal is None
            fields = await asyncio.to_thread(redis.command, "HGETALL", key)
            found = {name: int(value) for name, value in fields.items()}
            assert found["R"] == sum(v for k, v in found.items() if k.startswith("r:"))
            assert found["T"] == sum(v for k, v in found.items() if k.startswith("t:")) == 95

    run(it())


# ---- Redis slow, hung, gone ----


def test_a_key_that_redis_has_refused_stays_refused_without_it(run):
    async def it(server):
        async with stores(server, 2) as (a, b):
            for _ in range(4):
                assert (await a.arrive(claim(requests_per_minute=4), "", None)).refusal is None
            assert (await b.arrive(claim(requests_per_minute=4), "", None)).refusal is not None
            held = claim(90, key="other", tokens_per_minute=100)
            assert (await a.arrive(held, "", None)).refusal is None
            assert (await b.arrive(claim(50, key="other", tokens_per_minute=100), "", None)).refusal is not None
            await asyncio.to_thread(server.kill)
            await until(lambda: not b.link.up)
            refusal = (await b.arrive(claim(requests_per_minute=4), "", None)).refusal
            assert refusal.limit == "requests_per_minute"
            assert 1 <= refusal.retry_after_s <= 61
            assert (await b.arrive(claim(60, key="other", tokens_per_minute=100), "", None)).refusal is not None
            assert (await b.arrive(claim(5, key="other", tokens_per_minute=100), "", None)).refusal is None
            assert (await b.arrive(claim(requests_per_minute=4, key="third"), "", None)).refusal is None
            assert (await b.arrive(claim(), "", None)).refusal is None, "the limit was lifted meanwhile"

    with RedisServer() as server:
        run(it(server))


def test_without_redis_each_goes_on_alone_and_what_was_told_is_written_later(run):
    async def it(server):
        async with stores(server, 2) as (a, b):
            await asyncio.to_thread(server.kill)
            await until(lambda: not a.link.up and not b.link.up)
            began_s = time.monotonic()
            for store in (a, b):
                known = [await store.arrive(claim(requests_per_minute=3), "s", "r") for _ in range(4)]
                assert [k.refusal and k.refusal.limit for k in known] == [None, None, None, "requests_per_minute"]
                assert {k.session for k in known} == {None}
            a.remember("s", "pin:auto", "told while it was gone")
            assert time.monotonic() - began_s < 4 * BUDGET_S, "nobody waited"
            await asyncio.to_thread(server.start)
            await until(lambda: a.link.up and b.link.up)
            await a.flush()
            assert (await b.arrive(None, "s", None)).session == {"pin:auto": "told while it was gone"}
            assert (await b.arrive(claim(requests_per_minute=3, key="new"), "", None)).refusal is None

    with RedisServer() as server:
        run(it(server))


def test_a_hung_redis_is_waited_for_once(run, caplog):
    caplog.set_level("INFO")

    async def it(server):
        async with stores(server, 1, budget_s=0.02) as (store,):
            await until(lambda: store.link.up)
            await asyncio.to_thread(server.pause)
            assert (await store.arrive(None, "s", None)).session is None
            assert store.link.missed["late"] == 1
            began_s = time.monotonic()
            for _ in range(1000):
                assert (await store.arrive(claim(), "s", None)).session is None
            assert time.monotonic() - began_s < 10, "while an answer is overdue nobody waits"
            assert store.link.missed["late"] == 1
            await until(lambda: not store.link.up)
            await asyncio.to_thread(server.resume)
            await until(lambda: store.link.up)
            await until(lambda: store.link.missed["down"] > 0)
            assert (await store.arrive(None, "s", None)).session == {}

    with RedisServer() as server:
        run(it(server))
    said = [r.message for r in caplog.records if r.name == "switchyard.state"]
    assert len([line for line in said if "own until it is back" in line]) == 1, said
    assert len([line for line in said if line.startswith("Redis is back after")]) == 1, said


def test_a_claim_that_redis_grants_too_late_is_settled_all_the_same(run):
    async def it(server):
        async with stores(server, 1, budget_s=0.02) as (store,):
            await asyncio.to_thread(server.pause)
            late = claim(50, tokens_per_minute=100, concurrent_requests=1)
            leaving = asyncio.create_task(store.arrive(late, "", None))
            assert (await leaving).refusal is None
            store.settle(late, 0)
            await asyncio.to_thread(server.resume)
            await until(lambda: late.shared_second is not None)
            await store.flush()
        async with stores(server, 1) as (other,):
            whole = claim(100, tokens_per_minute=100, concurrent_requests=1)
            assert (await other.arrive(whole, "", None)).refusal is None

    with RedisServer() as server:
        run(it(server))


def test_who_leaves_while_redis_is_asked_gives_its_place_back(run):
    async def it(server):
        async with stores(server, 1) as (store,):
            await asyncio.to_thread(server.pause)
            leaving = asyncio.create_task(store.arrive(claim(concurrent_requests=1), "", None))
            await asyncio.sleep(0.05)
            leaving.cancel()
            await asyncio.sleep(0.05)
            await asyncio.to_thread(server.resume)
            assert leaving.cancelled()
            await until(lambda: not store.link._waiting)
            await store.flush()
            assert (await store.arrive(claim(concurrent_requests=1), "", None)).refusal is None

    with RedisServer() as server:
        run(it(server))


def test_a_place_that_was_given_without_redis_and_told_since_is_given_back(run):
    async def it(server):
        async with stores(server, 1) as (store,):
            await asyncio.to_thread(server.kill)
            await until(lambda: not store.link.up)
            held = claim(concurrent_requests=1)
            assert (await store.arrive(held, "", None)).refusal is None
            await asyncio.to_thread(server.start)
            await until(lambda: store.link.up)
            store.link.send(store._renewals())
            await store.flush()
            assert (await store.arrive(claim(concurrent_requests=1), "", None)).refusal is not None
            store.settle(held, None)
            assert (await store.arrive(claim(concurrent_requests=1), "", None)).refusal is None

    with RedisServer() as server:
        run(it(server))


def test_places_given_back_while_redis_hung_are_free_when_it_goes_on(run):
    async def it(server):
        async with stores(server, 2) as (a, b):
            limits = {"concurrent_requests": 2, "tokens_per_minute": 1000}
            held = [claim(300, **limits) for _ in range(2)]
            for one in held:
                assert (await a.arrive(one, "", None)).refusal is None
            await asyncio.to_thread(server.pause)
            await until(lambda: not a.link.up)
            for one in held:
                a.settle(one, 100)
            await asyncio.to_thread(server.resume)
            await until(lambda: a.link.up and b.link.up)
            await a.flush()
            assert (await b.arrive(claim(800, **limits), "", None)).refusal is None, "200 tokens are used, and no place"

    with RedisServer() as server:
        run(it(server))


def test_scripts_that_redis_has_lost_are_given_again(run, redis):
    async def it():
        async with stores(redis) as (store,):
            await asyncio.to_thread(redis.command, "SCRIPT", "FLUSH")
            assert (await store.arrive(claim(requests_per_minute=1), "", None)).refusal is None
            assert (await store.arrive(claim(requests_per_minute=1, key="x"), "", None)).refusal is None
            assert await asyncio.to_thread(redis.command, "KEYS", "*{x}"), "the second one was counted there"

    run(it())


def test_a_wrong_password_is_said_and_stops_nobody(run, caplog):
    async def it(server):
        wrong = RedisStore(server.url.replace("right", "wrong"), "t:", BUDGET_S, 60, time.monotonic)
        task = asyncio.create_task(wrong.run())
        await asyncio.wait_for(wrong.link.tried.wait(), 10)
        assert not wrong.link.up
        assert (await wrong.arrive(claim(), "s", None)).refusal is None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        async with stores(server) as (store,):
            assert (await store.arrive(None, "s", None)).session == {}

    with RedisServer("right") as server:
        run(it(server))
    (said,) = [r.message for r in caplog.records if r.name == "switchyard.state"]
    assert "wrong" not in said.replace("WRONGPASS", ""), "the password stays out of the log"


def test_whatever_happens_to_redis_no_place_stays_taken(run):
    """Requests come, leave and end while it hangs, dies and forgets its scripts; then all is given back."""

    async def it(server):
        random, ended = Random(5), asyncio.Event()
        async with stores(server, 1, budget_s=0.01) as (store,):

            async def client(number: int) -> None:
                while not ended.is_set():
                    wanted = claim(100, concurrent_requests=10_000, tokens_per_minute=10**9)
                    arriving = asyncio.create_task(store.arrive(wanted, f"s{number}", None))
                    if random.random() < 0.1:
                        await asyncio.sleep(random.random() / 100)
                        arriving.cancel()
                    if not isinstance((await asyncio.gather(arriving, return_exceptions=True))[0], asyncio.CancelledError):
                        store.settle(wanted, random.choice([None, 5, 500]))
                    await asyncio.sleep(random.random() / 50)

            clients = [asyncio.create_task(client(n)) for n in range(20)]
            for act in (server.pause, server.resume, server.kill, server.start, server.pause, server.resume):
                await asyncio.sleep(random.random() / 2)
                await asyncio.to_thread(act)
                await asyncio.sleep(1.2 if act == server.pause else 0)
            await until(lambda: store.link.up)
            ended.set()
            await asyncio.gather(*clients)
            await until(lambda: store.link.up and not store._unsettled)
            await store.flush()
            for key in await asyncio.to_thread(server.command, "KEYS", "*:running"):
                assert await asyncio.to_thread(server.command, "ZCARD", key) == 0
            assert store._ledger._keys["key-1"].running == 0

    with RedisServer() as server:
        run(it(server))


def test_what_is_no_text_of_ours_in_redis_stops_nobody(run, redis):
    async def it():
        async with stores(redis) as (store,):
            store.remember("s", "pin:r", "small\t1\t0\t")
            await store.flush()
            (key,) = await asyncio.to_thread(redis.command, "KEYS", "*")
            await asyncio.to_thread(redis.command, "HSET", key, "pin:r", b"\xff\xfe")
            known = await store.arrive(None, "s", None)
            assert known.session == {"pin:r": "\ufffd\ufffd"}
            assert Pin.from_text(known.session["pin:r"]) is None
            assert (await store.arrive(None, "s", None)).session == known.session
            assert store.link.up

    run(it())


@pytest.mark.parametrize("told", ["", "a", "a\t1\t0", "a\tone\t0\t", "a\t-1\t0\t", f"a\t1{'0' * 5000}\t0\t", "a\t\u00b2\t0\t"])
def test_a_pin_that_makes_no_sense_is_none(told):
    assert Pin.from_text(told) is None
