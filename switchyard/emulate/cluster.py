"""All engines of a cluster file in one process, the policy for a gateway in front of them, and a port for faults."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec

from switchyard.cluster.engine import Engine
from switchyard.cluster.fit import kv_tokens, number, rank_memory
from switchyard.cluster.place import Replica, lay_out
from switchyard.cluster.pool_speed import pool_speed
from switchyard.cluster.spec import Cluster
from switchyard.emulate.engine import LivingEngine
from switchyard.emulate.faults import Fault, make_fault
from switchyard.emulate.http import Connection, Request
from switchyard.emulate.pace import Pace
from switchyard.emulate.vllm import Card, EmulatedVllm

BLOCK_TOKENS = 64
"""Of the prefix cache: four of vLLM's blocks, for less hashing."""
DEFAULT_SEQS = 256
DEFAULT_CONTEXT = 32_768


def engine_of(cluster: Cluster, replica: Replica, block_tokens: int = BLOCK_TOKENS) -> tuple[Card, Engine]:
    """The engine of one replica, as the file describes it. What it leaves out is as vLLM has it by itself.

    Raises:
        Undetermined: the file doesn't tell how fast it is.
    """
    pool = cluster.pools[replica.pool]
    places = int(number(pool, "max_num_seqs") or DEFAULT_SEQS)
    context = int(number(pool, "max_model_len") or pool.checkpoint.context_tokens or DEFAULT_CONTEXT)
    memory = rank_memory(pool, cluster.node(replica.head))
    held = kv_tokens(pool, memory.kv) or places * context  # where the model isn't described: no limit
    step_tokens = int(number(pool, "max_num_batched_tokens") or 0)
    engine = Engine(
        pool_speed(cluster, replica.pool), places, max(held, context), block_tokens,
        caching=pool.engine.get("enable_prefix_caching") is not False, **({"step_tokens": step_tokens} if step_tokens else {}),
    )  # fmt: skip
    return Card(replica.name, replica.pool, pool.model, context, block_tokens, replica.nodes), engine


class EmulatedCluster:
    """The running replicas of a cluster, each on a port of its own.

    Args:
        cluster: the file.
        speedup: emulated seconds in a real one.
        host: loopback address of all ports.
        port: of faults and status; engines follow it. 0: any that are free.

    Raises:
        Undetermined: the file doesn't tell how fast an engine is.
    """

    def __init__(self, cluster: Cluster, speedup: float = 1.0, host: str = "127.0.0.1", port: int = 0) -> None:
        self.cluster = cluster
        self.speedup = speedup
        self.host, self.port = host, port
        self.layout = lay_out(cluster)
        loop = asyncio.get_running_loop()
        self.engines: list[EmulatedVllm] = []
        for i, replica in enumerate((r for r in self.layout.replicas if r.running), 1):
            card, engine = engine_of(cluster, replica)
            living = LivingEngine(engine, Pace(loop.time, speedup))
            self.engines.append(EmulatedVllm(card, living, host, port and port + i))
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._planned: list[asyncio.TimerHandle] = []

    async def start(self) -> None:
        """Listen on all ports.

        Raises:
            OSError: one is taken.
        """
        for engine in self.engines:
            await engine.start()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self._control, self._connections), self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """End everything."""
        for handle in self._planned:
            handle.cancel()
        for engine in self.engines:
            await engine.stop()
        if self._server is not None:
            self._server.close()
        for connection in tuple(self._connections):
            connection.reset()

    def plan_faults(self, faults: Iterable[tuple[str, float, Fault]]) -> None:
        """Let faults happen at their times, in emulated seconds from now.

        Raises:
            ValueError: there is no such replica.
        """
        loop = asyncio.get_running_loop()
        for name, at_s, fault in faults:
            engine = self.engine(name)
            self._planned.append(loop.call_later(at_s / self.speedup, engine.living.suffer, fault))

    def url_of(self, replica: Replica) -> str:
        """Where the engine of a replica answers."""
        return self.engine(replica.name).url

    def engine(self, name: str) -> EmulatedVllm:
        """The engine of a replica.

        Raises:
            ValueError: there is none; the message lists what there is.
        """
        for engine in self.engines:
            if engine.card.name == name:
                return engine
        raise ValueError(f"there is no replica {name[:64]}; known: {', '.join(e.card.name for e in self.engines)}")

    def _control(self, request: Request) -> None:
        if request.path == "/" and request.method == b"GET":
            request.reply(200, {"speedup": self.speedup, "engines": [e.status() for e in self.engines]})
        elif request.path == "/faults" and request.method == b"POST":
            try:
                self._make_fault(msgspec.json.decode(request.body, type=_FaultBody))
                request.reply(200, {"engines": [e.status() for e in self.engines]})
            except (msgspec.MsgspecError, ValueError) as error:
                request.reply(400, {"error": str(error)})
        else:
            request.reply(404, {"error": "GET / tells how the engines are, POST /faults makes and ends faults"})

    def _make_fault(self, body: _FaultBody) -> None:
        engine = self.engine(body.replica)
        if body.kind == "none":
            engine.living.recover()
        else:
            engine.living.suffer(make_fault(body.kind, body.for_s, body.factor))


class _FaultBody(msgspec.Struct, forbid_unknown_fields=True):
    replica: str
    kind: str
    for_s: float = 0.0
    factor: float = 4.0
