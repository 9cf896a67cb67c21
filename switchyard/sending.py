"""The sending half of the request path: a place on a replica, the bytes for it, and the head of its answer.

Tries go on to other replicas while no engine can have begun, and once when one has died with the request before there was
anything of an answer (docs/decisions/0012). What comes back is the pipeline's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from switchyard.errors import BrokenStream, GatewayError, Unreachable, UpstreamTimeout
from switchyard.patching import patch
from switchyard.pools.pool import Pool
from switchyard.pools.replica import Lease, Replica
from switchyard.routing.decision import Decision
from switchyard.routing.request import Body, RequestView
from switchyard.routing.signals import Signals
from switchyard.routing.urgency import is_background
from switchyard.telemetry.record import Record
from switchyard.telemetry.tracing import Trace
from switchyard.upstream.connection import Headers, Response, StaleConnection
from switchyard.upstream.headers import to_engine
from switchyard.upstream.opening import FAULTS, fails_early
from switchyard.upstream.pool import ConnectFailed, ConnectionPool
from switchyard.upstream.retry import BUSY, RetryBudget, retry_after_s

ANSWER_TOKENS_GUESS = 256  # load of an answer when the client sets no limit
COPIED_BYTES = 16 * 1024  # shorter bodies are sent in one piece with their head
JUDGE_ANSWER_BYTES = 256 * 1024
PROBE_LIMIT_S = 5.0  # a dead engine's health path says so at once; an engine that is busy need not say that it lives
DEAD = frozenset({"down", "loading"})  # nothing that was sent before runs on it any more
log = logging.getLogger("switchyard.sending")


class Outgoing(msgspec.Struct, frozen=True):
    """What is sent, whichever replica gets it.

    Attributes:
        method: HTTP method.
        target: path and query at the engine.
        headers: the client's.
        view: the request as routing read it.
        signals: its facts.
        affinity: key of its conversation.
        record: told of every attempt.
        trace: its trace.
    """

    method: bytes
    target: bytes
    headers: Headers
    view: RequestView
    signals: Signals
    affinity: str
    record: Record
    trace: Trace


class EngineDied(Exception):
    """A request failed before there was anything of its answer, and its replica is dead: nothing runs on it any more."""

    def __init__(self, error: GatewayError) -> None:
        super().__init__(error.message)
        self.error = error


class Sender:
    """Sends requests to replicas.

    Args:
        pools: by name.
        connections_to: those of a replica, whichever policy it is of.
        pool_keys: the key that each pool's engines want.
        budget: for tries that cost an engine something.
        probe: asks a replica's health path now, and marks the replica.
    """

    def __init__(
        self,
        pools: Mapping[str, Pool],
        connections_to: Callable[[Pool, Replica], ConnectionPool],
        pool_keys: Mapping[str, str],
        budget: RetryBudget,
        probe: Callable[[Pool, Replica], Awaitable[None]],
    ) -> None:
        self._pools = pools
        self._connections_to = connections_to
        self._pool_keys = pool_keys
        self._budget = budget
        self._probe = probe

    async def send(self, outgoing: Outgoing, decision: Decision) -> tuple[Lease, Response]:
        """Get a place and the head of an answer, going on to other replicas while no connection comes up.

        The caller releases the place and abandons the response.

        Raises:
            GatewayError: no place, no connection or no answer.
        """
        loop = asyncio.get_running_loop()
        self._budget.note_request(loop.time())
        signals, record = outgoing.signals, outgoing.record
        tokens = signals.prompt_tokens + (signals.max_output_tokens or ANSWER_TOKENS_GUESS)
        failure: GatewayError | None = None
        out_of_reach: list[str] = []
        order = (decision.pool, *decision.fallbacks)
        for name in order:
            pool = self._pools[name]
            body, record.changed = patch(outgoing.view, signals, pool)
            tried: list[str] = []
            last = ""
            while (lease := await self._admit(pool, outgoing, tokens, tried, decision.only_replica)) is not None:
                record.pool, record.replica, record.affinity = name, lease.replica.label, lease.affinity
                record.admitted_s = record.admitted_s or time.monotonic()
                record.attempts.append((name, lease.replica.label))
                tried.append(lease.replica.label)
                may_move = partial(self._may_move, order, name, tried, decision, record)
                try:
                    record.sent_s, record.first_byte_s = time.monotonic(), 0.0
                    record.first_sent_s = record.first_sent_s or record.sent_s
                    response = await self._try(outgoing, pool, lease, body, may_move)
                except ConnectFailed as failed:
                    failure, last = failed.error, failed.error.message
                    if lease.replica.mark("down", failure.message):
                        log.warning("pool %s: replica %s is down: %s", name, lease.replica.full_name, failure.message)
                    lease.release()  # after that: who is next in the queue need not find out, too
                except EngineDied as died:
                    failure, last = died.error, died.error.message
                    record.died.append((name, lease.replica.label))
                    pool.note_bad(lease.replica, failure.message, loop.time(), lease.began_s)
                    lease.release()
                except (UpstreamTimeout, Unreachable) as failed_engine:
                    pool.note_bad(lease.replica, failed_engine.message, loop.time(), lease.began_s)
                    lease.release()
                    raise
                except BaseException:
                    lease.release()
                    raise
                else:
                    if response.status in FAULTS and not outgoing.view.counting:
                        pool.note_bad(lease.replica, f"status {response.status}", loop.time(), lease.began_s)
                    if response.status in BUSY:
                        pool.note_busy(lease.replica, retry_after_s(response.headers), loop.time())
                    if not self._worth_retrying(response, pool, tried, decision):
                        return lease, response
                    response.abandon()
                    lease.release()
            out_of_reach.append(_why_none(pool, last, decision.only_replica))
        what = "; ".join(out_of_reach)
        if decision.only_replica is not None:
            what = f"the response that this one follows is stored on a replica that can't be reached: {what}"
        raise (type(failure) if failure is not None else Unreachable)(what, retry_after_s=2)

    @staticmethod
    def _admit(
        pool: Pool, outgoing: Outgoing, tokens: int, tried: Sequence[str], only: str | None
    ) -> Coroutine[Any, Any, Lease | None]:
        return pool.admit(
            outgoing.affinity, tokens, tried, only, outgoing.signals.prompt_tokens,
            api_key=outgoing.view.key_name, background=is_background(outgoing.signals),
        )  # fmt: skip

    async def _try(self, outgoing: Outgoing, pool: Pool, lease: Lease, body: bytes, may_move: Callable[[], bool]) -> Response:
        """One try on a place: the head of an answer; of a stream that could go elsewhere yet, also its first event.

        Raises:
            ConnectFailed: no connection came up.
            EngineDied: the request is to go elsewhere.
            GatewayError: no answer came.
        """
        try:
            response = await self.attempt(outgoing, pool, lease.replica, body)
        except Unreachable as failure:
            if may_move() and await self._is_dead(pool, lease.replica):
                raise EngineDied(failure) from None
            raise
        outgoing.record.first_byte_s = response.head_s
        lease.has_begun = response.has_begun
        if (outgoing.view.stream or response.status in FAULTS) and may_move():
            try:
                failed = await fails_early(response)
                broke_off = isinstance(failed, BrokenStream)
                if broke_off:  # nobody has seen its head: the client gets an error's status
                    failed = Unreachable(f"{lease.replica.full_name} broke off before it answered")
                if failed is not None and await self._is_dead(pool, lease.replica):
                    raise EngineDied(failed)
                if failed is not None and broke_off:
                    raise failed
            except BaseException:
                response.abandon()
                raise
        return response

    def _may_move(self, order: Sequence[str], name: str, tried: Sequence[str], decision: Decision, record: Record) -> bool:
        """Whether the request may go elsewhere should its engine die: once at most, for it may be what engines die of."""
        if record.died or decision.only_replica is not None:
            return False
        later = order[order.index(name) + 1 :]
        return self._pools[name].has_healthy(tried) or any(self._pools[n].has_healthy(()) for n in later)

    async def _is_dead(self, pool: Pool, replica: Replica) -> bool:
        """After a failure: whether its health path says that it was the end of the engine, and the budget has a try left."""
        if replica.probed not in DEAD:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PROBE_LIMIT_S):
                    await self._probe(pool, replica)
        return replica.probed in DEAD and self._budget.take(asyncio.get_running_loop().time())

    def _worth_retrying(self, response: Response, pool: Pool, tried: Sequence[str], decision: Decision) -> bool:
        """An engine that refuses before it begins is worth another replica's try, within the budget."""
        return (
            response.status in BUSY
            and decision.only_replica is None
            and pool.has_free(tried)
            and self._budget.take(asyncio.get_running_loop().time())
        )

    def attempt(self, outgoing: Outgoing, pool: Pool, replica: Replica, body: bytes) -> Coroutine[Any, Any, Response]:
        """One try: send, and wait for the head; a kept connection that died unseen is replaced once.

        Raises:
            ConnectFailed: no connection came up.
            GatewayError: no answer came.
        """
        connections = self._connections_to(pool, replica)
        return _ask(connections, lambda: self._request(outgoing, pool, connections, body))

    def _request(self, outgoing: Outgoing, pool: Pool, connections: ConnectionPool, body: bytes) -> bytes | list[bytes]:
        """Head and body as they go over the wire. vLLM puts the request id into its answer's id: each try has its own."""
        outgoing.record.tries += 1
        request_id = f"{outgoing.record.id}-{outgoing.record.tries}"
        head = to_engine(
            outgoing.method,
            outgoing.target,
            outgoing.headers,
            host=connections.host_header,
            length=len(body) if body or outgoing.method == b"POST" else None,
            key=self._pool_keys.get(pool.name),
            extra=(b"x-request-id: " + request_id.encode("ascii"), *outgoing.trace.lines()),
        )
        return head + body if len(body) < COPIED_BYTES else [head, body]

    async def ask(self, name: str, body: bytes) -> tuple[int, bytes]:
        """A chat question of the gateway's own, for the judge; the body's `model` is set here. Gives status and answer.

        Raises:
            GatewayError: no place or no answer.
        """
        pool = self._pools.get(name)
        if pool is None:  # a question under an older policy
            raise Unreachable(f"pool {name} is no longer there")
        patched = Body(body).patched({"model": msgspec.json.encode(pool.settings.model)})
        lease = await pool.admit("judge", len(body) // 4)
        if lease is None:
            raise Unreachable(f"pool {name} has no replica")
        response: Response | None = None
        try:
            connections = self._connections_to(pool, lease.replica)
            head = to_engine(
                b"POST",
                b"/v1/chat/completions",
                [(b"content-type", b"application/json")],
                host=connections.host_header,
                length=len(patched),
                key=self._pool_keys.get(name),
            )
            response = await _ask(connections, lambda: head + patched)
            return response.status, await response.read(JUDGE_ANSWER_BYTES)
        except ConnectFailed as failed:
            raise failed.error from None
        finally:
            if response is not None:
                response.abandon()
            lease.release()


def _why_none(pool: Pool, last: str, only: str | None) -> str:
    """Why no replica of a pool, or not the only one that could serve it, has taken a request.

    Args:
        pool: the pool.
        last: what the last try came to; empty when there was none.
        only: label of that one replica.
    """
    count = len(pool.replicas)
    if last:
        many = count > 1 and only is None
        return f"pool {pool.name}: {f'none of its {count} replicas can be reached; last: ' if many else ''}{last}"
    return f"pool {pool.name} {'is drained' if any(r.draining for r in pool.replicas) else 'has no replica any more'}"


async def _ask(connections: ConnectionPool, make_request: Callable[[], bytes | list[bytes]]) -> Response:
    response = await connections.send(make_request())
    try:
        await response.head()
    except StaleConnection:
        try:
            response = await connections.send(make_request(), fresh=True)
        except ConnectFailed:  # it went with this request, perhaps because of it
            raise Unreachable(f"{connections.label} closed the connection without an answer, and takes no other") from None
        try:
            await response.head()
        except StaleConnection:
            raise Unreachable(f"{connections.label} closed two connections without an answer") from None
        except BaseException:
            response.abandon()
            raise
    except BaseException:
        response.abandon()
        raise
    return response
