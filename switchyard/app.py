"""The composition root: from a policy to a running gateway. Everything that lives long is made here and only here."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from random import Random
from typing import Any

import httpx
from fastapi import FastAPI

from switchyard.api.auth import Keys
from switchyard.api.control import make_control
from switchyard.api.door import Door
from switchyard.api.server import SWEEP_S as CLIENT_SWEEP_S
from switchyard.config.load import PolicyError, Problem, Secrets, parse_policy, read_secrets
from switchyard.config.policy import Classifier as ClassifierBlock
from switchyard.config.policy import LocalClassifier, ModelClassifier, Policy, Route
from switchyard.config.reload import PolicyFile, describe_changes
from switchyard.deciding import Decider, Steering, Target
from switchyard.pipeline import Exchange, Pipeline
from switchyard.pools.health import Prober
from switchyard.pools.pool import Pool
from switchyard.pools.replica import Replica
from switchyard.routing.classify.base import Classifier
from switchyard.routing.classify.embedded import EmbeddedClassifier as Embedded
from switchyard.routing.classify.flight import Flight
from switchyard.routing.classify.local import LocalClassifier as Local
from switchyard.routing.classify.local import Worker, worker_command
from switchyard.routing.classify.model import Ask, ModelJudge, has_score
from switchyard.routing.classify.scorer import Scorer, read_weights
from switchyard.routing.classify.stats import AskStats
from switchyard.routing.lookup import Names
from switchyard.routing.pressure import PressureRelief
from switchyard.routing.request import Body, RequestView
from switchyard.routing.session import Pins
from switchyard.routing.share import ShareControl
from switchyard.routing.tokens import Count, load_tokenizer, why_no_tokenizer
from switchyard.sending import Sender
from switchyard.telemetry.logs import DecisionLog
from switchyard.telemetry.metrics import Labels, Metrics
from switchyard.telemetry.record import Listener, Recorder
from switchyard.telemetry.tracing import make_tracing
from switchyard.upstream.pool import SWEEP_S as ENGINE_SWEEP_S
from switchyard.upstream.pool import ConnectionPool
from switchyard.upstream.retry import RetryBudget

FLUSH_S = 0.5
WATCH_S = 1.0  # how often the policy's file is looked at
FIRST_PROBE_LIMIT_S = 2.5  # then the gateway takes traffic, whatever its engines say
MAX_STORED = 10_000

log = logging.getLogger("switchyard")


class StoredResponses:
    """Places of the answers that engines keep for the Responses endpoint; the oldest are forgotten."""

    def __init__(self) -> None:
        self._places: OrderedDict[str, tuple[str, str]] = OrderedDict()

    def place_of(self, response_id: str) -> tuple[str, str] | None:
        """See `pipeline.Stored`."""
        return self._places.get(response_id)

    def remember(self, response_id: str, pool: str, replica: str) -> None:
        """See `pipeline.Stored`."""
        self._places[response_id] = (pool, replica)
        if len(self._places) > MAX_STORED:
            self._places.popitem(last=False)


class Gateway:
    """A policy at work: its pools, its pipeline, its tasks. The policy can be replaced while requests run.

    Args:
        policy: what it does.
        secrets: the keys that the policy names.
        random: source of chance.
        ask: reaches a pool for a `model` classifier; left out: this gateway's own pools.
        source: the policy's file, to be read again when it changes.
    """

    def __init__(
        self,
        policy: Policy,
        secrets: Secrets,
        random: Random | None = None,
        ask: Ask | None = None,
        source: PolicyFile | None = None,
    ) -> None:
        server = policy.server
        self._ask = ask
        self._source = source
        self._random = random or Random()
        self._created = int(time.time())
        self._started = False
        self._policy_problem = ""
        self._hangup = asyncio.Event()
        self.pools: dict[str, Pool] = {}
        self._connections: dict[tuple[str, str], ConnectionPool] = {}
        self._steering: dict[str, Steering] = {}
        self._made: dict[ClassifierBlock, Classifier] = {}
        self._tokenizers: dict[str, Count] = {}
        self._stopping: asyncio.Task[None] | None = None
        self._retired: list[ConnectionPool] = []  # of replicas that are gone: what runs there may end
        self._watches: dict[Replica, asyncio.Task[None]] = {}
        self._prober: Prober | None = None
        self._pins = Pins(server.session_ttl_s, time.monotonic)
        self._stored = StoredResponses()
        self._retry_budget = RetryBudget()
        self._metrics = Metrics(self._read_gauges, self._read_asked)
        self._decision_log = DecisionLog(server.decision_log) if server.decision_log else None
        listeners: list[Listener] = [self._metrics]
        if self._decision_log is not None:
            listeners.append(self._decision_log)
        self._recorder = Recorder(listeners)
        self._tracing = make_tracing(os.environ)
        keys = Keys(secrets.api_keys, secrets.admin_key)
        self.door = Door(
            keys, server.max_body_mb << 20, server.max_connections, self._serve, self._serve_stored, self._metrics.count_refusal
        )
        self.app = make_control(self, keys, server.max_body_mb << 20, self.door.next_id, self._lifespan)
        self._load_tokenizers(policy, str(source.path) if source is not None else "policy")
        self._install(policy, secrets)

    async def _serve(self, exchange: Exchange) -> None:
        await self.pipeline.handle(exchange)  # the policy of this moment: a request keeps the one it began with

    async def _serve_stored(self, exchange: Exchange, response_id: str) -> None:
        await self.pipeline.handle_stored(exchange, response_id)

    # ---- the policy in force ----

    def _install(self, policy: Policy, secrets: Secrets) -> None:
        """Put a policy in force, all at once; nothing here waits."""
        self.policy = policy
        self._secrets = secrets
        old = self.pools
        self.pools = {}
        for name, block in policy.pools.items():
            pool = old.get(name)
            if pool is None:
                pool = Pool(name, block, self._random)
            elif pool.settings != block:
                pool.reconfigure(block)
            self.pools[name] = pool
        for pool in self.pools.values():
            for replica in pool.replicas:
                connections = self._connections.get((pool.name, replica.label))
                if connections is None or connections.url != replica.url:
                    if connections is not None:
                        self._retired.append(connections)
                    connections = ConnectionPool(replica.url, replica.label, pool.settings.timeouts)
                    self._connections = {**self._connections, (pool.name, replica.label): connections}
                connections.reconfigure(pool.settings.timeouts)
        used = {(pool.name, replica.label) for pool in self.pools.values() for replica in pool.replicas}
        self._retired += [c for place, c in self._connections.items() if place not in used]
        self._connections = {place: c for place, c in self._connections.items() if place in used}
        self._names = Names(policy)
        self._targets = {model: self._make_target(*found) for model, found in self._names.listed.items()}
        self.decider = Decider(
            self._find_target, self.pools, self._make_classifiers(policy), self._make_steering(policy), self._pins,
            self._stored, {n: self._tokenizers[p.tokenizer] for n, p in policy.pools.items() if p.tokenizer is not None},
        )  # fmt: skip
        self._sender = Sender(self.pools, self._connections, secrets.pool_keys, self._retry_budget)
        self.pipeline = Pipeline(
            policy, self.pools, self.decider, self._sender, self._stored, self._recorder, self._tracing,
            lambda: time.localtime().tm_hour,
        )  # fmt: skip
        self._watch_replicas()

    async def replace_policy(self, raw: bytes | None = None) -> list[str]:
        """Put another policy in force: these bytes, or the file read again. A bad one changes nothing.

        Returns:
            What changed, in words.

        Raises:
            PolicyError: everything that is wrong with it.
            OSError: the file can't be read.
        """
        try:
            policy, secrets = await asyncio.to_thread(self._read_policy, raw)  # a big file takes a while to check
        except (PolicyError, OSError) as error:
            self._policy_problem = str(error)
            self._metrics.count_reload(good=False)
            log.error("the policy stays as it is; the new one is not good:\n%s", error)
            raise
        changes = describe_changes(self.policy, policy)
        self._policy_problem = ""
        if changes:
            # The server's own block is read at the start only, whatever the file says now.
            self._install(policy.model_copy(update={"server": self.policy.server}), secrets)
            self._metrics.count_reload(good=True)
            log.info("new policy: %s", "; ".join(changes))
        return changes

    def _read_policy(self, raw: bytes | None) -> tuple[Policy, Secrets]:
        name = "policy"
        if self._source is not None:
            name = str(self._source.path)
            raw = self._source.path.read_bytes() if raw is None else raw
        if raw is None:
            raise OSError("the gateway was started without a policy file")
        policy = parse_policy(raw, name)
        if self._source is not None:
            policy = self._source.with_overrides(policy)
        self._load_tokenizers(policy, name)
        return policy, read_secrets(policy, name)

    def _load_tokenizers(self, policy: Policy, file: str) -> None:
        """Read the tokenizers that a policy names; takes a while, and is done before anything is replaced."""
        problems = []
        wanted = {name: pool.tokenizer for name, pool in policy.pools.items() if pool.tokenizer is not None}
        for name, path in wanted.items():
            if path in self._tokenizers:
                continue
            try:
                if reason := why_no_tokenizer(path):
                    raise ValueError(reason)
                self._tokenizers[path] = load_tokenizer(path)
            except ValueError as error:
                problems.append(Problem(file, 1, 1, f"pools.{name}.tokenizer", str(error)))
        if problems:
            raise PolicyError(problems)

    async def _watch_file(self, source: PolicyFile) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WATCH_S):
                    await self._hangup.wait()
            if self._hangup.is_set() or await asyncio.to_thread(source.changed):
                self._hangup.clear()
                with contextlib.suppress(PolicyError, OSError):  # said in the log, at /readyz and in a metric
                    await self.replace_policy()

    def _make_classifiers(self, policy: Policy) -> dict[str, list[Classifier]]:
        """One for each different block: routes with equal blocks share cache, limit and process, and so does a reload."""
        wanted = {block: None for route in policy.routes.values() for block in route.classify}
        old, self._made = self._made, {block: self._made.get(block) or self._make_classifier(block) for block in wanted}
        gone = [made for block, made in old.items() if block not in self._made and isinstance(made, Local)]
        if gone:  # their model's memory is wanted; requests that they are asked about go on to the next classifier
            self._stopping = _start(_stop_all(gone), "classifiers that are gone")
        if self._started:
            self._warm_up()
        return {name: [self._made[block] for block in route.classify] for name, route in policy.routes.items()}

    def _warm_up(self) -> None:
        """Local models load in their processes, so that the first question need not wait for them."""
        for classifier in self._made.values():
            if isinstance(classifier, Local):
                classifier.start()

    def _make_classifier(self, block: ClassifierBlock) -> Classifier:
        if isinstance(block, ModelClassifier):
            flight = Flight(has_score, block.concurrency, block.cache_size, block.cache_ttl_s)
            return ModelJudge(block, self._ask or self._ask_own_pool, flight, block.bias, block.scale)
        if isinstance(block, LocalClassifier):
            command = worker_command(block.model, block.kind, block.label, block.max_input_tokens)
            return Local(Worker(command), block.kind, block.deadline_ms, block.max_input_tokens)
        return Embedded(Scorer(read_weights()))

    def _make_steering(self, policy: Policy) -> dict[str, Steering]:
        """Control goes on where its settings stay: a reload doesn't forget what was given."""
        old, self._steering = self._steering, {}
        for name, route in policy.routes.items():
            share, pressure = old.get(name, (None, None))
            order = tuple(step.use for step in route.choose)
            if route.share is None or share is None or (share.settings, share.order) != (route.share, order):
                share = ShareControl(route.share, order) if route.share is not None else None
            if (
                route.pressure is None
                or pressure is None
                or (pressure.settings, pressure.choose) != (route.pressure, route.choose)
            ):
                pressure = PressureRelief(route.pressure, route.choose) if route.pressure is not None else None
            if share is not None or pressure is not None:
                self._steering[name] = (share, pressure)
        return self._steering

    async def _ask_own_pool(self, pool: str, body: bytes) -> tuple[int, bytes]:
        return await self._sender.ask(pool, body)

    def _find_target(self, model: str) -> Target | None:
        target = self._targets.get(model)
        if target is None and (found := self._names.find(model)) is not None:  # by a pattern
            return self._make_target(*found)
        return target

    @staticmethod
    def _make_target(name: str, route: Route) -> Target:
        return Target(name, route, route.pools)

    # ---- life ----

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: FastAPI) -> AsyncIterator[dict[str, Any]]:
        """Owns every background task; when one fails for good, the log says so and the others go on."""
        async with httpx.AsyncClient(trust_env=False, limits=httpx.Limits(max_connections=None)) as client:
            self._prober = Prober(self._secrets.pool_keys, self._random, client)
            tasks = [
                _start(self._begin(self._prober), "first probes"),
                _start(_repeat(ENGINE_SWEEP_S, self._sweep_engines), "engine limits"),
                _start(_repeat(CLIENT_SWEEP_S, self._sweep_clients), "client limits"),
            ]
            if self._source is not None:
                tasks.append(_start(self._watch_file(self._source), "policy file"))
                with contextlib.suppress(
                    NotImplementedError, ValueError, RuntimeError
                ):  # no such signal, or not the main thread
                    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._hangup.set)
            if self._decision_log is not None:
                tasks.append(_start(_flush(self._decision_log), "decision log"))
            try:
                yield {"door": self.door}
            finally:
                self._prober = None
                for task in (*tasks, *self._watches.values()):
                    task.cancel()
                await asyncio.gather(*tasks, *self._watches.values(), return_exceptions=True)
                for connections in (*self._connections.values(), *self._retired):
                    connections.close()
                await _stop_all([made for made in self._made.values() if isinstance(made, Local)])
                if self._decision_log is not None:
                    await asyncio.to_thread(self._decision_log.close)
                await asyncio.to_thread(self._tracing.shut_down)

    async def _begin(self, prober: Prober) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_PROBE_LIMIT_S):
                await prober.probe_once(self.pools.values())
        self._started = True
        self._warm_up()
        down = [f"{r.pool}/{r.label}" for p in self.pools.values() for r in p.replicas if not r.healthy]
        if down:
            log.warning("serving, but these replicas can't be used now: %s", ", ".join(down))
        self._watch_replicas()

    def _watch_replicas(self) -> None:
        """One task for each replica of the policy in force; a replica that is new is probed at once."""
        if self._prober is None or not self._started:
            return
        self._prober.keys = self._secrets.pool_keys
        wanted = {replica: pool for pool in self.pools.values() for replica in pool.replicas}
        for replica in self._watches.keys() - wanted.keys():
            self._watches.pop(replica).cancel()
        for replica, pool in wanted.items():
            if replica not in self._watches:
                if replica.state == "unknown":
                    _start(self._prober.probe(pool, replica, first=True), f"first probe of {replica.label}")
                self._watches[replica] = _start(self._prober.watch(pool, replica), f"probes of {replica.label}")

    def _sweep_engines(self) -> None:
        now_s = asyncio.get_running_loop().time()
        for connections in (*self._connections.values(), *self._retired):
            connections.sweep(now_s)
        for connections in [c for c in self._retired if not c.busy]:
            connections.close()
            self._retired.remove(connections)

    def _sweep_clients(self) -> None:
        self.door.sweep(asyncio.get_running_loop().time())

    # ---- what the control plane shows (api.control.Gateway) ----

    def readiness(self) -> tuple[bool, dict[str, Any]]:
        """See `api.control.Gateway`."""
        pools = {
            pool.name: {
                "replicas": {
                    r.label: {
                        "state": r.state,
                        "in_flight": r.in_flight,
                        **({"problem": r.problem} if r.problem else {}),
                    }
                    for r in pool.replicas
                },
                "healthy": sum(r.healthy for r in pool.replicas),
                "queued": pool.queued,
            }
            for pool in self.pools.values()
        }
        reason = ""
        if self.door.draining:
            reason = "draining"
        elif not self._started:
            reason = "starting: engines are being asked for the first time"
        elif not any(r.healthy for p in self.pools.values() for r in p.replicas):
            reason = "no engine of any pool can be reached"
        ready = not reason
        problem = {"policy_problem": self._policy_problem} if self._policy_problem else {}
        return ready, {"ready": ready, **problem, **({"reason": reason} if reason else {}), "pools": pools}

    def models(self) -> Mapping[str, dict[str, Any]]:
        """See `api.control.Gateway`."""
        names = dict.fromkeys([*self.policy.routes, *self.policy.pools, *self._names.listed])  # exact aliases, too
        return {name: card for name in names if (card := self.model(name)) is not None}

    def model(self, name: str) -> dict[str, Any] | None:
        """The card of a name. `max_model_len` is the largest context that a request can get: longer pools take over."""
        found = self._names.find(name)
        if found is None:
            return None
        route_name, route = found
        pools = [self.pools[p] for p in route.pools]
        known = [p.context_tokens for p in pools if p.context_tokens]
        takes = {c for p in pools for c in p.settings.accepts}
        card: dict[str, Any] = {"id": name, "object": "model", "created": self._created, "owned_by": "switchyard"}
        if known:
            card["max_model_len"] = max(known)
        card["modalities"] = ["text", *(c for c in ("images", "audio") if c in takes)]
        card["switchyard"] = {"kind": "route" if route_name else "pool", "pools": [p.name for p in pools]}
        return card

    async def explain(self, body: bytes, protocol: str, headers: Mapping[str, str]) -> dict[str, Any]:
        """See `api.control.Gateway`."""
        return await self.pipeline.explain(RequestView(protocol, Body(body), headers))

    def metrics(self) -> bytes:
        """See `api.control.Gateway`."""
        return self._metrics.text()

    def latest_decisions(self, limit: int) -> list[dict[str, Any]]:
        """See `api.control.Gateway`."""
        return [record.as_line() for record in list(self._recorder.latest)[::-1][:limit]]

    def _read_asked(self) -> Iterator[tuple[str, Labels, float]]:
        totals: dict[tuple[str, Labels], float] = {}
        for block, classifier in self._made.items():
            stats = getattr(classifier, "stats", None)
            if not isinstance(stats, AskStats):
                continue
            by = f"model {block.pool}" if isinstance(block, ModelClassifier) else block.type
            results = {"asked": stats.asked, "answered": stats.answered, "cached": stats.cached, "joined": stats.joined}
            found: list[tuple[str, Labels, float]] = [
                *(("switchyard_classifier_questions", (by, result), value) for result, value in results.items()),
                *(("switchyard_classifier_abstentions", (by, why), count) for why, count in stats.abstained.items()),
                ("switchyard_classifier_seconds", (by,), stats.seconds),
                ("switchyard_classifier_tokens", (by, "input"), stats.input_tokens),
                ("switchyard_classifier_tokens", (by, "output"), stats.output_tokens),
            ]
            for name, labels, value in found:  # two blocks may ask the same pool
                totals[(name, labels)] = totals.get((name, labels), 0.0) + value
        yield from ((name, labels, value) for (name, labels), value in totals.items())

    def _read_gauges(self) -> Iterator[tuple[str, Labels, float]]:
        for pool in self.pools.values():
            yield "switchyard_queued", (pool.name,), pool.queued
            for replica in pool.replicas:
                yield "switchyard_in_flight", (pool.name, replica.label), replica.in_flight
                yield "switchyard_replica_up", (pool.name, replica.label), float(replica.healthy)
        yield "switchyard_sessions", (), len(self._pins)
        for route, (share, _) in self._steering.items():
            if share is not None:
                yield "switchyard_share", (route, share.settings.pool), share.share


async def _stop_all(classifiers: Sequence[Local]) -> None:
    await asyncio.gather(*(classifier.stop() for classifier in classifiers))


async def _flush(decisions: DecisionLog) -> None:
    while True:
        await asyncio.sleep(FLUSH_S)
        await asyncio.to_thread(decisions.flush)


def _start(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_report)
    return task


async def _repeat(every_s: float, act: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(every_s)
        act()


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("the task %s has failed and is gone", task.get_name(), exc_info=task.exception())
