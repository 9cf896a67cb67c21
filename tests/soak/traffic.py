"""The clients of the soak: each scenario sends requests and says how each of them ended and may end."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from integration.client import Answer, request_bytes

from .engines import HEADER, Ledger, Plan, digest_of
from .talk import PATHS, Conversation, Wrong, picture, read
from .wire import Wire, until

KINDS = ("chat", "messages", "responses")
IDLE_S = 60.0
"""Connections that were kept for longer are left: the gateway closes them soon."""
LONGEST_S = 45.0
"""After this a request counts as hanging; every limit in the gateway's policy is shorter."""
Json = dict[str, Any]


@dataclass
class Sent:
    """One request and what became of it.

    Attributes:
        ending: good, event (the protocol's own error), cut (a whole answer that is visibly incomplete), error STATUS,
            left (we went away), or nothing while it is under way.
        code: of an error that the gateway made.
        allowed: endings that are right.
        lines: how many lines of the decision log belong to it.
    """

    id: str
    scenario: str
    allowed: frozenset[str]
    lines: frozenset[int] = frozenset({1})
    began_s: float = field(default_factory=time.monotonic)
    ended_s: float = 0.0
    ending: str = ""
    code: str = ""
    pool: str = ""
    reason: str = ""


class Traffic:
    """Sends requests to a gateway and keeps the account of them.

    Args:
        port: the gateway's.
        ledger: what the engines know.
        random: source of chance.
    """

    def __init__(self, port: int, ledger: Ledger, random: Random) -> None:
        self._port = port
        self._ledger = ledger
        self._random = random
        self._numbers = itertools.count(1)
        self._kept: list[tuple[float, Wire]] = []
        self.sent: dict[str, Sent] = {}
        self.problems: list[str] = []
        self.open = 0
        self.scenarios: Mapping[str, tuple[float, Callable[[], Awaitable[None]]]] = {
            "talk": (40, self.talk),
            "leaving client": (20, self.leave),
            "broken answer": (10, self.break_answer),
            "engine's error": (8, self.engine_error),
            "slow reader": (3, self.read_slowly),
            "big body": (4, self.big_body),
            "burst": (3, self.burst),
            "bad request": (6, self.bad_request),
            "other endpoint": (4, self.other_endpoint),
            "stale connection": (5, self.stale),
        }

    async def play(self) -> None:
        """One scenario, by chance."""
        names = list(self.scenarios)
        name = self._random.choices(names, [self.scenarios[n][0] for n in names])[0]
        await self.play_one(name)

    async def play_one(self, name: str) -> None:
        """One scenario; it can't hang and can't raise."""
        self.open += 1
        try:
            async with asyncio.timeout(4 * LONGEST_S):
                await self.scenarios[name][1]()
        except (Wrong, OSError, ValueError, LookupError, AssertionError, asyncio.IncompleteReadError) as error:
            self.problems.append(f"{name}: {type(error).__name__}: {error}")
        except TimeoutError:
            self.problems.append(f"{name}: it hangs")
        finally:
            self.open -= 1

    async def close(self) -> None:
        """Close connections that were kept for later."""
        for _, wire in self._kept:
            await wire.leave()
        self._kept.clear()

    # ---- one request ----

    def _begin(self, scenario: str, allowed: Collection[str], lines: Collection[int] = (1,)) -> Sent:
        sent = Sent(f"s{next(self._numbers)}", scenario, frozenset(allowed), frozenset(lines))
        self.sent[sent.id] = sent
        return sent

    def _end(self, sent: Sent, ending: str, answer: Answer | None = None) -> None:
        sent.ended_s = time.monotonic()
        sent.ending = ending
        if answer is not None:
            sent.code, sent.pool, sent.reason = answer.code or "", answer.pool or "", answer.reason

    def _pack(self, sent: Sent, kind: str, model: str, fields: Json, plan: Plan, headers: Mapping[str, str]) -> bytes:
        """A request whose engine will check that its body came as it was sent."""
        body = json.dumps({"model": model, **fields}).encode()
        rest = body.partition(b", ")[2][:-1]  # what the gateway may not touch
        whole = Plan(**{**vars(plan), "digest": digest_of(rest), "length": len(rest)})
        carried = {HEADER: whole.header(), "x-request-id": sent.id, **headers}
        return request_bytes(PATHS[kind], body, list(carried.items()))

    async def _wire(self) -> Wire:
        """A connection: sometimes one that served before."""
        if self._kept and self._random.random() < 0.6:
            kept_s, wire = self._kept.pop()
            if time.monotonic() - kept_s < IDLE_S:
                return wire
            await wire.leave()
        return await Wire.open(self._port)

    async def _give_back(self, wire: Wire, answer: Answer, ending: str) -> None:
        """Keep a connection, unless the gateway closes it: it says so, or has to end a broken stream."""
        if answer.complete and answer.header("connection") != "close" and ending != "event" and len(self._kept) < 8:
            self._kept.append((time.monotonic(), wire))
        else:
            await wire.leave()

    async def _ask(self, sent: Sent, raw: bytes, plan: Plan, wire: Wire | None = None) -> Answer:
        """Send, read all, say how it ended."""
        wire = wire or await self._wire()
        try:
            async with asyncio.timeout(LONGEST_S):
                await wire.send(raw)
                answer = await wire.rest(await wire.head())
        except TimeoutError:
            self._end(sent, "hangs")
            await wire.leave()
            raise
        except BaseException:
            await wire.leave()
            raise
        try:
            ending = read(plan.kind, answer, plan.said, plan.call)
        except BaseException:
            await wire.leave()
            raise
        await self._give_back(wire, answer, ending)
        self._end(sent, ending, answer)
        return answer

    def _plan(self, sent: Sent, kind: str, **how: Any) -> Plan:
        return Plan(sent.id, kind, **how)

    def _text(self) -> str:
        return " ".join(
            self._random.choices(["rename", "prove", "the", "file", "def f():", "a", "deadlock", "x"], k=self._length())
        )

    def _length(self) -> int:
        return self._random.choice([3, 10, 40, 400])

    # ---- scenarios ----

    async def talk(self) -> None:
        """A session of several turns with growing history and loops of tool calls; a loop stays in its pool."""
        random = self._random
        kind = random.choice(KINDS)
        tools = random.choice([0, 0, 3, 20])
        talk = Conversation(kind, tools)
        headers = {"x-session-id": f"session-{random.getrandbits(40):x}"} if random.random() < 0.6 else {}
        model = random.choice(["auto", "checked"])
        for _ in range(random.randint(1, 5)):
            talk.say(self._text())
            pool = ""
            for step in range(random.choice([0, 1, 3]) if tools else 0):
                answer = await self._turn(talk, model, headers, step)
                if answer.status != 200:
                    return
                pool = self._same_pool(pool, answer)
                talk.called("tool_0", step, random.choice(["done", "Error: no such file", "x" * 3000]))
            answer = await self._turn(talk, model, headers, None)
            if answer.status != 200:
                return
            self._same_pool(pool, answer)
            talk.hear(self._text())
            await asyncio.sleep(random.uniform(0, 0.4))

    async def _turn(self, talk: Conversation, model: str, headers: Mapping[str, str], call: int | None) -> Answer:
        sent = self._begin("talk", {"good"})
        pause_s = self._random.choice([0, 0, 0.01, 0.05])
        plan = self._plan(sent, talk.kind, count=self._random.choice([1, 12, 60]), call=call, pause_s=pause_s)
        fields = talk.fields(stream=self._random.random() < 0.7)
        return await self._ask(sent, self._pack(sent, talk.kind, model, fields, plan, headers), plan)

    def _same_pool(self, pool: str, answer: Answer) -> str:
        """A loop of tool calls moves for two reasons only: a rule of the policy, and engines that can't be reached."""
        if pool and answer.pool != pool and "can be reached" not in answer.reason and "rule" not in answer.reason:
            raise Wrong(f"a tool loop went from {pool} to {answer.pool}: {answer.reason}")
        return answer.pool or ""

    async def leave(self) -> None:
        """A client that goes away in some phase, politely or with RST."""
        random = self._random
        kind, phase = random.choice(KINDS), random.choice(["body", "sent", "waiting", "middle", "middle", "late"])
        stream = random.random() < 0.7
        sent = self._begin("leaving client", {"left"}, {0} if phase == "body" else {1})
        plan = self._plan(sent, kind, count=200, pause_s=0.02 if stream else 0.5, wait_s=2.0 if phase == "waiting" else 0.0)
        talk = Conversation(kind, 0)
        talk.say(self._text())
        raw = self._pack(sent, kind, "auto", talk.fields(stream=stream), plan, {})
        politely = random.random() < 0.5
        wire = await Wire.open(self._port)
        try:
            async with asyncio.timeout(LONGEST_S):
                await wire.send(raw if phase != "body" else raw[: len(raw) - random.randint(1, 40)])
                if phase == "sent" and not politely:
                    sent.lines = frozenset({0, 1})  # the reset may overtake what was sent
                if phase == "waiting":
                    await until(lambda: sent.id in self._ledger.arrived, 3)
                if phase in {"middle", "late"}:
                    await self._read_a_little(wire, phase)
        finally:
            await (wire.leave() if politely else wire.reset())
        if phase in {"middle", "late"}:
            sent.lines = frozenset({1})
        elif sent.id not in self._ledger.arrived and not politely:
            sent.lines |= {0}
        self._end(sent, "left")

    async def _read_a_little(self, wire: Wire, phase: str) -> None:
        answer = await wire.head()
        seen = 0
        async for _ in wire.pieces(answer):
            seen += 1
            if phase == "middle" or seen > 20:
                return

    async def break_answer(self) -> None:
        """An engine that breaks off, resets or hangs before its answer, or in it."""
        random = self._random
        kind, stream = random.choice(KINDS), random.random() < 0.75
        end, at = random.choice(["reset", "close", "reset", "close", "hang"]), random.choice([-1, 0, 1, 5])
        before, inside = "error 504" if end == "hang" else "error 502", "event" if stream else "cut"
        announced = stream and kind == "responses" and at in {0, 1}  # nothing of an answer yet
        sent = self._begin("broken answer", {before} if at < 0 else {before, inside} if announced else {inside})
        plan = self._plan(sent, kind, end=end, at=at)
        talk = Conversation(kind, 0)
        talk.say(self._text())
        await self._ask(sent, self._pack(sent, kind, "auto", talk.fields(stream=stream), plan, {}), plan)

    async def engine_error(self) -> None:
        """An engine that says no, in its own shape or in none."""
        random = self._random
        kind, status = random.choice(KINDS), random.choice([400, 401, 404, 422, 429, 500, 503, 307])
        error = random.choice(
            [
                '{"error": {"message": "no", "type": "BadRequestError", "param": null, "code": 1}}',
                '{"detail": [{"loc": ["body", "x"], "msg": "wrong"}]}',
                "<html><b>Bad Gateway</b></html>",
                '{"object": "error", "message": "no", "type": "x", "code": 400}',
                "{",
            ]
        )
        sent = self._begin("engine's error", {"error 502" if status == 307 else f"error {status}"})
        plan = self._plan(sent, kind, status=status, error=error)
        talk = Conversation(kind, 0)
        talk.say(self._text())
        await self._ask(sent, self._pack(sent, kind, "auto", talk.fields(stream=random.random() < 0.5), plan, {}), plan)

    async def read_slowly(self) -> None:
        """A reader that takes less than the engine gives, and once nothing at all for longer than the engine may pause."""
        kind = self._random.choice(KINDS)
        sent = self._begin("slow reader", {"good"})
        plan = self._plan(sent, kind, count=1500, width=1000)
        talk = Conversation(kind, 0)
        talk.say(self._text())
        raw = self._pack(sent, kind, "auto", talk.fields(stream=True), plan, {})
        wire = await Wire.open(self._port, receive_buffer=16 * 1024)
        try:
            async with asyncio.timeout(LONGEST_S):
                await wire.send(raw)
                answer = await wire.head()
                got: list[bytes] = []
                async for piece in wire.pieces(answer):
                    got.append(piece)
                    if len(got) == 30:
                        await asyncio.sleep(5)
                    elif len(got) % 40 == 0:
                        await asyncio.sleep(0.03)
        finally:
            await wire.leave()
        answer.body = b"".join(got)
        self._end(sent, read(kind, answer, plan.said, None), answer)

    async def big_body(self) -> None:
        """A chat with megabytes of pictures goes to the pool that takes them."""
        random = self._random
        sent = self._begin("big body", {"good"})
        plan = self._plan(sent, "chat")
        talk = Conversation("chat", 3)
        count = random.randint(1, 4)
        size = random.randint(1, 8) << 20
        talk.say([{"type": "text", "text": self._text()}, *(picture(size // count) for _ in range(count))])
        raw = self._pack(sent, "chat", "auto", talk.fields(stream=random.random() < 0.5), plan, {})
        answer = await self._ask(sent, raw, plan)
        if answer.status == 200 and answer.pool != "big":
            raise Wrong(f"{sent.id}: pictures went to {answer.pool}")

    async def burst(self) -> None:
        """More requests than a narrow pool takes: some wait, some are told to come later, some leave the queue."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(self._random.randint(6, 12)):
                tasks.create_task(self._one_of_burst(number % 5 == 4))

    async def _one_of_burst(self, impatient: bool) -> None:
        sent = self._begin("burst", {"left"} if impatient else {"good", "error 429", "error 503"})
        kind = self._random.choice(KINDS)
        plan = self._plan(sent, kind, count=5, pause_s=0.1)
        talk = Conversation(kind, 0)
        talk.say(self._text())
        raw = self._pack(sent, kind, "narrow", talk.fields(stream=True), plan, {})
        if not impatient:
            await self._ask(sent, raw, plan, await Wire.open(self._port))
            return
        wire = await Wire.open(self._port)
        await wire.send(raw)
        await asyncio.sleep(0.2)
        await wire.leave()
        self._end(sent, "left")

    async def bad_request(self) -> None:
        """What no engine must see."""
        kind = self._random.choice(KINDS)
        path, body, status, lines = self._random.choice(
            [
                (PATHS[kind], b"{", 400, 1),
                (PATHS[kind], b"", 400, 1),
                (PATHS[kind], b'{"model": "auto", "model": "auto"}', 400, 1),
                (PATHS[kind], b'{"model": "nobody", "messages": []}', 404, 1),
                (PATHS[kind], b'{"messages": []}', 400, 1),
                ("/v1/nothing", b"{}", 404, 0),
                ("/v1/responses/resp_unknown", None, 404, 1),
            ]
        )
        sent = self._begin("bad request", {f"error {status}"}, {lines})
        raw = request_bytes(path, body, [("x-request-id", sent.id)], method="GET" if body is None else "POST")
        shape = kind if path == PATHS[kind] else "chat"
        await self._ask(sent, raw, Plan(sent.id, shape))
        if sent.id in self._ledger.arrived:
            raise Wrong(f"{sent.id}: an engine has seen a bad request")

    async def other_endpoint(self) -> None:
        """Endpoints besides the three, and the control plane on the same connections."""
        path, fields, mark = self._random.choice(
            [
                ("/v1/embeddings", {"input": "hi"}, b'"embedding"'),
                ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "hi"}]}, b'"input_tokens"'),
                ("/tokenize", {"prompt": "hi"}, b'"tokens"'),
                ("/v1/completions", {"prompt": "hi", "stream": True}, b"[DONE]"),
                ("/v1/models", None, b'"auto"'),
                ("/readyz", None, b'"ready":true'),
                ("/metrics", None, b"switchyard_in_flight"),
            ]
        )
        sent = self._begin("other endpoint", {"good"}, {0 if fields is None else 1})
        method = "GET" if fields is None else "POST"
        raw = request_bytes(path, fields and {"model": "auto", **fields}, [("x-request-id", sent.id)], method=method)
        wire = await self._wire()
        async with asyncio.timeout(LONGEST_S):
            await wire.send(raw)
            answer = await wire.rest(await wire.head())
        await self._give_back(wire, answer, "")
        good = answer.status == 200 and answer.complete and mark in answer.body
        self._end(sent, "good" if good else f"error {answer.status}", answer)

    async def stale(self) -> None:
        """Engines that close a kept connection soon after their answer: nobody notices, whatever comes next on it."""
        random = self._random
        for _ in range(3):
            sent = self._begin("stale connection", {"good"})
            kind = random.choice(KINDS)
            after_s = random.choice([0.0, 0.005, 0.05, 0.5])
            plan = self._plan(sent, kind, count=2, after=random.choice(["close", "reset"]), after_s=after_s)
            talk = Conversation(kind, 0)
            talk.say(self._text())
            raw = self._pack(sent, kind, "auto", talk.fields(stream=random.random() < 0.5), plan, {})
            await self._ask(sent, raw, plan)
            await asyncio.sleep(random.choice([0, 0.005, 0.05]))
