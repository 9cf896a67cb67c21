"""vLLM's endpoints and metrics around an engine that lives in time, on a port of its own."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from typing import Any

import msgspec

from switchyard.cluster.engine import Job
from switchyard.emulate.answers import BYTES_A_TOKEN, ENDPOINTS, Answer
from switchyard.emulate.asked import Asked, answer_length, block_keys, read_asked
from switchyard.emulate.engine import LivingEngine
from switchyard.emulate.http import Connection, Request

COUNTING = {"/v1/messages/count_tokens", "/tokenize"}


@dataclass(frozen=True, slots=True)
class Card:
    """What an emulated engine is.

    Attributes:
        name: of the replica.
        pool: it is one of.
        model: that it serves.
        max_model_len: tokens that prompt and answer may have together.
        block_tokens: of its prefix cache.
        nodes: it runs on.
    """

    name: str
    pool: str
    model: str
    max_model_len: int
    block_tokens: int
    nodes: tuple[str, ...] = ()


class EmulatedVllm:
    """An engine that only takes time, behind vLLM's API.

    Args:
        card: what it is.
        living: the engine.
        host: address to listen on.
        port: to listen on; 0: any that is free.
    """

    def __init__(self, card: Card, living: LivingEngine, host: str = "127.0.0.1", port: int = 0) -> None:
        self.card = card
        self.living = living
        self.host, self.port = host, port
        self._server: asyncio.Server | None = None
        self._connections: set[Connection] = set()
        self._restarts: set[asyncio.Task[None]] = set()
        self._ids = itertools.count(1)
        self._ended = {"stop": 0, "length": 0, "abort": 0}
        self._first_token = Sum()
        self._whole_time = Sum()

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://{self.host}:{self.port}"

    # ---- life ----

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the port is taken.
        """
        self.living.when_dead, self.living.when_back = self._shut, self._reopen
        await self._listen()

    async def stop(self) -> None:
        """End for good."""
        for task in self._restarts:
            task.cancel()
        self.living.end()
        self._shut()

    async def _listen(self) -> None:
        make = asyncio.get_running_loop().create_server
        self._server = await make(lambda: Connection(self.handle, self._connections), self.host, self.port, reuse_address=True)
        self.port = self._server.sockets[0].getsockname()[1]

    def _shut(self) -> None:
        """A process that dies takes its connections along."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in tuple(self._connections):
            connection.reset()

    def _reopen(self) -> None:
        task = asyncio.get_running_loop().create_task(self._listen())
        self._restarts.add(task)
        task.add_done_callback(self._restarts.discard)

    # ---- requests ----

    def handle(self, request: Request) -> None:
        """Answer a request."""
        loading = self.living.fault is not None and self.living.fault.kind == "loading"
        match request.path:
            case "/health":
                request.reply(503 if loading else 200, b"", "text/plain")
            case "/metrics":
                request.reply(200, self.metrics().encode(), "text/plain; version=0.0.4")
            case "/version":
                request.reply(200, {"version": "0.33.0+emulated"})
            case "/v1/models":
                card = {"id": self.card.model, "object": "model", "created": 1, "owned_by": "vllm"}
                request.reply(200, {"object": "list", "data": [{**card, "max_model_len": self.card.max_model_len}]})
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
            request.reply(200, {name: prompt_tokens, "max_model_len": self.card.max_model_len})
        elif asked.model != self.card.model:
            request.reply(404, _error(404, "NotFoundError", f"The model `{asked.model[:100]}` does not exist."))
        elif prompt_tokens + (asked.limit_tokens or 1) > self.card.max_model_len:
            request.reply(400, _too_long(self.card.max_model_len, prompt_tokens, asked.limit_tokens or 1))
        else:
            self._generate(request, asked, text, prompt_tokens)

    def _generate(self, request: Request, asked: Asked, text: bytes, prompt_tokens: int) -> None:
        tokens, cut = answer_length(asked, text, self.card.max_model_len - prompt_tokens)
        job = Job(prompt_tokens, tokens, block_keys(text, self.card.block_tokens * BYTES_A_TOKEN))
        id_ = f"emu-{next(self._ids)}"
        answer = Answer(ENDPOINTS[request.path], id_, self.card.model, prompt_tokens, asked.include_usage)
        request.when_gone = lambda: self._leave(job)
        if asked.stream:
            request.start()
        self.living.submit(job, _Open(self, request, answer, bool(asked.stream), cut, self.living.pace.now_s()))

    def _leave(self, job: Job) -> None:
        if self.living.leave(job):
            self._ended["abort"] += 1

    def note_first(self, after_s: float) -> None:
        """A first token has come."""
        self._first_token.add(after_s)

    def note_end(self, after_s: float, cut: bool) -> None:
        """An answer is complete."""
        self._whole_time.add(after_s)
        self._ended["length" if cut else "stop"] += 1

    # ---- what it says about itself ----

    def metrics(self) -> str:
        """The series of vLLM that gateways and dashboards read."""
        self.living.look()
        engine, labels = self.living.engine, f'{{engine="0",model_name="{self.card.model}"}}'
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
        sums = {"time_to_first_token_seconds": self._first_token, "e2e_request_latency_seconds": self._whole_time}
        lines = [f"# TYPE vllm:{name} gauge\nvllm:{name}{labels} {value}" for name, value in gauges.items()]
        lines += [f"# TYPE vllm:{name} counter\nvllm:{name}{labels} {value}" for name, value in counters.items()]
        for reason, number in self._ended.items():
            lines.append(f'vllm:request_success_total{{engine="0",finished_reason="{reason}"}} {number}')
        for name, found in sums.items():
            lines += [f"vllm:{name}_sum{labels} {found.total}", f"vllm:{name}_count{labels} {found.number}"]
        blocks = engine.kv_cache_tokens // self.card.block_tokens
        lines.append(f'vllm:cache_config_info{{block_size="{self.card.block_tokens}",num_gpu_blocks="{blocks}"}} 1')
        return "\n".join(lines) + "\n"

    def status(self) -> dict[str, Any]:
        """For people who watch the emulation."""
        self.living.look()
        engine, fault = self.living.engine, self.living.fault
        return {
            "replica": self.card.name, "pool": self.card.pool, "url": self.url, "nodes": self.card.nodes,
            "fault": fault.kind if fault is not None else None, "alive": self.living.alive,
            "running": engine.running, "waiting": engine.waiting, "kv_cache": round(engine.kv_usage, 4),
            "ended": self._ended, "prompt_tokens": engine.prompt_tokens, "generated_tokens": engine.generated_tokens,
            "cached_share": round(engine.hit_tokens / engine.asked_tokens, 4) if engine.asked_tokens else None,
            "busy_s": round(engine.busy_s, 3),
        }  # fmt: skip


class _Open:
    """A request that has no answer yet, or a part of it; see `engine.Listener`."""

    def __init__(self, vllm: EmulatedVllm, request: Request, answer: Answer, streams: bool, cut: bool, came_s: float) -> None:
        self._vllm = vllm
        self._request = request
        self._answer = answer
        self._cut = cut
        self._came_s = came_s
        self._sent = 0
        self.streams = streams

    def begin(self, job: Job) -> None:
        assert job.first_token_s is not None
        self._vllm.note_first(job.first_token_s - self._came_s)
        self._answer.cached_tokens = job.cached_tokens
        if self.streams:
            self._request.write(self._answer.begin() + self._answer.tokens(0, 1))
            self._sent = 1

    def more(self, tokens: int) -> None:
        if tokens > self._sent:
            self._request.write(self._answer.tokens(self._sent, tokens))
            self._sent = tokens

    def end(self, job: Job) -> None:
        assert job.ended_s is not None
        self._vllm.note_end(job.ended_s - self._came_s, self._cut)
        if not self.streams:
            self._request.reply(200, self._answer.whole(job.answer_tokens, self._cut))
            return
        last = self._answer.tokens(self._sent, job.answer_tokens)
        self._request.write(last + self._answer.end(job.answer_tokens, self._cut))
        self._request.finish()

    def lose(self, why: str) -> None:
        if self.streams:
            self._request.break_off()
        else:
            self._request.reply(500, _error(500, "InternalServerError", why))


class Sum:
    """Sum and number of values."""

    def __init__(self) -> None:
        self.total = 0.0
        self.number = 0

    def add(self, value: float) -> None:
        """One more."""
        self.total += value
        self.number += 1


def _error(code: int, type_: str, message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": type_, "param": None, "code": code}}


def _too_long(context: int, prompt: int, wanted: int) -> dict[str, Any]:
    return _error(
        400, "BadRequestError",
        f"This model's maximum context length is {context} tokens. However, you requested {prompt + wanted} tokens "
        f"({prompt} in the messages, {wanted} in the completion). Please reduce the length of the messages or completion.",
    )  # fmt: skip
