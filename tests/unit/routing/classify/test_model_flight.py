"""One question for all who ask the same, answers remembered for a time, and a limit on questions under way."""

import asyncio

import pytest

from switchyard.routing.classify.flight import Busy, Flight


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Oracle:
    """Answers when it is told to, and counts."""

    def __init__(self) -> None:
        self.begun: list[bytes] = []
        self.ended: list[bytes] = []
        self.open = asyncio.Event()

    def about(self, key: bytes, answer: object = "yes"):
        async def ask():
            self.begun.append(key)
            try:
                await self.open.wait()
                if isinstance(answer, Exception):
                    raise answer
                return answer
            finally:
                self.ended.append(key)

        return ask


def flight(**how) -> Flight:
    return Flight(lambda answer: answer != "no", **how)


async def started(flight: Flight, oracle: Oracle, *keys: bytes, answer: object = "yes") -> list[asyncio.Task]:
    tasks = [asyncio.create_task(flight.ask(key, oracle.about(key, answer))) for key in keys]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return tasks


def test_equal_questions_are_put_once(run):
    async def it():
        f, oracle = flight(), Oracle()
        tasks = await started(f, oracle, b"a", b"a", b"b", b"a")
        assert oracle.begun == [b"a", b"b"]
        oracle.open.set()
        assert await asyncio.gather(*tasks) == [("yes", "asked"), ("yes", "joined"), ("yes", "asked"), ("yes", "joined")]
        assert await f.ask(b"a", oracle.about(b"a")) == ("yes", "cached")
        assert (oracle.begun, f.under_way) == ([b"a", b"b"], 0)

    run(it())


def test_who_leaves_takes_nothing_from_the_others(run):
    async def it():
        f, oracle = flight(), Oracle()
        first, second, third = await started(f, oracle, b"a", b"a", b"a")
        first.cancel()
        third.cancel()
        await asyncio.sleep(0)
        assert oracle.ended == []
        oracle.open.set()
        assert await second == ("yes", "joined")
        assert first.cancelled()
        assert third.cancelled()

    run(it())


def test_when_the_last_one_leaves_the_question_is_taken_back(run):
    async def it():
        f, oracle = flight(concurrency=1), Oracle()
        tasks = await started(f, oracle, b"a", b"a")
        for task in tasks:
            task.cancel()
        await asyncio.sleep(0)
        assert (oracle.ended, f.under_way) == ([], 1)  # its place is free when it has really ended
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.01)
        assert (oracle.ended, f.under_way, f.remembered) == ([b"a"], 0, 0)

    run(it())


def test_nobody_joins_a_question_that_is_being_taken_back(run):
    async def it():
        f, oracle = flight(), Oracle()
        (first,) = await started(f, oracle, b"a")
        first.cancel()
        await asyncio.sleep(0)  # it has left; its question has not ended yet
        again = asyncio.create_task(f.ask(b"a", oracle.about(b"a")))
        await asyncio.sleep(0)
        oracle.open.set()
        assert await again == ("yes", "asked")
        assert oracle.begun == [b"a", b"a"]

    run(it())


def test_over_the_limit_nobody_waits(run):
    async def it():
        f, oracle = flight(concurrency=2), Oracle()
        tasks = await started(f, oracle, b"a", b"b")
        with pytest.raises(Busy):
            await f.ask(b"c", oracle.about(b"c"))
        tasks += await started(f, oracle, b"a")  # joining is free
        oracle.open.set()
        await asyncio.gather(*tasks)
        assert oracle.begun == [b"a", b"b"]
        assert (await f.ask(b"c", oracle.about(b"c")))[1] == "asked"

    run(it())


def test_what_is_not_worth_keeping_or_goes_wrong_is_asked_again(run):
    async def it():
        f, oracle = flight(), Oracle()
        oracle.open.set()
        assert await f.ask(b"a", oracle.about(b"a", "no")) == ("no", "asked")
        assert await f.ask(b"a", oracle.about(b"a", "no")) == ("no", "asked")
        tasks = await started(f, oracle, b"b", b"b", answer=ValueError("a bug"))
        assert [type(e) for e in await asyncio.gather(*tasks, return_exceptions=True)] == [ValueError, ValueError]
        assert (f.remembered, f.under_way) == (0, 0)

    run(it())


def test_an_answer_is_good_for_a_time(run):
    async def it():
        clock = Clock()
        f, oracle = flight(cache_ttl_s=60, clock=clock), Oracle()
        oracle.open.set()
        hows = []
        for at_s in (0, 60, 61, 121, 122):
            clock.now_s = 100 + at_s
            hows.append((await f.ask(b"a", oracle.about(b"a")))[1])
        assert hows == ["asked", "cached", "asked", "cached", "asked"]

    run(it())


@pytest.mark.parametrize(("size", "still_there"), [(2, [b"a", b"c"]), (3, [b"a", b"b", b"c"]), (0, [])])
def test_memory_is_bounded_and_the_longest_unused_goes(run, size, still_there):
    async def it():
        f, oracle = flight(cache_size=size), Oracle()
        oracle.open.set()
        for key in (b"a", b"b", b"a", b"c"):
            await f.ask(key, oracle.about(key))
        assert f.remembered == len(still_there)
        hows = {key: (await f.ask(key, oracle.about(key)))[1] for key in still_there}
        assert set(hows.values()) <= {"cached"}

    run(it())
