"""The engines of the soak: each request brings its plan along in a header, storms come from outside."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import Any

from integration.engine import CLOSE, HANG, JSON_TYPE, RESET, SSE_TYPE, End, Engine, Request, Step, chunk, head, reply

from .talk import events, whole, words

HEADER = "x-soak"
ASKED_USAGE = b',"stream_options":{"include_usage":true}}'
ENDS: dict[str, End] = {"reset": RESET, "close": CLOSE, "hang": HANG}


@dataclass(frozen=True)
class Plan:
    """What an engine is to do with a request.

    Attributes:
        id: of the request.
        kind: chat, messages or responses.
        digest: of the body, but for its model and last brace.
        length: bytes of that.
        count: words of the answer.
        width: least characters of a word.
        call: step of the tool call to answer with; None for text.
        wait_s: before the head.
        pause_s: between two events.
        end: how it breaks: reset, close or hang; empty when it doesn't.
        at: events (pieces of a whole answer) before that; -1 is before the head.
        status: an error to answer with.
        error: body of that.
        after: what becomes of the connection after the answer: kept, close or reset.
        after_s: when.
    """

    id: str
    kind: str
    digest: str = ""
    length: int = 0
    count: int = 12
    width: int = 0
    call: int | None = None
    wait_s: float = 0.0
    pause_s: float = 0.0
    end: str = ""
    at: int = 0
    status: int = 200
    error: str = ""
    after: str = "kept"
    after_s: float = 0.0

    @property
    def said(self) -> list[str]:
        return words(self.id, self.count, self.width) if self.call is None else []

    def header(self) -> str:
        return json.dumps(asdict(self))


def digest_of(data: bytes) -> str:
    return blake2b(data, digest_size=12).hexdigest()


@dataclass
class Ledger:
    """What the engines know about requests, by id. Written in the engines' threads, read in the main one.

    Attributes:
        arrived: how often each came.
        begun: how often an answer to it was begun with status 200.
        hit: those that a storm caught in the act.
        wrong: what was wrong with requests.
    """

    arrived: dict[str, int] = field(default_factory=dict)
    begun: dict[str, int] = field(default_factory=dict)
    hit: set[str] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)


class _Nothing(list[Any]):
    """Holds nothing: twenty minutes of bodies would fill the memory."""

    def append(self, item: Any) -> None: ...


class SoakEngine(Engine):
    """An engine that follows the plans of its requests."""

    def __init__(self, model: str, ledger: Ledger) -> None:
        super().__init__(model)
        self.requests = _Nothing()
        self.frozen = False
        self.busy = False
        self._ledger = ledger
        self._open: set[str] = set()

    def kill(self) -> None:
        """Reset all connections and refuse new ones."""
        self._ledger.hit.update(self._open)
        self.shut()
        self._ledger.hit.update(self._open)

    def script_for(self, request: Request) -> Iterable[Step]:
        carried = request.header(HEADER)
        if carried is None:
            return super().script_for(request)
        return self._follow(Plan(**json.loads(carried)), request)

    def _follow(self, plan: Plan, request: Request) -> Iterator[Step]:
        ledger = self._ledger
        ledger.arrived[plan.id] = ledger.arrived.get(plan.id, 0) + 1
        self._open.add(plan.id)
        try:
            asked_usage = self._check(plan, request)
            if self.frozen:
                yield from self._freeze(plan)
            if plan.wait_s:
                yield plan.wait_s
            if self.busy:
                busy = {"error": {"message": "busy", "type": "ServiceUnavailable", "param": None, "code": 503}}
                yield from reply(busy, 503, [JSON_TYPE, ("retry-after", "1")])
            elif plan.status != 200:
                kind = JSON_TYPE if plan.error.startswith("{") else ("content-type", "text/html")
                yield from reply(plan.error.encode(), plan.status, [kind])
            elif b'"stream": true' in request.body[-400:] or b'"stream": true' in request.body[:400]:
                yield from self._stream(plan, asked_usage)
            else:
                yield from self._whole(plan)
        finally:
            self._open.discard(plan.id)
        if plan.after != "kept":
            yield plan.after_s
            yield ENDS[plan.after]

    def _check(self, plan: Plan, request: Request) -> bool:
        """The body is the client's but for the model; gives whether usage was asked for."""
        start = f'{{"model": "{self.model}", '.encode()
        rest = request.body[len(start) :]
        tail = rest[plan.length :]
        if not request.body.startswith(start) or digest_of(rest[: plan.length]) != plan.digest:
            self._ledger.wrong.append(f"{plan.id}: the engine got another body, of {len(request.body)} bytes")
        if tail not in {b"}", ASKED_USAGE}:
            self._ledger.wrong.append(f"{plan.id}: the body ends with {tail[:80]!r}")
        for name in ("authorization", "transfer-encoding", "x-api-key"):
            if request.header(name) is not None:
                self._ledger.wrong.append(f"{plan.id}: the engine got {name}")
        return tail == ASKED_USAGE

    def _freeze(self, plan: Plan) -> Iterator[Step]:
        self._ledger.hit.add(plan.id)
        yield HANG

    def _begin(self, plan: Plan) -> None:
        self._ledger.begun[plan.id] = self._ledger.begun.get(plan.id, 0) + 1

    def _stream(self, plan: Plan, usage: bool) -> Iterator[Step]:
        if plan.at < 0 and plan.end:
            yield ENDS[plan.end]
        self._begin(plan)
        yield head(200, [SSE_TYPE], chunked=True)
        for number, event in enumerate(events(plan.kind, self.model, plan.said, plan.call, usage)):
            if plan.end and number == plan.at:
                yield chunk(event)[: len(event) // 2]  # in the middle of an event
                yield ENDS[plan.end]
            if self.frozen:
                yield from self._freeze(plan)
            yield chunk(event)
            if plan.pause_s:
                yield plan.pause_s
        yield b"0\r\n\r\n"

    def _whole(self, plan: Plan) -> Iterator[Step]:
        if plan.at < 0 and plan.end:
            yield ENDS[plan.end]
        self._begin(plan)
        data = json.dumps(whole(plan.kind, self.model, plan.said, plan.call)).encode()
        yield head(200, [JSON_TYPE], length=len(data))
        half = len(data) // 2
        yield data[:half]
        if plan.end:
            yield ENDS[plan.end]
        if plan.pause_s:
            yield plan.pause_s
        yield data[half:]


@dataclass(frozen=True)
class Storm:
    """A time of trouble with one engine.

    Attributes:
        what: kill, freeze or busy.
    """

    what: str
    engine: str
    began_s: float
    ended_s: float


async def rage(what: str, engine: SoakEngine, name: str, for_s: float) -> Storm:
    """One storm, from its beginning to its end."""
    began_s = time.monotonic()
    match what:
        case "kill":
            await asyncio.to_thread(engine.kill)
            await asyncio.sleep(for_s)
            await asyncio.to_thread(engine.listen)
        case "freeze":
            engine.frozen = True
            await asyncio.sleep(for_s)
            engine.frozen = False
        case _:
            engine.busy = True
            await asyncio.sleep(for_s)
            engine.busy = False
    return Storm(what, name, began_s, time.monotonic())
