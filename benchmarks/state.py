"""What shared state adds to a request: the question to the store, in memory and on a real Redis on loopback.

usage: state.py [--count N] [--json]

One claim of a key's limits with a conversation and a stored response to look up, then its settlement and a new pin: what
`RedisStore` does for each request. One after the other, and 32 at the same time, which share round trips.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from switchyard.config.server import KeyLimits
from switchyard.state.base import Claim, Store
from switchyard.state.memory import MemoryStore
from switchyard.state.redis import RedisStore

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from redis_server import RedisServer

LIMITS = KeyLimits(requests_per_minute=10**9, tokens_per_minute=10**12, concurrent_requests=10**6)


async def one(store: Store, number: int) -> None:
    """What a request asks of the store, from its arrival to its end."""
    session = f"session-{number % 1000}"
    claim = Claim("key-1", LIMITS, 1_000, f"req-{number}")
    known = await store.arrive(claim, session, f"resp-{number % 1000}")
    if known.refusal is not None:
        raise RuntimeError(f"refused: {known.refusal}")
    store.remember(session, "pin:auto", f"small\t{number}\t0\t")
    store.settle(claim, 900)


async def measure(store: Store, count: int, at_once: int) -> dict[str, float]:
    """Microseconds of waiting, percentiles, and of this process's CPU for each request."""
    waited: list[float] = []

    async def client(first: int) -> None:
        for number in range(first, count, at_once):
            began = time.perf_counter()
            await one(store, number)
            waited.append((time.perf_counter() - began) * 1e6)

    cpu = time.process_time()
    await asyncio.gather(*(client(n) for n in range(at_once)))
    cpu = (time.process_time() - cpu) * 1e6
    waited.sort()
    return {
        "p50_us": round(waited[count // 2], 1), "p99_us": round(waited[int(count * 0.99)], 1), "cpu_us": round(cpu / count, 1),
    }  # fmt: skip


async def on_redis(act: Callable[[RedisStore], Awaitable[dict[str, float]]], url: str) -> dict[str, float]:
    """With a connected store."""
    store = RedisStore(url, "bench:", 0.25, 3600, time.monotonic)
    running = asyncio.create_task(store.run())
    await store.link.tried.wait()
    try:
        result = await act(store)
        if any(store.link.missed.values()):
            raise RuntimeError(f"questions went without an answer: {store.link.missed}")
        return result
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    with RedisServer() as server, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for at_once in (1, 32):
            memory = MemoryStore(time.monotonic)
            results[f"memory, {at_once} at once"] = runner.run(measure(memory, given.count, at_once))
            act = lambda store, n=at_once: measure(store, given.count, n)  # noqa: E731
            results[f"Redis, {at_once} at once"] = runner.run(on_redis(act, server.url))
    if given.json:
        print(json.dumps(results, indent=1))
        return
    for name, row in results.items():
        print(f"{name:>20}: " + "  ".join(f"{key.removesuffix('_us')} {value:8.1f} us" for key, value in row.items()))


if __name__ == "__main__":
    main()
