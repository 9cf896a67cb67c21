"""The fixture that runs coroutines really catches what would block the event loop."""

import asyncio
import time

import pytest
from blockbuster import BlockingError


def test_a_blocking_call_in_the_loop_is_an_error(run):
    async def blocks() -> None:
        time.sleep(0.001)  # noqa: ASYNC251

    with pytest.raises(BlockingError):
        run(blocks())


def test_blocking_outside_the_loop_is_none(run):
    async def body() -> str:
        await asyncio.to_thread(time.sleep, 0.001)
        return "done"

    assert run(body()) == "done"
    time.sleep(0.001)
