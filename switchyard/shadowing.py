"""Shadows: a sample of the small pool's answers is asked of the big pool once more while that has nothing to do.

It begins when the client has its answer, and ends at once when anybody comes for the big pool. Nothing of it reaches a
client, a decision, a replica's health or a file: what remains is how often both pools said the same. What counts as the
same is `check/answers.py`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal
from weakref import WeakSet

from msgspec.structs import replace

from switchyard.check.answers import Kind, compare, read_answer
from switchyard.config.route import Route
from switchyard.errors import GatewayError
from switchyard.intervals import wilson_interval
from switchyard.patching import patch
from switchyard.pools.pool import Pool
from switchyard.routing.decision import Decision
from switchyard.routing.request import Body
from switchyard.sending import Outgoing, Sender
from switchyard.telemetry.record import Record
from switchyard.telemetry.tracing import NoTracing
from switchyard.upstream.connection import Response
from switchyard.upstream.pool import ConnectFailed
from switchyard.upstream.sse import AnswerReader

PROTOCOLS = frozenset({"chat", "messages", "responses"})
MAX_REQUEST_BYTES = 1024 * 1024  # of a request that is sampled: it is kept until its shadow ends
MAX_ANSWER_BYTES = 256 * 1024  # of either answer; a longer one is not compared
MOST_COPIES = 16  # answers that are kept at the same time; more are not sampled
LIMIT_S = 300.0

log = logging.getLogger("switchyard.shadows")

Said = tuple[bytes, bool]
"""The bytes of an answer, and whether they are a stream."""
Result = Literal["same", "different", "not_compared", "left", "busy", "failed"]


class Copy:
    """What the small pool answers, kept while it passes: never more than `MAX_ANSWER_BYTES`.

    Attributes:
        big: name of the pool that will be asked.
        stream: whether it is a stream.
    """

    def __init__(self, big: str, stream: bool) -> None:
        self.big = big
        self.stream = stream
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, data: bytes) -> None:
        """A piece of the answer."""
        self._size += len(data)
        if self._size <= MAX_ANSWER_BYTES:
            self._parts.append(data)
        else:
            self._parts.clear()

    def body(self) -> bytes | None:
        """The whole answer; None when it was too long."""
        return b"".join(self._parts) if self._size <= MAX_ANSWER_BYTES else None


class CopyingReader(AnswerReader):
    """A reader that also keeps what it sees."""

    __slots__ = ("_copy",)

    def __init__(self, protocol: str, copy: Copy) -> None:
        super().__init__(protocol, copy.stream)
        self._copy = copy

    def see(self, data: bytes) -> None:
        """See `AnswerReader.see`."""
        super().see(data)
        self._copy.add(data)


@dataclass(slots=True)
class Agreement:
    """What came of one route's shadows, since the gateway began.

    Attributes:
        results: how they ended.
        compared: how many answers could be compared, by kind.
        same: how many of those were the same.
        tokens: what the big pool counted for them: input and output.
        seconds: how long it worked on them together.
    """

    results: Counter[Result] = field(default_factory=Counter)
    compared: Counter[Kind] = field(default_factory=Counter)
    same: Counter[Kind] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """For the control plane; intervals are Wilson's, 90 %."""
        return {
            "results": dict(self.results),
            "agreement": {
                kind: {
                    "compared": count, "same": self.same[kind], "share": self.same[kind] / count,
                    "interval": self.interval(kind),
                }
                for kind, count in self.compared.items()
            },
            "tokens": dict(self.tokens), "seconds": round(self.seconds, 3),
        }  # fmt: skip

    def interval(self, kind: Kind) -> tuple[float, float]:
        """Ends of the interval for the share of same answers."""
        found = wilson_interval(self.same[kind], self.compared[kind])
        return found.low, found.high


class Shadowing:
    """All shadows of a gateway; it outlives policies.

    Args:
        random: source of chance.
        is_draining: whether the gateway is about to end: then nothing new begins.
    """

    def __init__(self, random: Random, is_draining: Callable[[], bool]) -> None:
        self._random = random
        self._is_draining = is_draining
        self._copies: WeakSet[Copy] = WeakSet()
        self._tasks: dict[asyncio.Task[None], str] = {}
        self.found: dict[tuple[str, str, str], Agreement] = {}
        """By route, small pool, big pool."""

    def sample(self, name: str, route: Route, outgoing: Outgoing, decision: Decision, response: Response) -> Copy | None:
        """Whether an answer that is about to come shall have a shadow; if so, what keeps it."""
        settings = route.shadow
        if settings is None or len(route.choose) < 2 or self._random.random() >= settings.share:
            return None
        view, served_by, big = outgoing.view, outgoing.record.pool, route.choose[-1].use
        if served_by == big or big not in decision.fallbacks or view.protocol not in PROTOCOLS or view.counting:
            return None
        if (
            len(self._copies) >= MOST_COPIES
            or len(view.body.raw) > MAX_REQUEST_BYTES
            or (response.length or 0) > MAX_ANSWER_BYTES
        ):
            return None
        if view.protocol == "responses" and (view.body.text("previous_response_id") or view.body.value("background")):
            return None  # what it follows is stored elsewhere
        copy = Copy(big, response.is_stream)
        self._copies.add(copy)
        return copy

    def begin(self, copy: Copy, name: str, route: Route, outgoing: Outgoing, sender: Sender, pools: Mapping[str, Pool]) -> None:
        """The client has its answer: ask the big pool, if it has nothing to do now."""
        agreement = self.found.setdefault((name, outgoing.record.pool, copy.big), Agreement())
        body, pool = copy.body(), pools[copy.big]
        limit = route.shadow.concurrency if route.shadow is not None else 0
        running = sum(route_name == name for route_name in self._tasks.values())
        if body is None:
            agreement.results["not_compared"] += 1
        elif self._is_draining() or running >= limit or not pool.is_idle:
            agreement.results["busy"] += 1
        else:
            task = asyncio.create_task(self._run(agreement, (body, copy.stream), outgoing, sender, pool), name="shadow")
            self._tasks[task] = name
            pool.guests.add(task)
            task.add_done_callback(lambda done: self._end(done, pool))

    def _end(self, task: asyncio.Task[None], pool: Pool) -> None:
        self._tasks.pop(task, None)
        pool.guests.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a shadow has failed", exc_info=task.exception())

    async def stop(self) -> None:
        """End what runs."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, agreement: Agreement, small: Said, outgoing: Outgoing, sender: Sender, pool: Pool) -> None:
        """One shadow, whatever becomes of it."""
        result: Result = "left"
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(LIMIT_S):
                big = await self._ask(agreement, outgoing, sender, pool)
            found = await asyncio.to_thread(_compare, outgoing.view.protocol, small, big)
            result = "not_compared" if found is None else "same" if found[1] else "different"
            if found is not None:
                agreement.compared[found[0]] += 1
                agreement.same[found[0]] += found[1]
        except (GatewayError, ConnectFailed, TimeoutError, _NoAnswer):
            result = "failed"
        finally:
            agreement.results[result] += 1
            agreement.seconds += time.monotonic() - began_s

    async def _ask(self, agreement: Agreement, outgoing: Outgoing, sender: Sender, pool: Pool) -> Said:
        """The big pool's answer.

        Raises:
            GatewayError, ConnectFailed, _NoAnswer: there is none.
        """
        protocol = outgoing.view.protocol
        record = Record(f"{outgoing.record.id}-shadow", outgoing.record.path, protocol, time.monotonic())
        shadow = replace(outgoing, record=record, trace=NoTracing().begin("", {}))
        body, _ = patch(outgoing.view, outgoing.signals, pool)
        if protocol == "responses":
            body = Body(body).patched({"store": b"false"})
        replica = self._random.choice([r for r in pool.replicas if r.healthy])
        response: Response | None = None
        try:
            response = await sender.attempt(shadow, pool, replica, body)
            if response.status != 200:
                raise _NoAnswer
            answer = await response.read(MAX_ANSWER_BYTES + 1)
        finally:
            if response is not None:
                response.abandon()
        stream = response.is_stream
        reader = AnswerReader(protocol, stream)
        reader.see(answer)
        usage = reader.usage()
        agreement.tokens["input"] += usage.input_tokens or 0
        agreement.tokens["output"] += usage.output_tokens or 0
        return answer, stream


def _compare(protocol: str, small: Said, big: Said) -> tuple[Kind, bool] | None:
    """See `check.answers.compare`; None also for an answer that is too long or can't be read. Takes milliseconds."""
    if len(big[0]) > MAX_ANSWER_BYTES:
        return None
    first, second = (read_answer(protocol, body, stream) for body, stream in (small, big))
    return compare(first, second) if first is not None and second is not None else None


class _NoAnswer(Exception):
    """The engine refused."""
