"""Workers ask each other over sockets: everybody answers, or is gone, late or silly, and nobody waits for ever."""

import asyncio
from pathlib import Path

from switchyard import colleagues
from switchyard.colleagues import Colleagues


def worker(folder: Path, number: int, count: int = 3) -> Colleagues:
    return Colleagues(folder, number, count, {"who": lambda greeting: f"{greeting}, {number}", "much": lambda: "x" * 1_000_000})


async def with_others(folder: Path, ask, *numbers: int):
    listening = [asyncio.create_task(worker(folder, number).listen()) for number in numbers]
    me = worker(folder, 1)
    try:
        async with asyncio.timeout(10):
            while len(await me.ask("who", "is there")) < len({*numbers} - {1}):  # noqa: ASYNC110 (others, elsewhere)
                await asyncio.sleep(0.01)
        return await ask(me)
    finally:
        for task in listening:
            task.cancel()
        await asyncio.gather(*listening, return_exceptions=True)


def test_all_others_are_asked(run, tmp_path):
    async def it():
        assert await with_others(tmp_path, lambda me: me.ask("who", "hello"), 1, 2, 3) == ["hello, 2", "hello, 3"]
        assert [len(a) for a in await with_others(tmp_path, lambda me: me.ask("much"), 2, 3)] == [1_000_000] * 2

    run(it())


def test_who_is_not_there_is_left_out(run, tmp_path, caplog):
    async def it():
        assert await with_others(tmp_path, lambda me: me.ask("who", "hello"), 3) == ["hello, 3"]
        assert await worker(tmp_path, 1).ask("who", "hello") == []  # it died, and its socket is nobody's

    run(it())
    assert "worker 2 doesn't say" in caplog.text


def test_a_successor_takes_the_place_of_the_one_before(run, tmp_path):
    async def it():
        for _ in range(2):
            assert await with_others(tmp_path, lambda me: me.ask("who", "hello"), 2, 3) == ["hello, 2", "hello, 3"]

    run(it())


def test_nonsense_gets_no_answer_and_ends_nothing(run, tmp_path):
    async def it():
        async def ask(me):
            assert await me.ask("never heard of") == []
            for raw in (b"", b"[]\n", b"{\n", b"x" * 100_000):
                reader, writer = await asyncio.open_unix_connection(tmp_path / "worker-2.sock")
                writer.write(raw)
                writer.write_eof()
                assert await reader.read() == b"", raw
                writer.close()
            return await me.ask("who", "hello")

        assert await with_others(tmp_path, ask, 2) == ["hello, 2"]

    run(it())


def test_who_does_not_answer_is_not_waited_for(run, tmp_path, monkeypatch):
    async def it():
        monkeypatch.setattr(colleagues, "ANSWER_LIMIT_S", 0.1)
        writers = []
        hung = await asyncio.start_unix_server(lambda reader, writer: writers.append(writer), tmp_path / "worker-2.sock")
        async with hung:
            assert await worker(tmp_path, 1, 2).ask("who", "hello") == []
            for writer in writers:
                writer.close()

    run(it())
