"""Growing conversations on three real engines (llama.cpp): what `prefix` keeps in their caches, by their own counts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from switchyard.demo.engine import EmbeddedEngine
from switchyard.demo.model import fetch_model

from .gateway import Gateway, policy, pool

Start = Callable[..., Any]
AGENTS, TURNS = 6, 3
TOOLS = "You are a coding agent. Tools: " + "; ".join(f"tool_{n}: file {n}" for n in range(24))


@pytest.fixture(scope="module")
def engines() -> Iterator[list[EmbeddedEngine]]:
    model = fetch_model()
    with ExitStack() as stack:
        engines = [stack.enter_context(EmbeddedEngine(model, context_tokens=8192, slots=4)) for _ in range(3)]
        for engine in engines:
            asyncio.run(engine.wait_ready())
        yield engines


@dataclass
class Seen:
    """What the engines' answers say. Of each later turn all that was sent before could have been cached."""

    cached: int = 0
    could: int = 0
    places: Counter[str] = field(default_factory=Counter)
    affinity: Counter[str] = field(default_factory=Counter)

    @property
    def spread(self) -> float:
        return max(self.places.values()) * 3 / sum(self.places.values())


async def agents_at_work(port: int, name: str) -> Seen:
    seen = Seen()

    async def agent(client: httpx.AsyncClient, number: int) -> None:
        await asyncio.sleep(0.3 * number)
        messages = [{"role": "system", "content": TOOLS}, {"role": "user", "content": f"{name} task {number}: fix the tests."}]
        before = 0
        for turn in range(TURNS):
            body = {"model": "small", "messages": messages, "max_tokens": 2, "temperature": 0}
            answer = await client.post("/v1/chat/completions", json=body, headers={"x-session-id": f"{name}-{number}"})
            assert answer.status_code == 200, answer.text
            usage = answer.json()["usage"]
            seen.places[answer.headers["x-switchyard-replica"]] += 1
            seen.affinity[answer.headers.get("x-switchyard-affinity", "none")] += 1
            if turn:
                seen.cached += min(before, usage["prompt_tokens_details"]["cached_tokens"])
                seen.could += before
            before = usage["prompt_tokens"]
            text = answer.json()["choices"][0]["message"]["content"] or "-"
            result = " ".join(f"line {number}{n} of {turn}" for n in range(8))
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": f"Result: {result}"}]

    async with (
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=250) as client,
        asyncio.TaskGroup() as agents,
    ):
        for number in range(AGENTS):
            agents.create_task(agent(client, number))
    return seen


@pytest.mark.timeout(300)
def test_agents_keep_their_caches_on_real_engines(start: Start, engines: list[EmbeddedEngine]) -> None:
    found = {}
    for balance in ("prefix", "round_robin"):
        block = pool(*(engine.url for engine in engines), model="smollm2", balance=balance)
        gateway = start(Gateway(policy({"small": block})))
        found[balance] = asyncio.run(agents_at_work(gateway.port, balance))
    ours, plain = found["prefix"], found["round_robin"]
    assert ours.cached >= 0.95 * ours.could
    assert ours.spread <= 1.25
    assert ours.affinity == {"miss": AGENTS, "hit": AGENTS * (TURNS - 1)}
    assert plain.cached / plain.could < ours.cached / ours.could - 0.05, "that the test can tell"
