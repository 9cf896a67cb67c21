"""What the ways to balance do to agents' prefix caches and to the spread of load, in one table.

  python benchmarks/balancing.py            simulated caches (prefix_cache.py), seconds, the same everywhere
  python benchmarks/balancing.py --real     three llama.cpp engines with a small model, by the tokens they say were cached

The real run sends growing conversations with 24 tools. `perfect stickiness` and `plain hash` go to the engines directly,
the others through a gateway of their own; every way gets engines that were started for it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import httpx
from prefix_cache import WAYS, Traffic, simulate, spread

from switchyard.demo.engine import EmbeddedEngine
from switchyard.demo.model import fetch_model
from switchyard.demo.process import pick_port

REPLICAS, SESSIONS, TURNS = 3, 9, 6
TRAFFIC = (Traffic(), Traffic(sessions=40, arrival_s=6.0, seed=2))  # many at a time, and few
REAL_WAYS = ("perfect stickiness", "prefix", "plain hash", "round_robin")
TOOLS = [
    {
        "type": "function",
        "function": {"name": f"tool_{n}", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}},
    }
    for n in range(24)
]
TOOL_TEXT = "You are a coding agent. Tools: " + "; ".join(f"tool_{n}(path): reads the file number {n}" for n in range(24))


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", action="store_true", help="on real engines")
    parser.add_argument("--json", action="store_true", help="as JSON")
    given = parser.parse_args()
    rows = asyncio.run(measure()) if given.real else [simulated(way, t) for t in TRAFFIC for way in WAYS]
    if given.json:
        print(json.dumps(rows, indent=1))
        return 0
    heads = list(rows[0])
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    for row in rows:
        print("| " + " | ".join(f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()) + " |")
    return 0


def simulated(way: str, traffic: Traffic) -> dict[str, Any]:
    """A row of the table."""
    result = simulate(way, traffic)
    return {
        "agents": traffic.sessions,
        "way": result.way,
        "tokens from cache": f"{result.hit_rate:.1%}",
        "most loaded / mean: requests": round(result.requests_spread, 2),
        "work": round(result.work_spread, 2),
        "in flight": round(result.in_flight_spread, 2),
        "first token p50, s": round(result.quantile_s(0.5), 2),
        "p95, s": round(result.quantile_s(0.95), 2),
    }


async def measure() -> list[dict[str, Any]]:
    """Every way on engines of its own."""
    model = await asyncio.to_thread(fetch_model)
    rows = []
    for way in REAL_WAYS:
        print(f"{way} ...", file=sys.stderr, flush=True)
        async with contextlib.AsyncExitStack() as stack:
            engines = [
                await stack.enter_async_context(EmbeddedEngine(model, context_tokens=16_384, slots=4)) for _ in range(REPLICAS)
            ]
            urls = [engine.url for engine in engines]
            if way in {"prefix", "round_robin"}:
                gateway = stack.enter_context(_gateway(urls, way))
                await _until_ready(gateway)
                rows.append(await _agents(way, urls, lambda session, gateway=gateway: gateway))
            elif way == "plain hash":
                homes = Random(1)
                places = [homes.randrange(REPLICAS) for _ in range(SESSIONS)]
                rows.append(await _agents(way, urls, lambda session, urls=urls, places=places: urls[places[session]]))
            else:
                rows.append(await _agents(way, urls, lambda session, urls=urls: urls[session % REPLICAS]))
    return rows


@contextlib.contextmanager
def _gateway(urls: list[str], balance: str) -> Any:
    policy = {"version": 1, "pools": {"smollm2": {"model": "smollm2", "replicas": urls, "balance": balance}}}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "policy.yaml"
        file.write_text(json.dumps(policy))
        port = pick_port()
        command = [sys.executable, "-m", "switchyard", "serve", str(file), "--port", str(port)]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(20)


async def _until_ready(url: str) -> None:
    async with httpx.AsyncClient() as client:
        for _ in range(200):
            with contextlib.suppress(httpx.HTTPError):
                if (await client.get(f"{url}/readyz")).status_code == 200:
                    return
            await asyncio.sleep(0.1)
    raise SystemExit("the gateway did not become ready")


async def _agents(way: str, urls: list[str], place: Callable[[int], str]) -> dict[str, Any]:
    """All agents at work; a row of the table."""
    began_s = time.monotonic()
    totals = {"prompt": 0, "cached": 0}
    async with httpx.AsyncClient(timeout=600) as client:
        async with asyncio.TaskGroup() as agents:
            for session in range(SESSIONS):
                agents.create_task(_agent(client, session, place(session), totals))
        work = [await _work(client, url) for url in urls]
    return {
        "way": way,
        "tokens from cache": f"{totals['cached'] / totals['prompt']:.1%}",
        "prompt tokens": totals["prompt"],
        "most loaded / mean: work": round(spread(work), 2),
        "took, s": round(time.monotonic() - began_s),
    }


async def _agent(client: httpx.AsyncClient, session: int, url: str, totals: dict[str, int]) -> None:
    random = Random(session)
    await asyncio.sleep(session * 1.0)
    messages = [{"role": "system", "content": TOOL_TEXT}, {"role": "user", "content": f"Task {session}: fix the tests."}]
    for turn in range(TURNS):
        body = {"model": "smollm2", "messages": messages, "tools": TOOLS, "max_tokens": 16, "temperature": 0}
        answer = await client.post(f"{url}/v1/chat/completions", json=body, headers={"x-session-id": f"agent-{session}"})
        answer.raise_for_status()
        found = answer.json()
        usage = found["usage"]
        totals["prompt"] += usage["prompt_tokens"]
        totals["cached"] += (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        messages.append({"role": "assistant", "content": found["choices"][0]["message"]["content"] or "-"})
        result = " ".join(f"line {random.randrange(1000)} of file {turn}" for _ in range(12))
        messages.append({"role": "user", "content": f"Result of the tool: {result}"})
        await asyncio.sleep(random.uniform(0.2, 1.0))


async def _work(client: httpx.AsyncClient, url: str) -> float:
    """Tokens that an engine has computed: prompts without what was cached, and answers."""
    text = (await client.get(f"{url}/metrics")).text
    names = ("llamacpp:prompt_tokens_total ", "llamacpp:tokens_predicted_total ")
    return sum(float(line.split()[1]) for line in text.splitlines() if line.startswith(names))


if __name__ == "__main__":
    sys.exit(main())
