"""One emulated engine on one port: vLLM's endpoints and metrics around the clockwork of `cluster/engine.py`, and its faults."""

from __future__ import annotations

import asyncio
import itertools
import math
from dataclasses import dataclass
from hashlib import blake2b
from random import Random
from typing import Any

import msgspec

from switchyard.cluster.engine import Engine, Event, Job
from switchyard.emulate.answers import BYTES_A_TOKEN, ENDPOINTS, Answer, Asked, read_asked
from switchyard.emulate.faults import Fault
from switchyard.emulate.http import Connection, Request
from switchyard.emulate.pace import Pace

NATURAL_TOKENS = 200
"""Median length of an answer that ends by itself; a request's own text decides how long it is."""
SPREAD = 0.6
"""Of those lengths: standard deviation of their logarithm."""
OFTEN_S = 0.002
"""Real seconds between two looks at the streams of an engine: under compressed time, several tokens come at once."""
PEER_DEAD_S = 0.06
"""How fast a request fails when a rank other than the head's is dead, as seen with vLLM over two nodes."""
COUNTING = {"/v1/messages/count_tokens", "/tokenize"}


@dataclass(frozen=True, slots=True)
class Made:
    """What an emulated engine is made of.

    Attributes:
        name: of the replica.
        model: that it serves.
        max_model_len: tokens that prompt and answer may have together.
        block_tokens: of its prefix cache.
    """

    name: str
    pool: str
    model: str
    max_model_len: int
    block_tokens: int
    nodes: tuple[str, ...] = ()


class EmulatedEngine:
    """An engine that only takes time.

    Args:
        made: what it is.
        engine: how its time passes.
        pace: its clock.
        host: address to listen on.
        port: to listen on; 0: any that is free.
    """

    def __init__(self, made: Made, engine: Engine, pace: Pace, host: str, port: int) -> None:
        self.made = made
        self.engine = engine
        self.host, self.port = host, port
        self.fault: Fault | None = None
        self._pace = pace
        self._server: asyncio.Server | None = None
        self._connections: set[Connection] = set()
        self._open: dict[Job, _Open] = {}
        self._ids = itertools.count(1)
        self._wake: asyncio.TimerHandle | None = None
        self._recovery: asyncio.TimerHandle | None = None
        self._restarts: set[asyncio.Task[None]] = set()
        self._finished = {"stop": 0, "length": 0, "abort": 0}
        self._first_token = [0.0, 0.0]  # sum and count
        self._whole_time = [0.0, 0.0]

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://{self.host}:{self.port}"

    # ---- life and faults ----

    async def start(self) -> None:
        """Listen."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self._handle, self._connections), self.host, self.port, reuse_address=True
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """End for good."""
        for handle in (self._wake, self._recovery):
            if handle is not None:
                handle.cancel()
        for task in self._restarts:
            task.cancel()
        self._die()

    def suffer(self, fault: Fault) -> None:
        """Let a fault happen; the one before it is over."""
        self.recover()
        self.fault = fault
        match fault.kind:
            case "kill":
                self._die()
            case "oom":
                self._fail_all("CUDA out of memory")
                self._die()
            case "hang":
                self._pace.set_rate(0.0)
            case "slow":
                self._pace.set_rate(1 / fault.factor)
            case "loading" | "rank":
                pass  # seen when it is asked
        if fault.for_s:
            self._recovery = asyncio.get_running_loop().call_later(fault.for_s / self._pace.speedup, self.recover)
        self._plan_wake()

    def recover(self) -> None:
        """All is well again; an engine that died is started anew, with an empty cache."""
        if self._recovery is not None:
            self._recovery.cancel()
            self._recovery = None
        if self.fault is None:
            return
        self.fault = None
        self._pace.set_rate(1.0)
        if self._server is None:
            task = asyncio.get_running_loop().create_task(self.start())
            self._restarts.add(task)
            task.add_done_callback(self._restarts.discard)
        self._plan_wake()

    def _die(self) -> None:
        self.engine.stop()
        self._open.clear()
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in tuple(self._connections):
            connection.reset()

    def _fail_all(self, why: str) -> None:
        for opened in tuple(self._open.values()):
            opened.fail(why)
        self._open.clear()

    def _fail_for_dead_peer(self, request: Request) -> None:
        """The head learns of a dead rank when it needs it: all it works on fails, then it ends."""
        if self.fault is None or self.fault.kind != "rank":
            request.reply(503, _error(503, "ServiceUnavailableError", "The engine was restarted"))
            return
        request.reply(
            500, _error(500, "EngineDeadError", "EngineCore encountered an issue. See stack trace for the root cause.")
        )
        self._fail_all("EngineCore encountered an issue")
        self._die()

    # ---- requests ----

    def _handle(self, request: Request) -> None:
        loading = self.fault is not None and self.fault.kind == "loading"
        match request.path:
            case "/health":
                request.reply(503 if loading else 200, b"", "text/plain")
            case "/metrics":
                request.reply(200, self.metrics().encode(), "text/plain; version=0.0.4")
            case "/version":
                request.reply(200, {"version": "0.33.0+emulated"})
            case "/v1/models":
                card = {"id": self.made.model, "object": "model", "created": 1, "owned_by": "vllm"}
                request.reply(200, {"object": "list", "data": [{**card, "max_model_len": self.made.max_model_len}]})
            case "/openapi.json":
                request.reply(200, {"openapi": "3.1.0", "paths": {p: {"post": {}} for p in (*ENDPOINTS, "/tokenize")}})
            case path if path in ENDPOINTS or path in COUNTING:
                self._read(request, loading)
            case _:
                request.reply(404, {"detail": "Not Found"})

    def _read(self, request: Request, loading: bool) -> None:
        if request.method != b"POST":
            request.reply(405, {"detail": "Method Not Allowed"})
            return
        if loading:
            request.reply(503, _error(503, "ServiceUnavailableError", "The model is still loading"))
            return
        try:
            asked = read_asked(request.body)
            text = asked.text().encode(errors="replace")
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            request.reply(400, _error(400, "BadRequestError", str(error)))
            return
        prompt_tokens = max(1, len(text) // BYTES_A_TOKEN)
        if request.path in COUNTING:
            name = "count" if request.path == "/tokenize" else "input_tokens"
            request.reply(200, {name: prompt_tokens, "max_model_len": self.made.max_model_len})
        elif asked.model != self.made.model:
            request.reply(404, _error(404, "NotFoundError", f"The model `{asked.model[:100]}` does not exist."))
        elif prompt_tokens + (asked.limit_tokens or 1) > self.made.max_model_len:
            request.reply(400, _too_long(self.made.max_model_len, prompt_tokens, asked.limit_tokens or 1))
        elif self.fault is not None and self.fault.kind == "rank":
            asyncio.get_running_loop().call_later(PEER_DEAD_S, self._fail_for_dead_peer, request)
        else:
            self._generate(request, asked, text, prompt_tokens)

    def _generate(self, request: Request, asked: Asked, text: bytes, prompt_tokens: int) -> None:
        room = self.made.max_model_len - prompt_tokens
        tokens, cut = answer_length(asked, text, room)
        size = self.made.block_tokens * BYTES_A_TOKEN
        job = Job(prompt_tokens, tokens, block_keys(text, size))
        stream = bool(asked.stream)
        protocol = ENDPOINTS[request.path]
        answer = Answer(protocol, f"emu-{next(self._ids)}", self.made.model, prompt_tokens, asked.include_usage)
        self._open[job] = _Open(request, answer, stream, cut, self._pace.now_s())
        request.when_gone = lambda: self._leave(job)
        if stream:
            request.start()
        self._tell(self.engine.submit(job, self._pace.now_s()))
        self._plan_wake()

    def _leave(self, job: Job) -> None:
        if self._open.pop(job, None) is not None:
            self._finished["abort"] += 1
            self._tell(self.engine.cancel(job, self._pace.now_s()))
            self._plan_wake()

    # ---- time ----

    def _plan_wake(self) -> None:
        """Come back when something is to be told: the end of a step where tokens stream, else the next first or last token."""
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        streams = any(opened.stream for opened in self._open.values())
        at_s = self.engine.step_end_s if streams else self.engine.next_s
        delay_s = self._pace.real_s_until(at_s) if at_s is not None else None
        if delay_s is not None:
            self._wake = asyncio.get_running_loop().call_later(max(delay_s, OFTEN_S if streams else 0.0), self._look)

    def _look(self) -> None:
        self._wake = None
        self._tell(self.engine.advance(self._pace.now_s()))
        for job, opened in self._open.items():
            if opened.stream and (tokens := self.engine.tokens_of(job)) > opened.sent:
                opened.send(tokens)
        self._plan_wake()

    def _tell(self, events: list[Event]) -> None:
        for event in events:
            opened = self._open.get(event.job)
            if opened is None:
                continue
            if event.kind == "first":
                _add(self._first_token, event.at_s - opened.came_s)
                opened.begin(event.job)
                continue
            del self._open[event.job]
            _add(self._whole_time, event.at_s - opened.came_s)
            self._finished["length" if opened.cut else "stop"] += 1
            opened.end(event.job)

    # ---- what it says about itself ----

    def metrics(self) -> str:
        """The series of vLLM that gateways and dashboards read."""
        engine, labels = self.engine, f'{{engine="0",model_name="{self.made.model}"}}'
        self._tell(engine.advance(self._pace.now_s()))
        gauges: dict[str, float] = {
            "num_requests_running": engine.running,
            "num_requests_waiting": engine.waiting,
            "kv_cache_usage_perc": engine.kv_usage,
        }
        counters: dict[str, float] = {
            "prompt_tokens_total": engine.prompt_tokens,
            "generation_tokens_total": engine.generated_tokens,
            "prefix_cache_queries_total": engine.asked_tokens,
            "prefix_cache_hits_total": engine.hit_tokens,
        }
        sums: dict[str, list[float]] = {
            "time_to_first_token_seconds": self._first_token,
            "e2e_request_latency_seconds": self._whole_time,
        }
        lines = [f"# TYPE vllm:{name} gauge\nvllm:{name}{labels} {value}" for name, value in gauges.items()]
        lines += [f"# TYPE vllm:{name} counter\nvllm:{name}{labels} {value}" for name, value in counters.items()]
        for reason, count in self._finished.items():
            lines.append(f'vllm:request_success_total{{engine="0",finished_reason="{reason}"}} {count}')
        for name, (total, number) in sums.items():
            lines += [f"vllm:{name}_sum{labels} {total}", f"vllm:{name}_count{labels} {number}"]
        blocks = engine.kv_cache_tokens // self.made.block_tokens
        size = f'block_size="{self.made.block_tokens}",num_gpu_blocks="{blocks}"'
        lines.append(f"vllm:cache_config_info{{{size}}} 1")
        return "\n".join(lines) + "\n"

    def status(self) -> dict[str, Any]:
        """For people who watch the emulation."""
        engine = self.engine
        return {
            "replica": self.made.name, "pool": self.made.pool, "url": self.url, "nodes": self.made.nodes,
            "fault": self.fault.kind if self.fault is not None else None,
            "running": engine.running, "waiting": engine.waiting, "kv_cache": round(engine.kv_usage, 4),
            "finished": self._finished, "prompt_tokens": engine.prompt_tokens, "generated_tokens": engine.generated_tokens,
            "cached_share": round(engine.hit_tokens / engine.asked_tokens, 4) if engine.asked_tokens else None,
            "busy_s": round(engine.busy_s, 3),
        }  # fmt: skip


@dataclass(eq=False, slots=True)
class _Open:
    """A request that has no answer yet, or a part of it."""

    request: Request
    answer: Answer
    stream: bool
    cut: bool
    came_s: float
    sent: int = 0

    def begin(self, job: Job) -> None:
        self.answer.cached_tokens = job.cached_tokens
        if self.stream:
            self.request.write(self.answer.begin() + self.answer.tokens(0, 1))
            self.sent = 1

    def send(self, tokens: int) -> None:
        self.request.write(self.answer.tokens(self.sent, tokens))
        self.sent = tokens

    def end(self, job: Job) -> None:
        if not self.stream:
            self.request.reply(200, self.answer.whole(job.answer_tokens, self.cut))
            return
        last = self.answer.tokens(self.sent, job.answer_tokens)
        self.request.write(last + self.answer.end(job.answer_tokens, self.cut))
        self.request.finish()

    def fail(self, why: str) -> None:
        if self.stream:
            self.request.break_off()
        else:
            self.request.reply(500, _error(500, "InternalServerError", why))


def answer_length(asked: Asked, text: bytes, room: int) -> tuple[int, bool]:
    """Tokens of the answer, and whether it ends at a limit: the same request always gets the same."""
    limit = min(asked.limit_tokens or room, room)
    if asked.ignore_eos:
        return max(1, limit), True
    seed = int.from_bytes(blake2b(text, digest_size=8).digest(), "big")
    natural = max(1, asked.min_tokens or 1, round(math.exp(Random(seed).gauss(math.log(NATURAL_TOKENS), SPREAD))))
    return (limit, True) if natural >= limit else (natural, False)


def block_keys(text: bytes, size: int) -> list[bytes]:
    """A key for each full block of a prompt, which stands for all before it, too."""
    keys: list[bytes] = []
    digest = blake2b(digest_size=16)
    for begin in range(0, len(text) - size + 1, size):
        digest.update(text[begin : begin + size])
        keys.append(digest.digest())
    return keys


def _add(sum_and_count: list[float], value: float) -> None:
    sum_and_count[0] += value
    sum_and_count[1] += 1


def _error(code: int, type_: str, message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": type_, "param": None, "code": code}}


def _too_long(context: int, prompt: int, wanted: int) -> dict[str, Any]:
    return _error(
        400, "BadRequestError",
        f"This model's maximum context length is {context} tokens. However, you requested {prompt + wanted} tokens "
        f"({prompt} in the messages, {wanted} in the completion). Please reduce the length of the messages or completion.",
    )  # fmt: skip
