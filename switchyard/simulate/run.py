"""A simulated gateway: its own deciding, admission, balancing, retries and health, over engines in memory, on virtual time.

What is not simulated: HTTP, the time that deciding takes, the policy's time-outs for answers, clients that leave.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from random import Random
from typing import Any, cast

import httpx
import msgspec

from switchyard.cluster.engine import Engine, Job
from switchyard.cluster.traffic import QUIET_SIGNALS, Ask, Conversations, is_nth
from switchyard.config.policy import Policy
from switchyard.deciding import Decider, Target
from switchyard.emulate.engine import LivingEngine
from switchyard.emulate.faults import Fault
from switchyard.emulate.pace import Pace
from switchyard.emulate.vllm import Card, EmulatedVllm
from switchyard.errors import GatewayError, UnknownModel
from switchyard.escalating import larger_decision
from switchyard.pools.health import Prober
from switchyard.pools.pool import Pool
from switchyard.pools.replica import Replica
from switchyard.routing.decision import Decision
from switchyard.routing.lookup import Names
from switchyard.routing.pressure import PressureRelief
from switchyard.routing.recorded import NotRecorded, Recorded, RecordedClassifier, RecordedSignals
from switchyard.routing.request import Body, RequestView
from switchyard.routing.session import Pins, Session
from switchyard.routing.share import ShareControl
from switchyard.routing.signals import Signals
from switchyard.sending import Outgoing, Sender
from switchyard.simulate.outcome import EngineUse, Outcome, Results
from switchyard.simulate.wire import MemoryConnections, MemoryResponse, MemoryTransport, body_for
from switchyard.telemetry.record import Record
from switchyard.telemetry.tracing import PassedOn
from switchyard.upstream.pool import ConnectionPool
from switchyard.upstream.retry import RetryBudget

WATCHED_S = 120.0
"""So long after a fault is over, the replica's probes go on; without a fault nothing is probed."""
RETRY_AFTER_S = 2.0
"""A client whose request was refused goes on after this, as the gateway's own answer asks it to."""

log = logging.getLogger("switchyard.simulate")


class Simulation:
    """One run. Made and used inside a `VirtualLoop`.

    Args:
        policy: whose replicas are the engines, by their URLs.
        engines: each replica's card and engine, by its URL.
        escalate: share of a smaller pool's answers from which a larger pool takes over.
        seed: of chance in balancing.
    """

    def __init__(
        self, policy: Policy, engines: Mapping[str, tuple[Card, Engine]], escalate: float = 0.0, seed: int = 0
    ) -> None:
        self._policy = policy
        self._loop = asyncio.get_running_loop()
        self._engines = {
            url: EmulatedVllm(card, LivingEngine(engine, Pace(self._loop.time))) for url, (card, engine) in engines.items()
        }
        random = Random(seed)
        self._random = random
        self._pools = {name: Pool(name, block, random) for name, block in policy.pools.items()}
        self._jobs: dict[int, Job] = {}
        self._number = 0
        self._current: Recorded
        connections: dict[Replica, ConnectionPool] = {}
        for pool, replica in self._all_replicas():
            vllm = self._engines[replica.url]
            replica.mark("ready")
            replica.context_tokens = vllm.card.max_model_len
            pool.learn()
            connections[replica] = cast(ConnectionPool, MemoryConnections(vllm, self._jobs))
        self._decider = self._make_decider()
        self._sender = Sender(self._pools, lambda pool, replica: connections[replica], {}, RetryBudget(), _nobody_asks)
        self._escalate = escalate
        self._could_escalate = 0
        self._trace = PassedOn({})
        self._tasks: set[asyncio.Task[object]] = set()
        self._watches: dict[Replica, asyncio.Task[None]] = {}
        self._failure: BaseException | None = None
        self.outcomes: list[Outcome] = []

    def _all_replicas(self) -> list[tuple[Pool, Replica]]:
        return [(pool, replica) for pool in self._pools.values() for replica in pool.replicas]

    def _make_decider(self) -> Decider:
        names = Names(self._policy)

        def find_target(model: str) -> Target | None:
            found = names.find(model)
            return Target(*found, found[1].pools) if found is not None else None

        classifiers = {
            name: [RecordedClassifier(block, lambda: self._current) for block in route.classify]
            for name, route in self._policy.routes.items()
        }
        steering = {}
        for name, route in self._policy.routes.items():
            share = ShareControl(route.share, [step.use for step in route.choose]) if route.share else None
            steering[name] = (share, PressureRelief(route.pressure, route.choose) if route.pressure else None)
        pins = Pins(self._policy.server.session_ttl_s, self._loop.time)
        return Decider(find_target, self._pools, classifiers, steering, pins, self, {})

    def place_of(self, response_id: str) -> tuple[str, str] | None:
        """See `deciding.Stored`: nothing is stored here, so a follow-up is decided like any other request."""
        return None

    def remember(self, response_id: str, pool: str, replica: str, session: str = "", key_name: str = "") -> None:
        """See `deciding.Stored`."""

    # ---- running ----

    async def play(self, asks: Sequence[Ask]) -> Results:
        """Let requests come at their times; ends when all have their answers."""
        for ask in asks:
            await asyncio.sleep(ask.at_s - self._loop.time())
            self._check()
            self._start(self._serve(ask))
        await self._rest()
        return self._results(self._loop.time(), 0)

    async def saturate(self, conversations: Conversations, clients: int, seconds: float) -> Results:
        """So many clients, each with its next request as soon as it has its answer, for so long."""

        async def go_on() -> None:
            while True:
                await self._talk(conversations.next())

        for _ in range(clients):
            self._start(go_on())
        return await self._until(seconds)

    async def arrive(self, conversations: Conversations, requests_s: float, seconds: float) -> Results:
        """Conversations that begin by chance (a Poisson process), with so many requests a second in the mean."""
        mean_s = conversations.mix.turns / requests_s

        async def come() -> None:
            while True:
                await asyncio.sleep(self._random.expovariate(1 / mean_s))
                self._start(self._talk(conversations.next()))

        self._start(come())
        return await self._until(seconds)

    async def _talk(self, asks: Iterable[Ask]) -> None:
        for ask in asks:
            if not await self._serve(ask):
                await asyncio.sleep(RETRY_AFTER_S)

    async def _until(self, seconds: float) -> Results:
        await asyncio.sleep(seconds)
        self._check()
        running = sum(vllm.living.engine.running for vllm in self._engines.values()) + sum(
            p.queued for p in self._pools.values()
        )
        return self._results(seconds, running)

    async def close(self) -> None:
        """End what still runs."""
        tasks = [*self._tasks, *self._watches.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _rest(self) -> None:
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._check()

    def _start(self, work: Coroutine[Any, Any, object]) -> None:
        task: asyncio.Task[object] = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._note_end)

    def _note_end(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._failure = task.exception()

    def _check(self) -> None:
        """A failure inside is no result."""
        if self._failure is not None:
            raise self._failure

    # ---- one request ----

    async def _serve(self, ask: Ask) -> bool:
        """What `pipeline.py` does, as far as it takes time or a place; False when the request failed."""
        outcome = Outcome(self._loop.time(), ask.answer_tokens, guessed=ask.guessed)
        try:
            decision = await self._decide(ask.record, outcome)
            outgoing, number = self._prepare(ask)
            try:
                await self._send(outgoing, decision, number, ask, outcome)
            finally:
                del self._jobs[number]
        except GatewayError as error:
            outcome.error = error.code
        outcome.ended_s = self._loop.time()
        self.outcomes.append(outcome)
        return not outcome.error

    async def _decide(self, record: Recorded, outcome: Outcome) -> Decision:
        target = self._decider.find_target(record.model)
        if target is None:
            raise UnknownModel(f"there is no model {record.model[:100]!r}")
        session = Session(record.session or record.id, record.session_source if record.session else "fingerprint")
        self._current = record
        try:
            return await self._decider.decide(target, cast(Signals, RecordedSignals(record)), session)
        except NotRecorded:
            outcome.unknown = True
            pool = record.decision.pool if record.decision.pool in target.pools else target.pools[-1]
            return Decision(target.route_name, pool, (), "otherwise", ("the log can't tell",))

    def _prepare(self, ask: Ask) -> tuple[Outgoing, int]:
        self._number += 1
        number, record = self._number, ask.record
        self._jobs[number] = ask.job()
        view = RequestView(record.protocol, Body(body_for(number)), {}, record.key)
        kept = Record(id=str(number), path="", protocol=record.protocol, began_s=0.0)
        told = {**QUIET_SIGNALS, "prompt_tokens": ask.prompt_tokens, **record.signals}  # sending never does without
        signals = cast(Signals, RecordedSignals(msgspec.structs.replace(record, signals=told)))
        affinity = record.session or record.id
        return Outgoing(b"POST", b"/", [], view, signals, affinity, kept, self._trace), number

    async def _send(self, outgoing: Outgoing, decision: Decision, number: int, ask: Ask, outcome: Outcome) -> None:
        lease, response = await self._sender.send(outgoing, decision)
        answer = cast(MemoryResponse, response)
        now_s = self._loop.time()
        outcome.admitted_s = outcome.admitted_s or now_s
        outcome.pool, outcome.replica = outgoing.record.pool, lease.replica.label
        try:
            if answer.status >= 300:
                outcome.error = f"engine_{answer.status}"
                return
            await answer.finished()
            self._pools[outcome.pool].note_good(lease.replica, self._loop.time())
            outcome.first_token_s = outcome.first_token_s or answer.job.first_token_s or 0.0
        except GatewayError as error:
            self._pools[outcome.pool].note_bad(lease.replica, error.code, self._loop.time())
            raise
        finally:
            answer.abandon()
            lease.release()
        larger = larger_decision(decision, outcome.pool, "escalated") if self._escalate else None
        if larger is not None and self._escalates():
            outcome.escalated = True
            self._jobs[number] = ask.job()
            await self._send(outgoing, larger, number, ask, outcome)

    def _escalates(self) -> bool:
        """In exact quotas, like the mix."""
        self._could_escalate += 1
        return is_nth(self._could_escalate, self._escalate)

    # ---- faults ----

    def plan_faults(self, faults: Iterable[tuple[str, float, Fault]]) -> None:
        """Let faults happen at their times; the replicas' probes run from then on.

        Raises:
            ValueError: there is no such replica.
        """
        by_name = {vllm.card.name: vllm for vllm in self._engines.values()}
        for name, at_s, fault in faults:
            if name not in by_name:
                raise ValueError(f"there is no replica {name[:64]}; known: {', '.join(by_name)}")
            self._loop.call_at(at_s, self._suffer, by_name[name], fault)

    def _suffer(self, vllm: EmulatedVllm, fault: Fault) -> None:
        log.warning("%s: %s", vllm.card.name, fault.kind)
        vllm.living.suffer(fault)
        for pool, replica in self._all_replicas():
            if self._engines[replica.url] is vllm and replica not in self._watches:
                self._watches[replica] = self._loop.create_task(self._watch(pool, replica, vllm))

    async def _watch(self, pool: Pool, replica: Replica, vllm: EmulatedVllm) -> None:
        async with httpx.AsyncClient(transport=MemoryTransport(self._engines)) as client:
            probes = self._loop.create_task(Prober({}, self._random, client, lambda _: 0.0).watch(pool, replica))
            try:
                well_s = 0.0
                while well_s < WATCHED_S:
                    await asyncio.sleep(1)
                    well_s = well_s + 1 if vllm.living.fault is None and replica.healthy else 0.0
            finally:
                probes.cancel()
                await asyncio.gather(probes, return_exceptions=True)
        del self._watches[replica]

    # ---- results ----

    def _results(self, span_s: float, running: int) -> Results:
        use: dict[str, list[EngineUse]] = {name: [] for name in self._pools}
        places = dict.fromkeys(self._pools, 0)
        for pool, replica in self._all_replicas():
            living = self._engines[replica.url].living
            living.look()
            engine = living.engine
            use[pool.name].append(EngineUse(replica.label, engine.busy_s, engine.asked_tokens, engine.hit_tokens))
            places[pool.name] += engine.max_running
        return Results(span_s, list(self.outcomes), running, use, places)


async def _nobody_asks(pool: Pool, replica: Replica) -> None:
    """The health path after an early failure: heads come at once here, and what fails has begun."""
