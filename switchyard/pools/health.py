"""Active probes: is each engine there, what does it serve, does it move, does it work? Off the request path, with httpx.

An engine that is slow to answer a probe is busy, not dead: only a refused or broken connection, an answer that says so,
figures that stand still while it has work, or silence beyond all patience change its state. A good probe is no proof
either: an ejected replica comes back only after a real completion, and an idle one is asked for a token now and then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any

import httpx

from switchyard.pools.load import read_load
from switchyard.pools.pool import Pool
from switchyard.pools.proof import Outcome, proof_request, read_proof
from switchyard.pools.replica import Probed, Replica
from switchyard.pools.serves import read_context, read_protocols

CONNECT_LIMIT_S = 10.0
ASK_LIMIT_S = 10.0  # for a list or figures; a health path may take `stall_s`
PROOF_LIMIT_S = 10.0  # for one token
LOAD_EVERY_S = 1.0
NO_FIGURES_EVERY_S = 30.0  # an engine without figures may have been restarted with them
FOREIGN_PATIENCE_S = 60.0  # a silent engine that had work from elsewhere may be in a prefill that nobody told us of
ASK_AGAIN_EVERY = 30  # probes after which an engine's model list is read again: it may have been restarted with another

log = logging.getLogger("switchyard.health")


class Prober:
    """Watches replicas.

    Args:
        keys: the pools' keys; probes carry them as traffic does.
        random: for jitter.
        client: an HTTP client of its own, so that probes never wait for traffic.
        heard: when bytes of an answer to traffic last came from a replica, by the loop's clock; 0 before.
    """

    def __init__(
        self, keys: Mapping[str, str], random: Random, client: httpx.AsyncClient, heard: Callable[[Replica], float]
    ) -> None:
        self.keys = keys
        self._random = random
        self._client = client
        self._heard = heard

    async def probe_once(self, pools: Iterable[Pool]) -> None:
        """One probe of every replica, side by side."""
        await asyncio.gather(*(self.probe(pool, replica, first=True) for pool in pools for replica in pool.replicas))

    async def watch(self, pool: Pool, replica: Replica) -> None:
        """Probe one replica for ever, its health and its load each in their own rhythm."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_health(pool, replica))
            tasks.create_task(self._watch_load(pool, replica))

    async def _watch_health(self, pool: Pool, replica: Replica) -> None:
        count = 0
        while True:
            await self._pause(pool.settings.health.every_s)
            count += 1
            await self.probe(pool, replica, first=replica.context_tokens is None or count % ASK_AGAIN_EVERY == 0)
            if replica.probed == "ready" and not replica.draining:
                await self._ask_for_token(pool, replica)

    async def _watch_load(self, pool: Pool, replica: Replica) -> None:
        while True:
            has_figures = await self.read_figures(pool, replica)
            every_s = min(LOAD_EVERY_S, pool.settings.health.every_s)
            await self._pause(every_s if has_figures else max(every_s, min(NO_FIGURES_EVERY_S, 10 * every_s)))

    async def _pause(self, every_s: float) -> None:
        await asyncio.sleep(every_s * self._random.uniform(0.8, 1.2))

    # ---- the health path ----

    async def probe(self, pool: Pool, replica: Replica, first: bool) -> None:
        """Ask the health path; on the first good answer (and now and then) also what the engine serves."""
        path = pool.settings.health.path
        try:
            answer = await self._get(pool, replica, path, pool.settings.health.stall_s)
        except httpx.TimeoutException as error:
            if isinstance(error, httpx.ConnectTimeout):
                self._note(pool, replica, "down", "no connection in time")
            else:
                self._look_for_silence(pool, replica)
            return
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            self._note(pool, replica, "down", _reason(error))
            return
        if answer.is_success:
            if first or replica.probed != "ready":
                await self._read_model(pool, replica)
            self._note(pool, replica, "ready")
        elif answer.status_code == 503:
            self._note(pool, replica, "loading", "the engine says 503")
        else:
            self._note(pool, replica, "down", f"{path} answers {answer.status_code}")

    def _look_for_silence(self, pool: Pool, replica: Replica) -> None:
        """An engine from which nothing at all has come, neither to probes nor to traffic, for longer than it may take."""
        now_s = _now_s()
        heard_s = max(replica.heard_s, self._heard(replica))
        if not heard_s:
            replica.heard_s = now_s  # its time begins to run
            return
        patience_s = replica.evidence.patience_s(pool.settings.health.stall_s, replica.prefill_tokens)
        patience_s += FOREIGN_PATIENCE_S if replica.foreign else 0.0
        if now_s - heard_s > patience_s:
            pool.eject(replica, f"nothing has come from it for {now_s - heard_s:.0f} s", now_s)

    def _note(self, pool: Pool, replica: Replica, probed: Probed, problem: str = "") -> None:
        was, before = replica.probed, (replica.state, replica.problem)
        changed = replica.mark(probed, problem)
        if probed == "ready" and was in {"down", "loading"} and not replica.ejected:
            pool.readmit(replica, _now_s())  # another process, most likely, with an empty cache: slowly
        if probed == "ready" and not replica.evidence.worked_s:
            replica.evidence.worked_s = _now_s()
        if changed or (replica.draining and (replica.state, replica.problem) != before):
            level = logging.INFO if replica.healthy else logging.WARNING
            why = f": {replica.problem}" if replica.problem else ""
            log.log(level, "pool %s: replica %s is %s%s", pool.name, replica.full_name, replica.state, why)
        if replica.healthy or changed:
            pool.wake()

    # ---- figures ----

    async def read_figures(self, pool: Pool, replica: Replica) -> bool:
        """Read the engine's own metrics: load from elsewhere, and whether it moves. False when it has none."""
        ours = replica.in_flight
        try:
            metrics = await self._get(pool, replica, "/metrics", ASK_LIMIT_S)
        except httpx.HTTPError:
            return True  # what was read before still holds: what is silent is busy, and what is gone gets nothing
        load = read_load(metrics.text) if metrics.is_success else None
        replica.engine_load = load
        # Ours may have come or gone while the answer was made: what can be ours is not counted twice.
        asked = load.running + load.waiting if load is not None else 0.0
        replica.foreign = max(0.0, asked - max(ours, replica.in_flight))
        replica.foreign_tokens = replica.foreign * pool.typical_tokens
        if load is None:
            return False
        self._look_for_stall(pool, replica, asked, load.progress)
        return True

    def _look_for_stall(self, pool: Pool, replica: Replica, asked: float, progress: tuple[float, ...]) -> None:
        """An engine that has work while nothing moves hangs, whatever its health path says."""
        now_s, stall_s = _now_s(), pool.settings.health.stall_s
        replica.shows_work = replica.shows_work or asked > 0
        waiting = sum(not lease.has_begun() for lease in replica.leases) if replica.shows_work else 0
        if not asked:  # it denies that it has work; then bytes for our requests are progress, too
            progress = (*progress, self._heard(replica))
        still_s = replica.evidence.still_s(asked > 0 or waiting > 0, progress, now_s)
        if still_s > replica.evidence.patience_s(stall_s, replica.prefill_tokens):
            what = f"{asked:.0f} requests are running" if asked else f"{waiting} requests wait for an answer"
            pool.eject(replica, f"{what} and nothing has moved for {still_s:.0f} s", now_s)

    # ---- one token ----

    async def _ask_for_token(self, pool: Pool, replica: Replica) -> None:
        """A real completion: from an ejected replica when its time has come, from one that is suspicious, or long idle."""
        evidence, every_s = replica.evidence, pool.settings.health.token_every_s
        if replica.ejected:
            if _now_s() >= evidence.back_at_s:
                await self._try_again(pool, replica)
            return
        due = evidence.suspicious or (_is_idle(replica) and _now_s() - evidence.worked_s > every_s)
        if not every_s or not due:
            return
        outcome, why = await self._prove(pool, replica)
        if outcome == "works":
            pool.note_good(replica, _now_s())
        elif outcome == "fails" or _is_idle(replica):
            pool.note_bad(replica, f"one token: {why}", _now_s())

    async def _try_again(self, pool: Pool, replica: Replica) -> None:
        outcome, why = await self._prove(pool, replica)
        if not replica.ejected:  # by hand, meanwhile
            return
        if outcome == "works":
            pool.readmit(replica, _now_s())
            log.info("pool %s: replica %s works again and is %s", pool.name, replica.full_name, replica.state)
            pool.wake()
            return
        wait_s = replica.evidence.extend(_now_s())
        log.warning(
            "pool %s: replica %s doesn't work yet (%s); tried again in %.0f s", pool.name, replica.full_name, why, wait_s
        )

    async def _prove(self, pool: Pool, replica: Replica) -> tuple[Outcome, str]:
        request = proof_request(replica.protocols or pool.protocols, pool.settings.model)
        if request is None:
            return "works", ""
        path, body = request
        try:
            answer = await self._client.post(replica.url + path, json=body, headers=self._headers(pool), timeout=PROOF_LIMIT_S)
        except httpx.TimeoutException:
            return "unclear", f"no answer within {PROOF_LIMIT_S:g} s"
        except httpx.HTTPError as error:
            return "fails", _reason(error)
        return read_proof(answer.status_code), f"status {answer.status_code}"

    # ---- what it serves ----

    async def _read_model(self, pool: Pool, replica: Replica) -> None:
        """Context and protocols, as far as the engine tells."""
        try:
            models = await self._get(pool, replica, "/v1/models", ASK_LIMIT_S)
            replica.context_tokens = read_context(_json(models), pool.settings.model) or replica.context_tokens
            if pool.settings.speaks == "auto" and replica.protocols is None:
                replica.protocols = read_protocols(_json(await self._get(pool, replica, "/openapi.json", ASK_LIMIT_S)))
        except httpx.HTTPError:
            return  # it answered the health path a moment ago; the next probe asks again
        finally:
            pool.learn()

    async def _get(self, pool: Pool, replica: Replica, path: str, limit_s: float) -> httpx.Response:
        timeout = httpx.Timeout(limit_s, connect=CONNECT_LIMIT_S)
        answer = await self._client.get(replica.url + path, headers=self._headers(pool), timeout=timeout)
        replica.heard_s = _now_s()
        return answer

    def _headers(self, pool: Pool) -> dict[str, str]:
        key = self.keys.get(pool.name)
        return {"authorization": f"Bearer {key}"} if key else {}


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _reason(error: Exception) -> str:
    """What the system says about a failed connection, where an HTTP client wraps that in words of its own."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, OSError) and inner.strerror:
            return inner.strerror
        inner = inner.__cause__ or inner.__context__
    return str(error) or type(error).__name__


def _is_idle(replica: Replica) -> bool:
    """Whether it has nothing to do, as far as anybody knows."""
    load = replica.engine_load
    return not replica.in_flight and (load is None or load.running + load.waiting == 0)


def _json(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        return None
