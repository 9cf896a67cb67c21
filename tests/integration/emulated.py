"""An emulated cluster in a thread of its own, for a gateway in the test's process."""

from __future__ import annotations

import asyncio
import json
import threading
from types import TracebackType
from typing import Any, Self

from switchyard.cluster.spec import parse_cluster
from switchyard.emulate.cluster import EmulatedCluster
from switchyard.emulate.faults import make_fault
from switchyard.emulate.policy import policy_for

Json = dict[str, Any]


def small_cluster(big: int = 2, small: int = 1, **engine: Any) -> Json:
    """A cluster file of one-node replicas: `big` makes 20 tokens a second, `small` 100; each reads 100 times as many."""

    def pool(replicas: int, begin: int, tokens_s: float) -> Json:
        return {
            "model": "acme/model", "image": "v/v:1", "replicas": replicas,
            "placement": [[f"s{begin + i}"] for i in range(replicas)],
            "engine": {"max_num_seqs": 4, "max_model_len": 8192, **engine},
            "speed": {"measured": [{"nodes": 1, "decode_tok_s": tokens_s, "prefill_tok_s": 100 * tokens_s}]},
        }  # fmt: skip

    nodes = [{"name": f"s{i}", "mgmt": f"10.0.0.{i}"} for i in range(1, 9)]
    pools = {"big": pool(big, 1, 20), "small": pool(small, 1 + big, 100)}
    return {"version": 1, "nodes": nodes, "pools": pools, "gateway": {"node": "s8"}}


class Emulated:
    """A context manager: inside, its engines answer."""

    def __init__(self, cluster: Json | None = None, speedup: float = 1.0) -> None:
        self._cluster = parse_cluster(json.dumps(cluster or small_cluster()).encode()).value
        self._speedup = speedup
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()), name="emulated")

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ends = asyncio.Event()
        self.inner = EmulatedCluster(self._cluster, self._speedup)
        await self.inner.start()
        self._ready.set()
        await self._ends.wait()
        await self.inner.stop()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._ends.set)
        self._thread.join(10)
        assert not self._thread.is_alive()

    def policy(self, **pool: Any) -> Json:
        """A policy for a gateway in front, which probes often and ends quickly."""
        document = policy_for(self._cluster, self.inner.layout, None, self.inner.url_of)
        for block in document["pools"].values():
            block.update({"health": {"every_s": 0.25}, **pool})
        return {**document, "server": {"drain_s": 1}}

    def port(self, name: str) -> int:
        return self.inner.engine(name).port

    def suffer(self, name: str, kind: str, for_s: float = 0.0, factor: float = 4.0) -> None:
        """A fault, at once."""
        self._loop.call_soon_threadsafe(self.inner.engine(name).living.suffer, make_fault(kind, for_s, factor))

    def recover(self, name: str) -> None:
        self._loop.call_soon_threadsafe(self.inner.engine(name).living.recover)

    def status(self, name: str) -> Json:
        """What the status page says about a replica."""
        engine = self.inner.engine(name)
        done: list[Json] = []
        ready = threading.Event()
        self._loop.call_soon_threadsafe(lambda: (done.append(engine.status()), ready.set()))
        assert ready.wait(5)
        return done[0]
