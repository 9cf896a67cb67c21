"""The composition root: from a policy to a running gateway. Everything that lives long is made here and only here."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import httpx
from fastapi import FastAPI

from switchyard.answering import Answers
from switchyard.api.auth import Keys
from switchyard.api.control import make_control
from switchyard.api.door import Door
from switchyard.api.server import SWEEP_S as CLIENT_SWEEP_S
from switchyard.arriving import PIN, PLACE, Arrivals
from switchyard.classifiers import Classifiers, Scorers, load_scorers, load_tokenizers
from switchyard.config.load import parse_policy
from switchyard.config.policy import Policy
from switchyard.config.problem import PolicyError
from switchyard.config.reload import PolicyFile, describe_changes
from switchyard.config.route import Route
from switchyard.config.secrets import Secrets, read_secrets
from switchyard.config.server import Server
from switchyard.deciding import Decider, Steering, Target
from switchyard.exchange import Endpoint, Exchange
from switchyard.figures import Figures, read_classifiers, read_pools, read_redis, read_shadows
from switchyard.fleet import Fleet
from switchyard.pipeline import Pipeline
from switchyard.pools.actions import act, find_replica
from switchyard.pools.affinity import Places
from switchyard.pools.discovery import Discovery, Resolve, resolve
from switchyard.pools.health import Prober
from switchyard.pools.pool import Pool
from switchyard.pools.replica import Replica
from switchyard.pools.report import describe_pool, describe_replica
from switchyard.recalling import Recall
from switchyard.routing.classify.model import Ask
from switchyard.routing.lookup import Names
from switchyard.routing.pressure import PressureRelief
from switchyard.routing.request import Body, RequestView
from switchyard.routing.session import Pin, Pins
from switchyard.routing.share import ShareControl
from switchyard.routing.stored import StoredResponses
from switchyard.routing.tokens import Count
from switchyard.sending import Sender
from switchyard.shadowing import Shadowing
from switchyard.state.base import Store
from switchyard.state.memory import MemoryStore
from switchyard.telemetry.added_up import WRITE_S, WorkerFiles
from switchyard.telemetry.logs import DecisionLog
from switchyard.telemetry.metrics import Metrics
from switchyard.telemetry.record import Listener, Recorder
from switchyard.telemetry.tracing import make_tracing
from switchyard.upstream.pool import SWEEP_S as ENGINE_SWEEP_S
from switchyard.upstream.pool import ConnectionPool
from switchyard.upstream.retry import RetryBudget

if TYPE_CHECKING:  # the client of Redis is loaded where it is used
    from switchyard.state.redis import RedisStore

FLUSH_S = 0.5
WATCH_S = 1.0  # how often the policy's file is looked at
FIRST_PROBE_LIMIT_S = 2.5  # then the gateway takes traffic, whatever its engines say

log = logging.getLogger("switchyard")


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """A process among several that serve one port.

    Attributes:
        number: from 1.
        count: how many there are.
        crew: name that they have in common.
        folder: where each puts its metrics.
    """

    number: int
    count: int
    crew: str
    folder: Path


class Gateway:
    """A policy at work: its pools, its pipeline, its tasks. The policy can be replaced while requests run.

    Args:
        policy: what it does.
        secrets: the keys that the policy names.
        random: source of chance.
        ask: reaches a pool for a `model` classifier; left out: this gateway's own pools.
        source: the policy's file, to be read again when it changes.
        resolve: looks up names for pools whose replicas are found by DNS.
        place: which of several workers this is; left out: the only process.
    """

    def __init__(
        self,
        policy: Policy,
        secrets: Secrets,
        random: Random | None = None,
        ask: Ask | None = None,
        source: PolicyFile | None = None,
        resolve: Resolve = resolve,
        place: WorkerPlace | None = None,
    ) -> None:
        server = policy.server
        self._source = source
        self._random = random or Random()
        self._created = int(time.time())
        self._started = False
        self._policy_problem = ""
        self._replacing = asyncio.Lock()  # one after the other: the policy that came last stays
        self._hangup = asyncio.Event()
        self.pools: dict[str, Pool] = {}
        self._connections: dict[tuple[str, str, str], ConnectionPool] = {}  # by pool, label and URL of the replica
        self._steering: dict[str, Steering] = {}
        self._tokenizers: dict[str, Count] = {}
        self._retired: list[ConnectionPool] = []  # of replicas that are gone: what runs there may end
        self._watches: dict[Replica, asyncio.Task[None]] = {}
        self._prober: Prober | None = None
        folder = source.path.parent if source is not None else Path()
        self.discovery = Discovery(folder, resolve, self._take_over_replicas)
        self._place = place
        self._worker_files = WorkerFiles(place.folder) if place is not None else None
        self._redis = make_redis(server)
        self._store: Store = self._redis or MemoryStore(time.monotonic)
        self._fleet: Fleet | None = None
        if self._redis is not None:
            self._fleet = Fleet(
                self._redis, token_hex(8), place.crew if place is not None else "", lambda: self.pools, self._replace_policy
            )
        self._classifiers = Classifiers(ask or self._ask_own_pool, self._redis)
        self._pins = Pins(server.session_ttl_s, time.monotonic, tell=self._tell_pin)
        self._stored = StoredResponses(self._store.remember_place)
        self._retry_budget = RetryBudget()
        self._metrics = Metrics(self._read_gauges, self._read_counters)
        self._decision_log = DecisionLog(server.decision_log) if server.decision_log else None
        listeners: list[Listener] = [self._metrics]
        if self._decision_log is not None:
            listeners.append(self._decision_log)
        self._recorder = Recorder(listeners)
        self._tracing = make_tracing(os.environ)
        self._shadowing = Shadowing(self._random, lambda: self.door.draining)
        keys = Keys(secrets.api_keys, secrets.admin_key)
        self.door = Door(
            keys, server.max_body_mb << 20, server.max_connections, self._serve, self._serve_stored, self._metrics.count_refusal
        )
        self.app = make_control(self, keys, server.max_body_mb << 20, self.door.next_id, self._lifespan)
        name = str(source.path) if source is not None else "policy"
        self._install(policy, secrets, load_scorers(policy, name, {}), load_tokenizers(policy, name, {}))

    async def _serve(self, exchange: Exchange) -> None:
        await self.pipeline.handle(exchange)  # the policy of this moment: a request keeps the one it began with

    async def _serve_stored(self, exchange: Exchange, response_id: str) -> None:
        await self._recall.handle(exchange, response_id)

    # ---- the policy in force ----

    def _install(self, policy: Policy, secrets: Secrets, scorers: Scorers, tokenizers: dict[str, Count]) -> None:
        """Put a policy in force, all at once; nothing here waits."""
        self.policy = policy
        self._tokenizers = tokenizers
        self._secrets = secrets
        old = self.pools
        self.pools = {}
        for name, block in policy.pools.items():
            pool = old.get(name)
            if pool is None:
                pool = Pool(name, block, self._random, Places(tell=partial(self._tell_place, name)), self._tell_health)
            elif pool.settings != block:
                pool.reconfigure(block)
            self.pools[name] = pool
        self._connect()
        self.discovery.follow(self.pools)
        self._names = Names(policy)
        self._targets = {model: self._make_target(*found) for model, found in self._names.listed.items()}
        self.decider = Decider(
            self._find_target, self.pools, self._classifiers.follow(policy, scorers), self._make_steering(policy), self._pins,
            self._stored, {n: tokenizers[p.tokenizer] for n, p in policy.pools.items() if p.tokenizer is not None},
        )  # fmt: skip
        self._sender = Sender(self.pools, self._connections_to, secrets.pool_keys, self._retry_budget)
        arrivals = Arrivals(policy.server.limits, self._store, self._pins, self._stored, self.pools)
        answers = Answers(self._sender, self.decider, self._stored)
        self.pipeline = Pipeline(
            policy, self.pools, arrivals, self.decider, self._sender, answers, self._recorder, self._tracing,
            self._shadowing, lambda: time.localtime().tm_hour,
        )  # fmt: skip
        self._recall = Recall(self.pools, arrivals, self._sender, answers, self._stored, self._recorder, self._tracing)
        self._watch_replicas()

    def _connect(self) -> None:
        """Connections for every replica of the policy in force, with its limits."""
        for pool in self.pools.values():
            for replica in pool.replicas:
                self._connections_to(pool, replica).reconfigure(pool.settings.timeouts, replica.full_name)

    def _connections_to(self, pool: Pool, replica: Replica) -> ConnectionPool:
        """Those of a replica. Also of one that is gone: requests that began before may only now get their place on it."""
        place = (pool.name, replica.label, replica.url)
        connections = self._connections.get(place)
        if connections is None:
            connections = ConnectionPool(replica.url, replica.full_name, pool.settings.timeouts)
            self._connections[place] = connections
        return connections

    def _take_over_replicas(self) -> None:
        """A source has named other replicas."""
        self._connect()
        self._watch_replicas()

    async def replace_policy(self, raw: bytes | None = None) -> list[str]:
        """Put another policy in force, here and in the other workers: these bytes, or the file read again.

        A bad one changes nothing.

        Returns:
            What changed, in words.

        Raises:
            PolicyError: everything that is wrong with it.
            OSError: the file can't be read.
        """
        changes = await self._replace_policy(raw)
        if self._fleet is not None:
            self._fleet.tell_policy(raw)
        return changes

    async def _replace_policy(self, raw: bytes | None) -> list[str]:
        async with self._replacing:
            return await self._read_and_install(raw)

    async def _read_and_install(self, raw: bytes | None) -> list[str]:
        try:
            policy, secrets, scorers, tokenizers = await asyncio.to_thread(self._read_policy, raw)  # takes a while
        except (PolicyError, OSError) as error:
            self._policy_problem = str(error)
            self._metrics.count_reload(good=False)
            log.error("the policy stays as it is; the new one is not good:\n%s", error)
            raise
        changes = describe_changes(self.policy, policy)
        known = self._classifiers.scorers
        relearned = [path for path, scorer in scorers.items() if known.get(path, scorer) is not scorer]
        changes += [f"weights in {path or 'the package'} are new" for path in relearned]
        self._policy_problem = ""
        if changes:
            # But for the keys' limits, the server's own block is read at the start only, whatever the file says now.
            server = self.policy.server.model_copy(update={"limits": policy.server.limits})
            self._install(policy.model_copy(update={"server": server}), secrets, scorers, tokenizers)
            self._metrics.count_reload(good=True)
            log.info("new policy: %s", "; ".join(changes))
        return changes

    def _read_policy(self, raw: bytes | None) -> tuple[Policy, Secrets, Scorers, dict[str, Count]]:
        name = "policy"
        if self._source is not None:
            name = str(self._source.path)
            raw = self._source.path.read_bytes() if raw is None else raw
        if raw is None:
            raise OSError("the gateway was started without a policy file")
        policy = parse_policy(raw, name)
        if self._source is not None:
            policy = self._source.with_overrides(policy)
        scorers = load_scorers(policy, name, self._classifiers.scorers)
        return policy, read_secrets(policy, name), scorers, load_tokenizers(policy, name, self._tokenizers)

    async def _watch_file(self, source: PolicyFile) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WATCH_S):
                    await self._hangup.wait()
            if self._hangup.is_set() or await asyncio.to_thread(source.changed):
                self._hangup.clear()
                with contextlib.suppress(PolicyError, OSError):  # said in the log, at /readyz and in a metric
                    await self.replace_policy()

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

    # ---- what other gateways are told ----

    def _tell_pin(self, route: str, key: str, pin: Pin) -> None:
        if self._store.shared:
            self._store.remember(key, PIN + route, pin.as_text())

    def _tell_place(self, pool: str, key: str, label: str) -> None:
        self._store.remember(key, PLACE + pool, label)

    def _tell_health(self, replica: Replica, why: str) -> None:
        if self._fleet is not None:
            self._fleet.tell_health(replica, why)

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
            self._prober = Prober(self._secrets.pool_keys, self._random, client, self._heard_s)
            tasks = [
                _start(self._begin(self._prober), "first probes"),
                _start(_repeat(ENGINE_SWEEP_S, self._sweep_engines), "engine limits"),
                _start(_repeat(CLIENT_SWEEP_S, self._sweep_clients), "client limits"),
                _start(self.discovery.watch(), "sources of replicas"),
            ]
            if self._redis is not None and self._fleet is not None:
                tasks += [_start(self._redis.run(), "Redis"), _start(self._fleet.listen(), "other gateways")]
            if self._worker_files is not None:
                tasks.append(_start(self._write_metrics(self._worker_files), "metrics"))
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
                if self._redis is not None:
                    await self._redis.flush()
                for task in (*tasks, *self._watches.values()):
                    task.cancel()
                await asyncio.gather(*tasks, *self._watches.values(), return_exceptions=True)
                await self._shadowing.stop()
                for connections in (*self._connections.values(), *self._retired):
                    connections.close()
                await self._classifiers.stop()
                if self._decision_log is not None:
                    await asyncio.to_thread(self._decision_log.close)
                if self._worker_files is not None:
                    await asyncio.to_thread(self._worker_files.write, list(self._metrics.collect()))
                    self._worker_files.close()
                await asyncio.to_thread(self._tracing.shut_down)

    def _heard_s(self, replica: Replica) -> float:
        connections = self._connections.get((replica.pool, replica.label, replica.url))
        return connections.heard_s if connections is not None else 0.0

    async def _begin(self, prober: Prober) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_PROBE_LIMIT_S):
                await self.discovery.look()
                await prober.probe_once(self.pools.values())
                if self._redis is not None:
                    await self._redis.link.tried.wait()
        self._started = True
        self._classifiers.warm_up()
        down = [f"{r.pool}/{r.label}" for p in self.pools.values() for r in p.replicas if not r.healthy]
        if down:
            log.warning("serving, but these replicas can't be used now: %s", ", ".join(down))
        self._watch_replicas()

    def _watch_replicas(self) -> None:
        """One task for each replica of the policy in force; a replica that is new is probed at once."""
        if self._prober is None or not self._started:
            return
        self._prober.keys = self._secrets.pool_keys
        wanted = {replica: pool for pool in self.pools.values() for replica in (*pool.replicas, *pool.leaving)}
        for replica in self._watches.keys() - wanted.keys():
            self._watches.pop(replica).cancel()
        for replica, pool in wanted.items():
            if replica not in self._watches:
                if replica.state == "unknown":
                    _start(self._prober.probe(pool, replica, first=True), f"first probe of {replica.label}")
                self._watches[replica] = _start(self._prober.watch(pool, replica), f"probes of {replica.label}")

    def _sweep_engines(self) -> None:
        now_s = asyncio.get_running_loop().time()
        used = {(p.name, r.label, r.url) for p in self.pools.values() for r in (*p.replicas, *p.leaving)}
        if gone := self._connections.keys() - used:  # with their last requests
            self._retired += [self._connections.pop(place) for place in gone]
            self._watch_replicas()
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
                **self.discovery.problem_of(pool.name),
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
        if self._redis is not None:
            if self._place is not None:
                problem["worker"] = f"{self._place.number} of {self._place.count}"
            problem["state"] = "shared" if self._redis.link.up else "Redis can't be reached: this process goes on alone"
        return ready, {"ready": ready, **problem, **({"reason": reason} if reason else {}), "pools": pools}

    def describe_pools(self) -> list[dict[str, Any]]:
        """See `api.control.Gateway`."""
        now_s = asyncio.get_running_loop().time()
        return [{**describe_pool(pool, now_s), **self.discovery.problem_of(pool.name)} for pool in self.pools.values()]

    def act_on_replica(self, pool_name: str, label: str, action: str, force: bool) -> dict[str, Any]:
        """See `api.control.Gateway`."""
        now_s = asyncio.get_running_loop().time()
        pool, replica = find_replica(self.pools, pool_name, label)
        changed = act(pool, replica, action, now_s, force)
        if self._fleet is not None:
            self._fleet.tell_action(pool.name, replica.label, action)
        return {"changed": changed, "pool": pool.name, **describe_replica(replica, now_s)}

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

    async def explain(
        self, body: bytes, endpoint: Endpoint, headers: Mapping[str, str], key_name: str, address: str
    ) -> dict[str, Any]:
        """See `api.control.Gateway`."""
        view = RequestView(endpoint.protocol, Body(body), headers, key_name, address, endpoint.counting)
        return await self.pipeline.explain(view)

    async def metrics(self) -> bytes:
        """See `api.control.Gateway`."""
        if self._worker_files is None:
            return self._metrics.text()
        return await asyncio.to_thread(self._worker_files.text, list(self._metrics.collect()))

    async def _write_metrics(self, files: WorkerFiles) -> None:
        while True:
            await asyncio.to_thread(files.write, list(self._metrics.collect()))
            await asyncio.sleep(WRITE_S)

    def latest_decisions(self, limit: int, case: str = "") -> list[dict[str, Any]]:
        """See `api.control.Gateway`."""
        newest = (record for record in reversed(self._recorder.latest) if not case or record.case == case)
        return [record.as_line() for record in islice(newest, limit)]

    def shadows(self) -> list[dict[str, Any]]:
        """See `api.control.Gateway`."""
        return [
            {"route": route, "small": small, "big": big, **found.as_json()}
            for (route, small, big), found in self._shadowing.found.items()
        ]

    def _read_gauges(self) -> Figures:
        yield from read_pools(self.pools.values(), self.discovery)
        yield "switchyard_sessions", (), len(self._pins)
        if self._redis is not None:
            yield "switchyard_state_up", (), float(self._redis.link.up)
        for route, (share, _) in self._steering.items():
            if share is not None:
                yield "switchyard_share", (route, share.settings.pool), share.share

    def _read_counters(self) -> Figures:
        yield from read_classifiers(self._classifiers.made)
        yield from read_shadows(self._shadowing)
        if self._redis is not None:
            yield from read_redis(self._redis.link)


def make_redis(server: Server) -> RedisStore | None:
    """The store that other gateways share, where the policy names one."""
    if server.state == "memory":
        return None
    from switchyard.state.redis import RedisStore

    return RedisStore(server.state, server.state_prefix, server.state_budget_ms / 1000, server.session_ttl_s, time.monotonic)


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
