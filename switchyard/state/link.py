"""One connection to Redis, off the requests' path: who asks in the same moment shares a round trip, and nobody waits long.

A question that has no answer within its budget goes without, and while an answer is overdue, or no connection stands,
nobody waits at all. The connection is opened again by itself, for ever.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from redis.asyncio import ConnectionPool
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError, ResponseError

from switchyard.state.scripts import ALL

PATIENCE_S = 1.0  # an answer later than this, and the connection is given up
IDLE_S = 1.0  # pause after which an idle connection is tried
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 1.0  # before a connection is opened again
SECOND_CHANCE_S = 0.002  # an event loop that was busy itself is no fault of Redis
MOST_IN_BATCH = 512  # questions

log = logging.getLogger("switchyard.state")

Command = tuple[str | int, ...]
Answers = list[Any]


LOAD: list[Command] = [("SCRIPT", "LOAD", script) for script in ALL]


class _Question:
    """Commands, and who waits for their answers."""

    __slots__ = ("answers", "commands", "late", "second_chance")

    def __init__(
        self,
        commands: Sequence[Command],
        answers: asyncio.Future[Answers | None] | None = None,
        late: Callable[[Answers], None] | None = None,
    ) -> None:
        self.commands = commands
        self.answers = answers
        self.late = late
        self.second_chance = True

    @property
    def wanted(self) -> bool:
        """Whether somebody still waits, or nobody ever did."""
        return self.answers is None or not self.answers.done()


class Link:
    """A connection that comes and goes.

    Args:
        url: redis:// or rediss://, with user, password and database where needed.
        budget_s: longest wait for an answer.
        take_writes: gives commands that are to be sent whenever a connection stands.
        note_writes: told whether those arrived.

    Attributes:
        up: whether a connection stands.
        tried: set when it is known for the first time whether one can be had.
        answered: questions that had their answer.
        missed: questions that went without: late or down.
    """

    def __init__(
        self,
        url: str,
        budget_s: float,
        take_writes: Callable[[], list[Command]],
        note_writes: Callable[[bool], None],
    ) -> None:
        self._pool = ConnectionPool.from_url(
            url, decode_responses=True, encoding_errors="replace", protocol=2, retry=Retry(NoBackoff(), 0),
            socket_connect_timeout=PATIENCE_S, socket_timeout=None, client_name="switchyard",
            driver_info=None,  # it would look for its version on disk
        )  # fmt: skip
        self._budget_s = budget_s
        self._take_writes = take_writes
        self._note_writes = note_writes
        self._waiting: deque[_Question] = deque()
        self._wanted = asyncio.Event()
        self._overdue = False
        self.up = False
        self.tried = asyncio.Event()
        self.answered = 0
        self.missed = {"late": 0, "down": 0}

    async def ask(self, commands: Sequence[Command], late: Callable[[Answers], None] | None = None) -> Answers | None:
        """Answers to some commands, in their order; None when there are none in time.

        Args:
            commands: an answer that is an error is given as an exception.
            late: called with answers that come when nobody waits for them any more.
        """
        if not self.up or self._overdue:
            self.missed["down"] += 1
            return None
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[Answers | None] = loop.create_future()
        question = _Question(commands, waiting, late)
        self._waiting.append(question)
        self._wanted.set()
        timer = loop.call_later(self._budget_s, self._give_up, question)
        try:
            answers = await waiting
        finally:
            timer.cancel()
        if answers is not None:
            self.answered += 1
        return answers

    def send(self, commands: Sequence[Command]) -> None:
        """Commands that nobody waits for; lost when no connection stands."""
        if self.up:
            self._waiting.append(_Question(commands))
            self._wanted.set()

    def nudge(self) -> None:
        """There are writes to be taken."""
        self._wanted.set()

    def _give_up(self, question: _Question) -> None:
        if question.answers is None or question.answers.done():
            return
        if question.second_chance:
            question.second_chance = False
            asyncio.get_running_loop().call_later(SECOND_CHANCE_S, self._give_up, question)
            return
        self._overdue = True  # until the next answer comes, whichever it is
        self.missed["late"] += 1
        question.answers.set_result(None)

    async def run(self) -> None:
        """Keep a connection. Runs until it is cancelled."""
        pause_s, down_since_s = FIRST_PAUSE_S, 0.0
        while True:
            connection: AbstractConnection = self._pool.make_connection()  # type: ignore[no-untyped-call]
            try:
                async with asyncio.timeout(2 * PATIENCE_S):
                    await connection.connect()  # type: ignore[no-untyped-call]
                    await _exchange(connection, LOAD)
                if down_since_s:
                    log.info("Redis is back after %.1f s", time.monotonic() - down_since_s)
                pause_s, down_since_s = FIRST_PAUSE_S, 0.0
                self.up, self._overdue = True, False
                self.tried.set()
                await self._serve(connection)
            except (RedisError, OSError, TimeoutError) as error:
                self.up = False
                self.tried.set()
                if not down_since_s:
                    down_since_s = time.monotonic()
                    why = str(error).rstrip(".") or "it doesn't answer"
                    log.warning("Redis: %s; sessions and limits are this process's own until it is back", why)
            finally:
                self.up = False
                self._let_go()
                await _close(connection)
            await asyncio.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)

    def _let_go(self) -> None:
        """Nobody waits for what can't come."""
        while self._waiting:
            question = self._waiting.popleft()
            if question.answers is not None and not question.answers.done():
                self.missed["down"] += 1
                question.answers.set_result(None)

    async def _serve(self, connection: AbstractConnection) -> None:
        while True:
            if not self._waiting:
                try:
                    async with asyncio.timeout(IDLE_S):
                        await self._wanted.wait()
                except TimeoutError:
                    pass  # nobody asks: see whether it is still there
            self._wanted.clear()
            writes = self._take_writes()
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), MOST_IN_BATCH))]
            batch = [question for question in batch if question.wanted]
            commands = [*writes, *(command for question in batch for command in question.commands)]
            arrived = False
            try:
                async with asyncio.timeout(PATIENCE_S):
                    answers = await _exchange(connection, commands or [("PING",)])
                arrived = True
            finally:
                if writes:
                    self._note_writes(arrived)
                if not arrived:
                    self._waiting.extendleft(reversed(batch))  # `run` tells them
            self._overdue = False
            at = len(writes)
            for question in batch:
                found = answers[at : at + len(question.commands)]
                at += len(found)
                _deliver(question, found)
            if any(isinstance(answer, NoScriptError) for answer in answers):  # somebody has emptied its memory of scripts
                async with asyncio.timeout(PATIENCE_S):
                    await _exchange(connection, LOAD)


def _deliver(question: _Question, answers: Answers) -> None:
    if question.answers is None:
        return
    if not question.answers.done():
        question.answers.set_result(answers)
    elif question.late is not None:
        question.late(answers)


async def _exchange(connection: AbstractConnection, commands: Sequence[Command]) -> Answers:
    await connection.send_packed_command(connection.pack_commands(commands))
    answers: Answers = []
    for _ in commands:
        try:
            answers.append(await connection.read_response())
        except ResponseError as error:  # of one command; the connection is good
            answers.append(error)
    return answers


async def _close(connection: AbstractConnection) -> None:
    try:
        async with asyncio.timeout(PATIENCE_S):
            await connection.disconnect(nowait=True)
    except (RedisError, OSError, TimeoutError):
        pass
