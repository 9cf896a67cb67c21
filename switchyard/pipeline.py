"""The request path. Read `Pipeline.handle` from top to bottom and you know the product.

    identify -> signals -> pinned? -> classify -> decide -> admit -> choose replica -> send -> check -> relay -> record

One step is one call. What a step does inside is its own module's business; nothing is retried after the first byte of
an answer; a cancelled request releases its place and closes its engine connection on the way out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from switchyard.config.policy import Policy, Route
from switchyard.config.vocabulary import SIGNALS
from switchyard.errors import BrokenStream, Draining, GatewayError, InvalidRequest, UnknownModel, Unreachable
from switchyard.pools.pool import Pool
from switchyard.pools.replica import Lease, Replica
from switchyard.routing.classify.base import Classifier, ask_in_turn
from switchyard.routing.decision import Decision
from switchyard.routing.policy import (
    decide_by_facts,
    decide_by_score,
    find_candidates,
    hold,
    keep_session,
    nearest_capable,
)  # fmt: skip
from switchyard.routing.request import Body, RequestView
from switchyard.routing.rules import describe, matches
from switchyard.routing.session import Pin, Pins, Session, held_pool, identify
from switchyard.routing.signals import Signals
from switchyard.telemetry.record import Record, Recorder
from switchyard.telemetry.tracing import Trace, Tracing
from switchyard.upstream.connection import Headers, Response, StaleConnection
from switchyard.upstream.headers import to_client, to_engine
from switchyard.upstream.pool import ConnectFailed, ConnectionPool
from switchyard.upstream.relay import Client, Relay
from switchyard.upstream.retry import BUSY, RetryBudget
from switchyard.upstream.sse import AnswerReader

ERROR_BODY_BYTES = 256 * 1024  # of an engine's error answer: it is read before it is passed on
LONG_BODY_BYTES = 2 * 1024 * 1024
COPIED_BYTES = 16 * 1024  # shorter bodies are sent in one piece with their head
ANSWER_TOKENS_GUESS = 256  # load of an answer when the client sets no limit
log = logging.getLogger("switchyard.pipeline")


class Exchange(Client, Protocol):
    """One request of a client and the way back to it; `api/server.py` makes them."""

    method: bytes
    target: bytes
    headers: Headers
    body: bytes
    request_id: str
    client_request_id: str
    key_name: str
    client_left: bool
    received_s: float
    endpoint: Endpoint

    @property
    def address(self) -> str:
        """The client's address, without its port."""

    @property
    def answered(self) -> bool:
        """Whether the head of an answer has been sent."""

    def refuse(self, error: GatewayError, headers: Headers) -> None:
        """Answer with an error of the gateway's own, in the endpoint's shape."""

    def pass_error(self, status: int, headers: Headers, body: bytes) -> None:
        """Answer with an engine's error: untouched where it has the endpoint's shape, else wrapped in it."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One path of the data plane.

    Attributes:
        path: as clients ask for it; also the path at the engine.
        protocol: family of its body.
        counting: it only counts tokens; its failures say nothing about an engine.
        generates: it does model work, so its answer has usage.
    """

    path: str
    protocol: str
    counting: bool = False
    generates: bool = True


@dataclass(frozen=True, slots=True)
class Target:
    """What a model name means.

    Attributes:
        route_name: empty for a pool asked for by its name.
        route: how it is decided.
        pools: every pool it may use, from small to big.
    """

    route_name: str
    route: Route
    pools: tuple[str, ...]


class Stored(Protocol):
    """Where answers of the Responses endpoint are kept by the engines."""

    def place_of(self, response_id: str) -> tuple[str, str] | None:
        """Pool and replica that made it."""

    def remember(self, response_id: str, pool: str, replica: str) -> None:
        """It was made there."""


class Pipeline:
    """Everything a request passes through. Collaborators are made in `app.py`.

    Args:
        policy: the policy in force.
        targets: looks up a model name; exact, never interpreted.
        pools: by name.
        connections: of each replica, by (pool, label).
        pool_keys: the key that each pool's engines want.
        classifiers: of each route, in the order they are asked.
        pins: what was decided for sessions.
        stored: places of stored responses.
        recorder: takes the record of every request.
        tracing: begins a trace for every request.
        read_hour: hour of the day.
    """

    def __init__(
        self,
        policy: Policy,
        targets: Callable[[str], Target | None],
        pools: Mapping[str, Pool],
        connections: Mapping[tuple[str, str], ConnectionPool],
        pool_keys: Mapping[str, str],
        classifiers: Mapping[str, Sequence[Classifier]],
        pins: Pins,
        stored: Stored,
        recorder: Recorder,
        tracing: Tracing,
        read_hour: Callable[[], int],
    ) -> None:
        self._policy = policy
        self._find_target = targets
        self._pools = pools
        self._connections = connections
        self._pool_keys = pool_keys
        self._classifiers = classifiers
        self._pins = pins
        self._stored = stored
        self._recorder = recorder
        self._tracing = tracing
        self._read_hour = read_hour
        self._retry_budget = RetryBudget()

    async def handle(self, exchange: Exchange) -> None:
        """Serve one request, whatever happens to it; writes its record in any case."""
        loop = asyncio.get_running_loop()
        headers = _as_text(exchange.headers)
        record = _open_record(exchange, headers)
        trace = self._tracing.begin(exchange.endpoint.path, headers)
        try:
            view = self._read(exchange, headers)
            target = self._identify(view, record)
            signals = Signals(view, self._read_hour())
            await _let_others_run(exchange)
            session = identify(signals)
            await _let_others_run(exchange)
            decision = await self._decide(target, signals, session)
            record.decided_s = loop.time()
            self._note_decision(decision, signals, session, record)
            await self._serve(exchange, view, signals, session, decision, record, trace)
        except GatewayError as error:
            record.error, record.status = error.code, error.status
            record.outcome = record.outcome or "refused"
            _refuse(exchange, error, record)
        except asyncio.CancelledError:
            self._end_cancelled(exchange, record)
        finally:
            self._recorder.close(record, loop.time())
            trace.end(record)

    async def explain(self, view: RequestView) -> dict[str, Any]:
        """Decide about a request without serving it, and without remembering it.

        Raises:
            GatewayError: what the client would be told.
        """
        record = Record("", "", view.protocol, 0.0)
        target = self._identify(view, record)
        signals = Signals(view, self._read_hour())
        session = identify(signals)
        decision = await self._decide(target, signals, session, remember=False)
        considered = {name: signals.get(name) for name in SIGNALS}
        return {
            "model": record.model,
            **decision.as_record(),
            "session": {"key": session.key, "source": session.source},
            "signals": considered,
            "rules": [
                {"use": rule.use, "matches": matches(rule, signals), "rule": describe(rule, signals)}
                for rule in target.route.rules
            ],
        }

    # ---- identify, decide ----

    def _read(self, exchange: Exchange, headers: Mapping[str, str]) -> RequestView:
        endpoint = exchange.endpoint
        body = Body(exchange.body)
        return RequestView(endpoint.protocol, body, headers, exchange.key_name, exchange.address, endpoint.counting)

    def _identify(self, view: RequestView, record: Record) -> Target:
        model = view.body.value("model")
        if not isinstance(model, str) or not model:
            raise InvalidRequest(
                "model is missing or no text: name a route or a pool; GET /v1/models lists them", param="model"
            )
        record.model = model[:200]
        record.stream = view.stream
        target = self._find_target(model)
        if target is None:
            known = ", ".join([*self._policy.routes, *self._policy.pools])
            raise UnknownModel(f"there is no model {model[:100]!r} here; known: {known}", param="model")
        record.route = target.route_name
        return target

    async def _decide(self, target: Target, signals: Signals, session: Session, remember: bool = True) -> Decision:
        """The pool for this request: capability, facts, session, score - in that order."""
        name, route = target.route_name, target.route
        candidates = find_candidates(target.pools, self._pools, signals)
        stored = self._place_of_previous(signals)
        if stored is not None and stored[0] in candidates.pools:
            why = "the response that this one follows is stored there"
            return Decision(name, stored[0], (), "held", (why,), only_replica=stored[1])
        decision = decide_by_facts(name, route, candidates, signals)
        if decision is None:
            pin = self._pins.get(name, session)
            held = held_pool(pin, route.decide_per, signals.turns, signals.tool_loop, session.certain)
            if held is not None:
                kept = nearest_capable(held[0], route, candidates)
                return hold(name, kept, held[1], candidates)
            outcomes = await ask_in_turn(self._classifiers.get(name, ()), signals)
            decision = decide_by_score(name, route, candidates, outcomes)
            if pin is not None and session.certain and route.decide_per != "request":
                decision = keep_session(decision, pin.pool, candidates)
        if remember and route.use is None and not decision.degraded:
            self._pin(name, session, signals, decision)
        return decision

    def _pin(self, name: str, session: Session, signals: Signals, decision: Decision) -> None:
        """Remember the decision for the rest of the session."""
        old = self._pins.get(name, session)
        turn = signals.turns
        if decision.kind in {"rule", "asked"} and not decision.hold_turns and old is not None:
            return  # a passing exception: the session keeps what it had
        if decision.hold_turns:
            pool = old.pool if old is not None else decision.pool
            self._pins.put(name, session, Pin(pool, turn, turn + decision.hold_turns, decision.pool))
        else:
            self._pins.put(name, session, Pin(decision.pool, turn))

    def _place_of_previous(self, signals: Signals) -> tuple[str, str] | None:
        """Pool and replica that hold the response this request goes on from, as far as it is known here."""
        previous = signals.view.body.text("previous_response_id") if signals.protocol == "responses" else None
        return self._stored.place_of(previous) if previous else None

    def _note_decision(self, decision: Decision, signals: Signals, session: Session, record: Record) -> None:
        record.decision = decision.as_record()
        record.signals = signals.known()
        record.session, record.session_source = session.key, session.source
        if self._policy.server.log_prompts:
            record.prompt = signals.last_human_text

    # ---- admit, send, relay ----

    async def _serve(
        self,
        exchange: Exchange,
        view: RequestView,
        signals: Signals,
        session: Session,
        decision: Decision,
        record: Record,
        trace: Trace,
    ) -> None:
        loop = asyncio.get_running_loop()
        lease: Lease | None = None
        response: Response | None = None
        try:
            lease, response = await self._send(exchange, view, signals, session, decision, record, trace)
            shown = _shown(decision, record, exchange)
            stream = _is_stream(response)
            if response.status >= 300:
                await self._pass_error(exchange, view, response, record, shown)
                return
            record.status = response.status
            reader = AnswerReader(view.protocol, stream)
            hide_usage = stream and "usage" in record.changed
            exchange.start(response.status, _answer_headers(response, shown, stream), None if hide_usage else response.length)
            broken = await Relay(exchange, reader, loop, hide_usage).run(response)
            self._note_answer(reader, view, record)
            record.outcome = "ok" if broken is None else "broken"
            record.error = broken.code if broken is not None else ""
        finally:
            if response is not None:
                response.abandon()
            if lease is not None:
                lease.release()

    async def _send(
        self,
        exchange: Exchange,
        view: RequestView,
        signals: Signals,
        session: Session,
        decision: Decision,
        record: Record,
        trace: Trace,
    ) -> tuple[Lease, Response]:
        """Get a place and the head of an answer, going on to other replicas while no connection comes up."""
        loop = asyncio.get_running_loop()
        self._retry_budget.note_request(loop.time())
        tokens = signals.prompt_tokens + (signals.max_output_tokens or ANSWER_TOKENS_GUESS)
        failure: GatewayError | None = None
        for name in (decision.pool, *decision.fallbacks):
            pool = self._pools[name]
            body = self._patch(view, signals, pool, record)
            tried: list[str] = []
            while (lease := await pool.admit(session.key, tokens, tried, decision.only_replica)) is not None:
                record.pool, record.replica = name, lease.replica.label
                record.admitted_s = record.admitted_s or loop.time()
                record.attempts.append(lease.replica.label)
                try:
                    head = self._head(exchange, pool, lease.replica, body, record, trace)
                    request = head + body if len(body) < COPIED_BYTES else [head, body]
                    record.sent_s = loop.time()
                    response = await self._ask(pool, lease.replica, request)
                    record.first_byte_s = response.head_s
                except ConnectFailed as failed:
                    lease.release()
                    failure = failed.error
                    tried.append(lease.replica.label)
                    if lease.replica.mark("down", failure.message):
                        log.warning("pool %s: %s", name, failure.message)
                except BaseException:
                    lease.release()
                    raise
                else:
                    tried.append(lease.replica.label)
                    if not self._worth_retrying(response, pool, tried, decision):
                        return lease, response
                    response.abandon()
                    lease.release()
        assert failure is not None
        if decision.only_replica is not None:
            message = "the response that this one follows is stored on a replica that can't be reached: "
        else:
            message = (
                f"pool {decision.pool}: none of {len(self._pools[decision.pool].replicas)} replicas can be reached; last: "
            )
        raise type(failure)(message + failure.message, retry_after_s=2)

    def _worth_retrying(self, response: Response, pool: Pool, tried: Sequence[str], decision: Decision) -> bool:
        """An engine that refuses before it begins is worth another replica's try, within the budget."""
        return (
            response.status in BUSY
            and decision.only_replica is None
            and pool.has_free(tried)
            and self._retry_budget.take(asyncio.get_running_loop().time())
        )

    async def _ask(self, pool: Pool, replica: Replica, request: bytes | list[bytes]) -> Response:
        """One attempt: send, and wait for the head; a kept connection that died unseen is replaced once."""
        connections = self._connections[(pool.name, replica.label)]
        response = await connections.send(request)
        try:
            await response.head()
        except StaleConnection:
            response = await connections.send(request, fresh=True)
            try:
                await response.head()
            except StaleConnection:
                raise Unreachable(f"{replica.label} closed two connections without an answer") from None
            except BaseException:
                response.abandon()
                raise
        except BaseException:
            response.abandon()
            raise
        return response

    def _patch(self, view: RequestView, signals: Signals, pool: Pool, record: Record) -> bytes:
        """The body for this pool: the model it serves, and what its block in the policy names. Nothing else."""
        changes = {"model": msgspec.json.encode(pool.settings.model)}
        changed: list[str] = []
        if pool.clamps and pool.context_tokens and signals.max_output_tokens:
            fits = max(16, pool.context_tokens - signals.prompt_tokens)
            for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
                value = view.body.value(name)
                if isinstance(value, int) and value > fits:
                    changes[name] = str(fits).encode()
                    changed.append(f"{name} lowered from {value} to {fits}")
        if pool.settings.usage == "ask" and view.stream and view.protocol in {"chat", "completions"}:
            options = view.body.value("stream_options")
            if not (isinstance(options, dict) and options.get("include_usage")):
                asked = {**options, "include_usage": True} if isinstance(options, dict) else {"include_usage": True}
                changes["stream_options"] = msgspec.json.encode(asked)
                changed.append("usage")
        record.changed = changed
        return view.body.patched(changes)

    def _head(
        self, exchange: Exchange, pool: Pool, replica: Replica, body: bytes | None, record: Record, trace: Trace
    ) -> bytes:
        request_id = f"{record.id}-{len(record.attempts)}"  # vLLM puts it into the answer's id: one for each attempt
        return to_engine(
            exchange.method,
            exchange.target,
            exchange.headers,
            host=self._connections[(pool.name, replica.label)].host_header,
            length=None if body is None else len(body),
            key=self._pool_keys.get(pool.name),
            extra=(b"x-request-id: " + request_id.encode("ascii"), *trace.lines()),
        )

    async def _pass_error(
        self, exchange: Exchange, view: RequestView, response: Response, record: Record, shown: Headers
    ) -> None:
        """An engine's refusal goes to the client with its status; a redirect is a fault of the engine."""
        body = await response.read(ERROR_BODY_BYTES)
        if response.status < 400:
            raise Unreachable(f"{record.replica} answered with a redirect ({response.status}), which is never followed")
        if exchange.endpoint.counting and response.status in {404, 405, 501}:
            self._count_here(exchange, view, record, shown)
            return
        record.status, record.outcome = response.status, "engine_error"
        record.answer_bytes = len(body)
        exchange.pass_error(response.status, [*to_client(response.headers), *shown], body)

    def _count_here(self, exchange: Exchange, view: RequestView, record: Record, shown: Headers) -> None:
        """The engine can't count tokens: answer with the estimate, and say that it is one."""
        body = msgspec.json.encode({"input_tokens": max(1, Signals(view).prompt_tokens)})
        record.status, record.outcome = 200, "ok"
        estimate = (b"x-switchyard-estimate", b"true")
        exchange.start(200, [(b"content-type", b"application/json"), estimate, *shown], len(body))
        exchange.write(body)
        exchange.finish()

    def _note_answer(self, reader: AnswerReader, view: RequestView, record: Record) -> None:
        usage = reader.usage()
        record.input_tokens, record.output_tokens = usage.input_tokens, usage.output_tokens
        record.cached_tokens = usage.cached_tokens
        record.first_token_s = reader.first_token_s
        record.answer_bytes = reader.received_bytes
        if view.protocol == "responses" and (response_id := reader.response_id()) is not None:
            self._stored.remember(response_id, record.pool, record.replica)

    def _end_cancelled(self, exchange: Exchange, record: Record) -> None:
        """The client left, or the gateway's time to drain is over."""
        if exchange.client_left:
            record.outcome = "client_left"
            return
        error = Draining("the gateway is shutting down and its time for running requests is over", retry_after_s=5)
        record.outcome, record.error = "broken" if exchange.answered else "refused", error.code
        record.status = record.status or error.status
        _refuse(exchange, error, record)

    # ---- requests of other kinds ----

    async def handle_stored(self, exchange: Exchange, response_id: str) -> None:
        """GET, DELETE or POST on a stored response: goes to the replica that made it."""
        loop = asyncio.get_running_loop()
        headers = _as_text(exchange.headers)
        record = _open_record(exchange, headers)
        trace = self._tracing.begin(exchange.endpoint.path, headers)
        response: Response | None = None
        try:
            place = self._stored.place_of(response_id)
            if place is None:
                message = f"no response {response_id[:64]!r} is known here: it was made elsewhere, long ago, or not stored"
                raise UnknownModel(message)
            pool = self._pools[place[0]]
            replica = next(r for r in pool.replicas if r.label == place[1])
            record.pool, record.replica = place
            record.attempts.append(replica.label)
            body = exchange.body or None
            record.sent_s = record.decided_s = record.admitted_s = loop.time()
            response = await self._ask(pool, replica, self._head(exchange, pool, replica, body, record, trace) + exchange.body)
            shown: Headers = [
                (b"x-switchyard-pool", pool.name.encode()),
                (b"x-switchyard-replica", replica.label.encode()),
            ]
            if response.status >= 300:
                record.status, record.outcome = response.status, "engine_error"
                answer = await response.read(ERROR_BODY_BYTES)
                exchange.pass_error(response.status, [*to_client(response.headers), *shown], answer)
                return
            record.status, record.outcome = response.status, "ok"
            stream = _is_stream(response)
            exchange.start(response.status, _answer_headers(response, shown, stream), response.length)
            await Relay(exchange, AnswerReader("responses", stream), loop).run(response)
        except ConnectFailed as failed:
            record.error, record.status, record.outcome = failed.error.code, failed.error.status, "refused"
            _refuse(exchange, failed.error, record)
        except GatewayError as error:
            record.error, record.status, record.outcome = error.code, error.status, "refused"
            _refuse(exchange, error, record)
        except asyncio.CancelledError:
            self._end_cancelled(exchange, record)
        finally:
            if response is not None:
                response.abandon()
            self._recorder.close(record, loop.time())
            trace.end(record)

    async def ask_pool(self, name: str, body: bytes) -> tuple[int, bytes]:
        """A chat question of the gateway's own, for the judge; the body's `model` is set here.

        Raises:
            GatewayError: no place or no answer.
        """
        pool = self._pools[name]
        patched = Body(body).patched({"model": msgspec.json.encode(pool.settings.model)})
        lease = await pool.admit("judge", len(body) // 4)
        if lease is None:
            raise Unreachable(f"pool {name} has no replica")
        response: Response | None = None
        try:
            head = to_engine(
                b"POST", b"/v1/chat/completions", [(b"content-type", b"application/json")],
                host=self._connections[(name, lease.replica.label)].host_header, length=len(patched),
                key=self._pool_keys.get(name),
            )  # fmt: skip
            response = await self._ask(pool, lease.replica, head + patched)
            return response.status, await response.read(ERROR_BODY_BYTES)
        except ConnectFailed as failed:
            raise failed.error from None
        finally:
            if response is not None:
                response.abandon()
            lease.release()


async def _let_others_run(exchange: Exchange) -> None:
    """Between two steps over a body of many megabytes, other streams get their turn."""
    if len(exchange.body) > LONG_BODY_BYTES:
        await asyncio.sleep(0)


def _open_record(exchange: Exchange, headers: Mapping[str, str]) -> Record:
    return Record(
        id=exchange.request_id,
        path=exchange.endpoint.path,
        protocol=exchange.endpoint.protocol,
        began_s=exchange.received_s,
        client_id=exchange.client_request_id,
        key_name=exchange.key_name,
        case=headers.get("x-switchyard-case", "")[:128],
        request_bytes=len(exchange.body),
    )


def _as_text(headers: Headers) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}


def _refuse(exchange: Exchange, error: GatewayError, record: Record) -> None:
    """Tell the client about an error of our own: in the stream where one has begun."""
    if exchange.answered:
        exchange.break_off(error if isinstance(error, Draining) else BrokenStream(error.message), False, b"")
        return
    shown = [(b"x-switchyard-pool", record.pool.encode()), (b"x-switchyard-replica", record.replica.encode())]
    exchange.refuse(error, shown if record.pool else [])


def _shown(decision: Decision, record: Record, exchange: Exchange) -> Headers:
    """The headers that say what was decided."""
    reasons = [decision.reasons[0], *(c for c in record.changed if c != "usage")]
    if record.pool != decision.pool:
        reasons.insert(0, f"no replica of {decision.pool} can be reached")
    reason = "; ".join(reasons)[:300]
    if not reason.isprintable():  # a rule's words, or an engine's, may be anything
        reason = "".join(c if c.isprintable() else " " for c in reason)
    return [
        (b"x-switchyard-pool", record.pool.encode("ascii")),
        (b"x-switchyard-replica", record.replica.encode("ascii")),
        (b"x-switchyard-reason", reason.encode("ascii", "replace")),
    ]


def _is_stream(response: Response) -> bool:
    return any(n == b"content-type" and v.lower().startswith(b"text/event-stream") for n, v in response.headers)


def _answer_headers(response: Response, shown: Headers, stream: bool) -> Headers:
    headers = [*to_client(response.headers), *shown]
    if stream:
        names = {name for name, _ in headers}
        headers += [pair for pair in ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")) if pair[0] not in names]
    return headers
