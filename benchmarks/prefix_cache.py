"""Agents on replicas with prefix caches, in virtual time: what a way to balance does to cache hits and to the spread of load.

The gateway's part is the real one (`switchyard.pools.pool.Pool`); the engines are simulated: each has a prefix cache of so
many tokens, in which the longest unused conversation goes first, prefills one prompt at a time, and decodes all of its
requests side by side. Nothing here measures speed: the figures are counts, the same on every machine for the same seed.
"""

from __future__ import annotations

import asyncio
import selectors
from collections import OrderedDict
from collections.abc import Coroutine
from dataclasses import dataclass, field
from hashlib import blake2b
from random import Random
from typing import Any, Protocol

from switchyard.config.load import parse_policy
from switchyard.pools.pool import Pool

PREFILL_TOKENS_S = 4_000
DECODE_TOKENS_S = 40
LIMITS = "{in_flight: 1000, queue_timeout_s: 3600}"  # the queue is not what is looked at here
TOOLS_TOKENS = 9_000  # a system prompt and 24 tools, the same for everybody


@dataclass(frozen=True)
class Traffic:
    """Agents that come, work on a task with their tools, and go. Each sends its whole conversation again at every turn."""

    sessions: int = 240
    replicas: int = 3
    arrival_s: float = 3.0  # between two agents, on average
    cache_tokens: int = 1_600_000
    seed: int = 1


class Engine:
    """One simulated replica."""

    def __init__(self, cache_tokens: int) -> None:
        self._capacity = cache_tokens
        self._cache: OrderedDict[int, int] = OrderedDict()
        self._prefill = asyncio.Lock()
        self.requests = self.prompt_tokens = self.cached_tokens = self.output_tokens = 0
        self.busy_s = 0.0

    async def serve(self, session: int, prompt: int, output: int) -> float:
        """One request; gives the seconds to its first token."""
        clock = asyncio.get_running_loop().time
        began_s = clock()
        async with self._prefill:
            known = self._cache.get(session, TOOLS_TOKENS if self._cache else 0)
            cached = min(known, prompt)
            await asyncio.sleep((prompt - cached) / PREFILL_TOKENS_S)
            self._keep(session, prompt + output)
        first_s = clock()
        await asyncio.sleep(output / DECODE_TOKENS_S)
        self.requests += 1
        self.prompt_tokens += prompt
        self.cached_tokens += cached
        self.output_tokens += output
        self.busy_s += clock() - began_s
        return first_s - began_s

    def _keep(self, session: int, tokens: int) -> None:
        self._cache[session] = tokens
        self._cache.move_to_end(session)
        while sum(self._cache.values()) - TOOLS_TOKENS * (len(self._cache) - 1) > self._capacity:  # the tools are shared
            self._cache.popitem(last=False)


class Chooser(Protocol):
    """A way to balance."""

    async def begin(self, session: int, tokens: int, prompt: int) -> tuple[int, Any]:
        """The replica for a request, and what `end` wants to have."""

    def end(self, session: int, token: Any, last: bool) -> None:
        """The request is over; with `last`, the session, too."""


class Gateway:
    """What the gateway does: a pool under one of the policy's words."""

    def __init__(self, balance: str, replicas: int, seed: int) -> None:
        urls = ", ".join(f"{{url: http://h:{9000 + n}, name: r{n}}}" for n in range(replicas))
        text = f"version: 1\npools: {{p: {{model: m, replicas: [{urls}], balance: {balance}, limits: {LIMITS}}}}}\n"
        self._pool = Pool("p", parse_policy(text.encode()).pools["p"], Random(seed))
        for replica in self._pool.replicas:
            replica.mark("ready")

    async def begin(self, session: int, tokens: int, prompt: int) -> tuple[int, Any]:
        lease = await self._pool.admit(f"session-{session}", tokens, prompt_tokens=prompt)
        assert lease is not None
        return int(lease.replica.label[1:]), lease

    def end(self, session: int, token: Any, last: bool) -> None:
        token.release()


class PlainHash:
    """The hash of the session's name, whatever goes on."""

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas

    async def begin(self, session: int, tokens: int, prompt: int) -> tuple[int, Any]:
        digest = blake2b(f"session-{session}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") % self._replicas, None

    def end(self, session: int, token: Any, last: bool) -> None:
        pass


class PerfectStickiness:
    """Each session on the replica that had the fewest when it came, for ever: what nobody can know or do better."""

    def __init__(self, replicas: int) -> None:
        self._sessions = [0] * replicas
        self._home: dict[int, int] = {}

    async def begin(self, session: int, tokens: int, prompt: int) -> tuple[int, Any]:
        if session not in self._home:
            home = min(range(len(self._sessions)), key=lambda n: self._sessions[n])
            self._home[session] = home
            self._sessions[home] += 1
        return self._home[session], None

    def end(self, session: int, token: Any, last: bool) -> None:
        if last:
            self._sessions[self._home[session]] -= 1


@dataclass
class Result:
    """What came of it. Spreads are the most loaded replica's share over the mean."""

    way: str
    hit_rate: float
    requests_spread: float
    work_spread: float
    in_flight_spread: float
    first_token_s: list[float] = field(repr=False)

    def quantile_s(self, q: float) -> float:
        """Of the times to the first token."""
        return sorted(self.first_token_s)[int(q * (len(self.first_token_s) - 1))]


WAYS = ("perfect stickiness", "prefix", "plain hash", "least_tokens", "p2c", "round_robin", "random")


def simulate(way: str, traffic: Traffic) -> Result:
    """Let the agents work under one way to balance."""
    return run_virtual(_simulate(way, traffic))


async def _simulate(way: str, traffic: Traffic) -> Result:
    chooser: Chooser
    if way == "perfect stickiness":
        chooser = PerfectStickiness(traffic.replicas)
    elif way == "plain hash":
        chooser = PlainHash(traffic.replicas)
    else:
        chooser = Gateway(way, traffic.replicas, traffic.seed)
    engines = [Engine(traffic.cache_tokens) for _ in range(traffic.replicas)]
    firsts: list[float] = []
    random = Random(traffic.seed)

    async def agent(session: int, begin_s: float, random: Random) -> None:
        await asyncio.sleep(begin_s)
        prompt = TOOLS_TOKENS + random.randint(200, 6_000)
        turns = random.randint(6, 30)
        for turn in range(turns):
            output = random.randint(60, 500)
            replica, token = await chooser.begin(session, prompt + output, prompt)
            firsts.append(await engines[replica].serve(session, prompt, output))
            chooser.end(session, token, turn == turns - 1)
            prompt += output + min(12_000, int(random.lognormvariate(6.5, 1.2)))  # the tool's result
            await asyncio.sleep(random.uniform(0.3, 6))  # the tool's work

    begin_s = 0.0
    async with asyncio.TaskGroup() as agents:
        for session in range(traffic.sessions):
            begin_s += random.expovariate(1 / traffic.arrival_s)
            agents.create_task(agent(session, begin_s, Random(f"{traffic.seed}-{session}")))
    prompts = sum(e.prompt_tokens for e in engines)
    return Result(
        way,
        sum(e.cached_tokens for e in engines) / prompts,
        spread([e.requests for e in engines]),
        spread([(e.prompt_tokens - e.cached_tokens) / PREFILL_TOKENS_S + e.output_tokens / DECODE_TOKENS_S for e in engines]),
        spread([e.busy_s for e in engines]),
        firsts,
    )


def spread(loads: list[float]) -> float:
    """The largest over the mean."""
    return max(loads) * len(loads) / sum(loads)


# ---- virtual time ----


class _Jump(selectors.DefaultSelector):
    """Where the loop would sleep, its clock jumps."""

    now_s = 1_000.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is not None and timeout > 0:
            self.now_s += timeout
        return super().select(0)


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.now_s


def run_virtual(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in a loop whose time passes at once."""
    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        return runner.run(work)
