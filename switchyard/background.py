"""Tasks that run beside the requests. One that fails for good says so in the log; the others go on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

log = logging.getLogger("switchyard")


def start(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """Begin a task; the name is what the log calls it."""
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_report)
    return task


async def repeat(every_s: float, act: Callable[[], None]) -> None:
    """Do something for ever, with a pause before each time."""
    while True:
        await asyncio.sleep(every_s)
        act()


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("the task %s has failed and is gone", task.get_name(), exc_info=task.exception())
