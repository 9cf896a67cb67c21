"""Active probes: is each engine there, what does it hold and speak, does it move? Off the request path, with httpx.

An engine that is slow to answer a probe is busy, not dead: only a refused or broken connection, an answer that says so,
or counters that stand still while requests run, change its state. A good probe is no proof either: a replica that real
traffic has ejected comes back only after a real completion.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from random import Random
from typing import Any

import httpx

from switchyard.pools.load import read_load
from switchyard.pools.pool import NATIVE, Pool
from switchyard.pools.replica import Probed, Replica

PROBE_TIMEOUT_S = 10.0
TOKEN_PROBE_LIMIT_S = 10.0
ASK_AGAIN_EVERY = 30  # probes after which an engine's model list is read again: it may have been restarted with another

_PATHS = {
    "/v1/chat/completions": "chat", "/v1/completions": "completions", "/v1/responses": "responses", "/v1/messages": "messages",
    "/v1/embeddings": "embeddings", "/v1/rerank": "rerank", "/v1/score": "score", "/tokenize": "tokenize",
}  # fmt: skip

log = logging.getLogger("switchyard.health")


class Prober:
    """Watches replicas.

    Args:
        keys: the pools' keys; probes carry them as traffic does.
        random: for jitter.
        client: an HTTP client of its own, so that probes never wait for traffic.
    """

    def __init__(self, keys: Mapping[str, str], random: Random, client: httpx.AsyncClient) -> None:
        self.keys = keys
        self._random = random
        self._client = client

    async def probe_once(self, pools: Iterable[Pool]) -> None:
        """One probe of every replica, side by side."""
        await asyncio.gather(*(self.probe(pool, replica, first=True) for pool in pools for replica in pool.replicas))

    async def watch(self, pool: Pool, replica: Replica) -> None:
        """Probe one replica for ever, in its own rhythm."""
        count = 0
        while True:
            await asyncio.sleep(pool.settings.health.every_s * self._random.uniform(0.8, 1.2))
            count += 1
            await self.probe(pool, replica, first=replica.context_tokens is None or count % ASK_AGAIN_EVERY == 0)

    async def probe(self, pool: Pool, replica: Replica, first: bool) -> None:
        """Ask the health path; on the first good answer (and now and then) also what the engine serves.

        A replica that traffic has ejected is not readmitted by this, only by a real completion.
        """
        try:
            answer = await self._get(pool, replica, pool.settings.health.path)
        except httpx.TimeoutException as error:
            if isinstance(error, httpx.ConnectTimeout):
                self._note(pool, replica, "down", "no connection in time")
            return
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            self._note(pool, replica, "down", str(error) or type(error).__name__)
            return
        if answer.is_success:
            if replica.ejected:
                replica.mark("ready")
                await self._try_again(pool, replica)
                return
            if first or replica.probed != "ready":
                await self._read_model(pool, replica)
            self._note(pool, replica, "ready")
            await self._look_for_stall(pool, replica)
        elif answer.status_code == 503:
            self._note(pool, replica, "loading", "the engine says 503")
        else:
            self._note(pool, replica, "down", f"{pool.settings.health.path} answers {answer.status_code}")

    async def _look_for_stall(self, pool: Pool, replica: Replica) -> None:
        """An engine that works on requests while nothing moves hangs, whatever its health path says."""
        try:
            metrics = await self._get(pool, replica, "/metrics")
        except httpx.HTTPError:
            return
        load = read_load(metrics.text) if metrics.is_success else None
        replica.engine_load = load
        if load is None:
            return
        now_s = asyncio.get_running_loop().time()
        stall_s = pool.settings.health.stall_s
        if replica.evidence.stalled(load.running, load.progress, replica.tokens, stall_s, now_s):
            pool.eject(replica, f"{load.running:.0f} requests are running and nothing has moved for {stall_s:g} s", now_s)

    async def _try_again(self, pool: Pool, replica: Replica) -> None:
        """One token from an ejected replica, when its time has come: the proof that it works."""
        loop = asyncio.get_running_loop()
        if loop.time() < replica.evidence.back_at_s:
            return
        body = {"model": pool.settings.model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
        if "chat" not in (replica.protocols or NATIVE):
            body = {"model": pool.settings.model, "prompt": "Hi", "max_tokens": 1}
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        try:
            limit_s = max(TOKEN_PROBE_LIMIT_S, pool.settings.health.stall_s)
            answer = await self._client.post(replica.url + path, json=body, headers=self._headers(pool), timeout=limit_s)
            worked = answer.status_code < 500
        except httpx.HTTPError:
            worked = False
        if not replica.ejected:
            return
        if worked:
            pool.readmit(replica, loop.time())
            log.info("pool %s: replica %s works again and is %s", pool.name, replica.full_name, replica.state)
            pool.wake()
        else:
            wait_s = replica.evidence.extend(loop.time())
            log.warning("pool %s: replica %s still doesn't answer; tried again in %.0f s", pool.name, replica.full_name, wait_s)

    def _note(self, pool: Pool, replica: Replica, state: Probed, problem: str = "") -> None:
        if replica.mark(state, problem):
            level = logging.INFO if replica.healthy else logging.WARNING
            why = f": {replica.problem}" if replica.problem else ""
            log.log(level, "pool %s: replica %s is %s%s", pool.name, replica.full_name, replica.state, why)
        if replica.healthy:
            pool.wake()

    async def _read_model(self, pool: Pool, replica: Replica) -> None:
        """Context and protocols, as far as the engine tells."""
        try:
            models = await self._get(pool, replica, "/v1/models")
            replica.context_tokens = read_context(_json(models), pool.settings.model) or replica.context_tokens
            if pool.settings.speaks == "auto" and replica.protocols is None:
                replica.protocols = read_protocols(_json(await self._get(pool, replica, "/openapi.json")))
        except httpx.HTTPError:
            return  # it answered the health path a moment ago; the next probe asks again
        finally:
            pool.learn()

    async def _get(self, pool: Pool, replica: Replica, path: str) -> httpx.Response:
        return await self._client.get(replica.url + path, headers=self._headers(pool), timeout=PROBE_TIMEOUT_S)

    def _headers(self, pool: Pool) -> dict[str, str]:
        key = self.keys.get(pool.name)
        return {"authorization": f"Bearer {key}"} if key else {}


def read_context(models: Any, model: str) -> int | None:
    """Tokens that a request may take, from an engine's /v1/models: vLLM's `max_model_len`, llama.cpp's `meta.n_ctx`."""
    cards = models.get("data") if isinstance(models, dict) else None
    cards = [c for c in cards if isinstance(c, dict)] if isinstance(cards, list) else []
    for card in sorted(cards, key=lambda c: c.get("id") != model):
        meta = card.get("meta")
        for found in (card.get("max_model_len"), meta.get("n_ctx") if isinstance(meta, dict) else None):
            if isinstance(found, int) and found > 0:
                return found
    return None


def read_protocols(openapi: Any) -> frozenset[str]:
    """What an engine's OpenAPI document offers; an engine without one is taken to speak everything."""
    paths = openapi.get("paths") if isinstance(openapi, dict) else None
    found = frozenset(_PATHS[p] for p in paths if p in _PATHS) if isinstance(paths, dict) else frozenset()
    return found or NATIVE


def _json(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        return None
