"""The composition root: from a policy to a running gateway. Everything that lives long is made here and only here."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
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
from switchyard.background import repeat, start
from switchyard.catalogue import Catalogue
from switchyard.classifiers import Classifiers
from switchyard.colleagues import Colleagues
from switchyard.config.policy import Policy
from switchyard.config.reload import PolicyFile
from switchyard.config.secrets import Secrets
from switchyard.config.server import Server
from switchyard.deciding import Decider, Steering, keep_steering
from switchyard.engines import Engines
from switchyard.exchange import Endpoint, Exchange
from switchyard.figures import Figures, read_classifiers, read_pools, read_redis, read_shadows
from switchyard.fleet import Fleet
from switchyard.pipeline import Pipeline
from switchyard.pools.actions import act, find_replica
from switchyard.pools.affinity import Places
from switchyard.pools.discovery import Discovery, Resolve, resolve
from switchyard.pools.pool import Pool
from switchyard.pools.replica import Replica
from switchyard.pools.report import add_up, describe_pool, describe_readiness, describe_replica
from switchyard.recalling import Recall
from switchyard.reloading import ReadyPolicy, Reloader, make_ready
from switchyard.routing.classify.model import Ask
from switchyard.routing.fingerprint import fingerprint
from switchyard.routing.request import Body, RequestView
from switchyard.routing.session import Pin, Pins
from switchyard.routing.stored import StoredResponses
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
from switchyard.upstream.retry import RetryBudget

if TYPE_CHECKING:  # the client of Redis is loaded where it is used
    from switchyard.state.redis import RedisStore

FLUSH_S = 0.5
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
        self.pools: dict[str, Pool] = {}
        self._steering: dict[str, Steering] = {}
        self._engines = Engines(self._random)
        folder = source.path.parent if source is not None else Path()
        self.discovery = Discovery(folder, resolve, self._engines.take_over_replicas)
        self._place = place
        self._worker_files = WorkerFiles(place.folder) if place is not None else None
        self._redis = make_redis(server)
        self._store: Store = self._redis or MemoryStore(time.monotonic)
        self._metrics = Metrics(self._read_gauges, self._read_counters, self._has_replica)
        ready = make_ready(policy, secrets, str(source.path) if source is not None else "policy")
        self._reloader = Reloader(ready, source, self._install, self._tell_policy, self._metrics.count_reload)
        self._fleet: Fleet | None = None
        if self._redis is not None:
            crew = place.crew if place is not None else ""
            self._fleet = Fleet(self._redis, token_hex(8), crew, lambda: self.pools, self._reloader.follow)
        self._colleagues: Colleagues | None = None
        if place is not None and self._fleet is not None:
            self._colleagues = Colleagues(
                place.folder, place.number, place.count,
                {"pools": self._describe_pools, "decisions": self._latest_decisions, "act": self._fleet.follow},
            )  # fmt: skip
        self._classifiers = Classifiers(ask or self._ask_own_pool, self._redis)
        self._pins = Pins(server.session_ttl_s, time.monotonic, tell=self._tell_pin)
        self._stored = StoredResponses(self._store.remember_place)
        self._retry_budget = RetryBudget()
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
        self._install(ready)

    def _serve(self, exchange: Exchange) -> Coroutine[Any, Any, None]:
        return self.pipeline.handle(exchange)  # the policy of this moment: a request keeps the one it began with

    def _serve_stored(self, exchange: Exchange, response_id: str) -> Coroutine[Any, Any, None]:
        return self._recall.handle(exchange, response_id)

    # ---- the policy in force ----

    def _install(self, ready: ReadyPolicy) -> None:
        """Put a policy in force, all at once; nothing here waits."""
        self.policy = policy = ready.policy
        old = self.pools
        self.pools = {}
        for name, block in policy.pools.items():
            pool = old.get(name)
            if pool is None:
                pool = Pool(name, block, self._random, Places(tell=partial(self._tell_place, name)), self._tell_health)
            elif pool.settings != block:
                pool.reconfigure(block)
            self.pools[name] = pool
        self._engines.follow(self.pools, ready.secrets.pool_keys)
        self.discovery.follow(self.pools)
        self._catalogue = Catalogue(policy, self.pools, self._created)
        self._steering = keep_steering(policy, self._steering)
        counters = {name: ready.tokenizers[p.tokenizer] for name, p in policy.pools.items() if p.tokenizer is not None}
        self.decider = Decider(
            self._catalogue.find, self.pools, self._classifiers.follow(policy, ready.scorers), self._steering, self._pins,
            self._stored, counters,
        )  # fmt: skip
        self._sender = Sender(
            self.pools, self._engines.connections_to, ready.secrets.pool_keys, self._retry_budget, self._engines.probe
        )
        arrivals = Arrivals(policy.server.limits, self._store, self._pins, self._stored, self.pools)
        answers = Answers(self._sender, self.decider, self._stored)
        self.pipeline = Pipeline(
            policy, self.pools, arrivals, self.decider, self._sender, answers, self._recorder, self._tracing,
            self._shadowing, self._stored.session_of, lambda: time.localtime().tm_hour,
        )  # fmt: skip
        self._recall = Recall(self.pools, arrivals, self._sender, answers, self._stored, self._recorder, self._tracing)

    async def replace_policy(self, raw: bytes | None = None) -> list[str]:
        """See `Reloader.replace`."""
        return await self._reloader.replace(raw)

    # ---- what other gateways are told ----

    def _tell_pin(self, route: str, key: str, pin: Pin) -> None:
        if self._store.shared:
            self._store.remember(key, PIN + route, pin.as_text())

    def _tell_place(self, pool: str, key: str, label: str) -> None:
        self._store.remember(key, PLACE + pool, label)

    def _tell_health(self, replica: Replica, why: str) -> None:
        if self._fleet is not None:
            self._fleet.tell_health(replica, why)

    def _tell_policy(self, raw: bytes | None) -> None:
        if self._fleet is not None:
            self._fleet.tell_policy(raw)

    async def _ask_own_pool(self, pool: str, body: bytes) -> tuple[int, bytes]:
        return await self._sender.ask(pool, body)

    # ---- life ----

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: FastAPI) -> AsyncIterator[dict[str, Any]]:
        """Owns every background task; when one fails for good, the log says so and the others go on."""
        async with httpx.AsyncClient(trust_env=False, limits=httpx.Limits(max_connections=None)) as client:
            self._engines.may_probe(client)
            tasks = [
                start(self._begin(), "first probes"),
                start(repeat(ENGINE_SWEEP_S, self._engines.sweep), "engine limits"),
                start(repeat(CLIENT_SWEEP_S, self._sweep_clients), "client limits"),
                start(self.discovery.watch(), "sources of replicas"),
            ]
            if self._redis is not None and self._fleet is not None:
                tasks += [start(self._redis.run(), "Redis"), start(self._fleet.listen(), "other gateways")]
            if self._colleagues is not None:
                tasks.append(start(self._colleagues.listen(), "other workers"))
            if self._worker_files is not None:
                tasks.append(start(self._write_metrics(self._worker_files), "metrics"))
            if self._source is not None:
                tasks.append(start(self._reloader.watch(self._source), "policy file"))
                with contextlib.suppress(
                    NotImplementedError, ValueError, RuntimeError
                ):  # no such signal, or not the main thread
                    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reloader.look_now)
            if self._decision_log is not None:
                tasks.append(start(_flush(self._decision_log), "decision log"))
            try:
                yield {"door": self.door}
            finally:
                await self._engines.stop()
                if self._redis is not None:
                    await self._redis.flush()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await self._shadowing.stop()
                self._engines.close()
                await self._classifiers.stop()
                if self._decision_log is not None:
                    await asyncio.to_thread(self._decision_log.close)
                if self._worker_files is not None:
                    await asyncio.to_thread(self._worker_files.write, list(self._metrics.collect()))
                    self._worker_files.close()
                await asyncio.to_thread(self._tracing.shut_down)

    async def _begin(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_PROBE_LIMIT_S):
                await self.discovery.look()
                await self._engines.probe_once()
                if self._redis is not None:
                    await self._redis.link.tried.wait()
        self._started = True
        self._classifiers.warm_up()
        down = [f"{r.pool}/{r.label}" for p in self.pools.values() for r in p.replicas if not r.healthy]
        if down:
            log.warning("serving, but these replicas can't be used now: %s", ", ".join(down))
        self._engines.begin_watching()

    def _sweep_clients(self) -> None:
        self.door.sweep(asyncio.get_running_loop().time())

    # ---- what the control plane shows (api.control.Gateway) ----

    def readiness(self) -> tuple[bool, dict[str, Any]]:
        """See `api.control.Gateway`."""
        pools = {p.name: {**describe_readiness(p), **self.discovery.problem_of(p.name)} for p in self.pools.values()}
        reason = ""
        if self.door.draining:
            reason = "draining"
        elif not self._started:
            reason = "starting: engines are being asked for the first time"
        elif not any(r.healthy for p in self.pools.values() for r in p.replicas):
            reason = "no engine of any pool can be reached"
        ready = not reason
        problem = {"policy_problem": self._reloader.problem} if self._reloader.problem else {}
        if self._redis is not None:
            if self._place is not None:
                problem["worker"] = f"{self._place.number} of {self._place.count}"
            problem["state"] = "shared" if self._redis.link.up else "Redis can't be reached: this process goes on alone"
        return ready, {"ready": ready, **problem, **({"reason": reason} if reason else {}), "pools": pools}

    async def describe_pools(self) -> dict[str, Any]:
        """See `api.control.Gateway`."""
        if self._colleagues is None:
            return {"pools": self._describe_pools()}
        others = await self._colleagues.ask("pools")
        workers = {"count": self._colleagues.count, "answered": 1 + len(others)}
        return {"pools": add_up([self._describe_pools(), *others]), "workers": workers}

    def _describe_pools(self) -> list[dict[str, Any]]:
        now_s = asyncio.get_running_loop().time()
        return [{**describe_pool(pool, now_s), **self.discovery.problem_of(pool.name)} for pool in self.pools.values()]

    async def act_on_replica(self, pool_name: str, label: str, action: str, force: bool) -> dict[str, Any]:
        """See `api.control.Gateway`."""
        pool, replica = find_replica(self.pools, pool_name, label)
        changed = act(pool, replica, action, asyncio.get_running_loop().time(), force)
        if self._fleet is not None:
            self._fleet.tell_action(pool.name, label, action)
        if self._colleagues is not None:  # now, and not when they read it: who drains a node wants to take it away
            await self._colleagues.ask("act", pool.name, label, action)
        found = (await self.describe_pools())["pools"]
        shown = [r for p in found if p["pool"] == pool.name for r in p["replicas"] if r["url"] == replica.url]
        if not shown:  # another policy has come meanwhile
            shown = [describe_replica(replica, asyncio.get_running_loop().time())]
        return {"changed": changed, "pool": pool.name, **shown[0]}

    def models(self) -> Mapping[str, dict[str, Any]]:
        """See `api.control.Gateway`."""
        return self._catalogue.cards()

    def model(self, name: str) -> dict[str, Any] | None:
        """See `api.control.Gateway`."""
        return self._catalogue.card(name)

    async def explain(
        self, body: bytes, endpoint: Endpoint, headers: Mapping[str, str], key_name: str, address: str
    ) -> dict[str, Any]:
        """See `api.control.Gateway`."""
        view = RequestView(endpoint.protocol, Body(body), headers, key_name, address, endpoint.counting)
        return await self.pipeline.explain(view, self.door.next_id())

    async def metrics(self) -> bytes:
        """See `api.control.Gateway`."""
        if self._worker_files is None:
            return self._metrics.text()
        return await asyncio.to_thread(self._worker_files.text, list(self._metrics.collect()))

    async def _write_metrics(self, files: WorkerFiles) -> None:
        while True:
            await asyncio.to_thread(files.write, list(self._metrics.collect()))
            await asyncio.sleep(WRITE_S)

    async def latest_decisions(self, limit: int, case: str = "") -> list[dict[str, Any]]:
        """See `api.control.Gateway`."""
        found = self._latest_decisions(limit, case)
        if self._colleagues is not None:
            found += [line for lines in await self._colleagues.ask("decisions", limit, case) for line in lines]
            found.sort(key=lambda line: str(line["time"]), reverse=True)
        return found[:limit]

    def _latest_decisions(self, limit: int, case: str) -> list[dict[str, Any]]:
        newest = (record for record in reversed(self._recorder.latest) if not case or record.case == case)
        return [record.as_line() for record in islice(newest, limit)]

    def shadows(self) -> list[dict[str, Any]]:
        """See `api.control.Gateway`."""
        return [
            {"route": route, "small": small, "big": big, **found.as_json()}
            for (route, small, big), found in self._shadowing.found.items()
        ]

    async def fingerprints(self) -> dict[str, dict[str, str]]:
        """See `api.control.Gateway`."""
        policy, scorers = self.policy, self._classifiers.scorers  # heads as they are asked, whatever their files hold by now
        return {
            name: fingerprint(policy, route, lambda path: scorers[path].digest).model_dump()
            for name, route in policy.routes.items()
        }

    def _read_gauges(self) -> Figures:
        yield from read_pools(self.pools.values(), self.discovery)
        yield "switchyard_sessions", (), len(self._pins)
        if self._redis is not None:
            yield "switchyard_state_up", (), float(self._redis.link.up)
        for route, (share, _) in self._steering.items():
            if share is not None:
                yield "switchyard_share", (route, share.settings.pool), share.share

    def _has_replica(self, pool_name: str, label: str) -> bool:
        pool = self.pools.get(pool_name)
        return pool is not None and any(r.label == label for r in (*pool.replicas, *pool.leaving))

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
