"""The request path. Read `Pipeline.handle` from top to bottom and you know the product.

    identify -> signals -> arrive -> pinned? -> classify -> decide -> admit -> choose replica -> send -> check -> relay
      -> record

One step is one call. Arriving is `arriving.py`, deciding `deciding.py`, getting an answer `sending.py`; what a step
does inside is its own module's business. Nothing is retried after the first byte of an answer; a cancelled request
releases its place and closes its engine connection on the way out.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec

from switchyard.arriving import Arrivals
from switchyard.config.policy import Policy
from switchyard.config.route import Route
from switchyard.config.vocabulary import HEADER_PREFIX, SIGNALS
from switchyard.deciding import Decider, Stored, Target
from switchyard.errors import BrokenStream, Draining, GatewayError, InvalidRequest, UnknownModel, Unreachable
from switchyard.escalating import Escalation, worth_checking
from switchyard.pools.pool import Pool
from switchyard.pools.replica import Lease
from switchyard.routing.decision import Decision
from switchyard.routing.overflow import says_overflow
from switchyard.routing.recorded import ALWAYS_RECORDED
from switchyard.routing.request import Body, RequestView
from switchyard.routing.rules import describe, matches
from switchyard.routing.session import Session, identify
from switchyard.routing.signals import Signals
from switchyard.sending import FAULTS, Outgoing, Sender
from switchyard.shadowing import Copy, CopyingReader, Shadowing
from switchyard.state.base import Claim
from switchyard.telemetry.record import Record, Recorder
from switchyard.telemetry.tracing import Tracing
from switchyard.upstream.connection import Headers, Response
from switchyard.upstream.ending import error_status
from switchyard.upstream.headers import to_client
from switchyard.upstream.pool import ConnectFailed
from switchyard.upstream.relay import Client, HideUsage, Relay
from switchyard.upstream.sse import AnswerReader

ERROR_BODY_BYTES = 256 * 1024  # of an engine's error answer: it is read before it is passed on
LONG_BODY_BYTES = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One path of the data plane.

    Attributes:
        path: as clients ask for it; also the path at the engine.
        protocol: family of its body.
        counting: it only counts tokens; its failures say nothing about an engine.
    """

    path: str
    protocol: str
    counting: bool = False


class Exchange(Client, Protocol):
    """One request of a client and the way back to it; `api/protocol.py` makes them."""

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


class Pipeline:
    """Everything a request passes through, under one policy. Collaborators are made in `app.py`.

    Args:
        policy: the policy in force.
        pools: by name.
        arrivals: lets requests in.
        decider: finds the pool.
        sender: gets an answer from it.
        stored: places of stored responses.
        recorder: takes the record of every request.
        tracing: begins a trace for every request.
        shadowing: asks the big pool once more, now and then.
        read_hour: hour of the day.
    """

    def __init__(
        self,
        policy: Policy,
        pools: Mapping[str, Pool],
        arrivals: Arrivals,
        decider: Decider,
        sender: Sender,
        stored: Stored,
        recorder: Recorder,
        tracing: Tracing,
        shadowing: Shadowing,
        read_hour: Callable[[], int],
    ) -> None:
        self._policy = policy
        self._pools = pools
        self._arrivals = arrivals
        self._decider = decider
        self._sender = sender
        self._stored = stored
        self._recorder = recorder
        self._tracing = tracing
        self._shadowing = shadowing
        self._read_hour = read_hour

    async def handle(self, exchange: Exchange) -> None:
        """Serve one request, whatever happens to it; writes its record in any case."""
        headers = _as_text(exchange.headers)
        record = _open_record(exchange, headers)
        trace = self._tracing.begin(exchange.endpoint.path, headers)
        signals: Signals | None = None
        claim: Claim | None = None
        try:
            view = _read(exchange, headers)
            target = self._identify(view, record)
            signals = Signals(view, self._read_hour())
            await _let_others_run(exchange)
            session = identify(signals)
            await _let_others_run(exchange)
            claim = await self._arrivals.enter(record, signals, session)
            decision = await self._decider.decide(target, signals, session)
            record.decided_s = time.monotonic()
            self._note_decision(decision, signals, session, record)
            outgoing = Outgoing(exchange.method, exchange.target, exchange.headers, view, signals, session.key, record, trace)
            await self._serve(exchange, target, outgoing, decision)
        except GatewayError as error:
            record.error, record.status = error.code, error.status
            record.outcome = record.outcome or "refused"
            _refuse(exchange, error, record)
        except asyncio.CancelledError:
            _end_cancelled(exchange, record)
        except Exception:
            _note_failure(exchange, record)
            raise
        finally:
            self._arrivals.leave(claim, record)
            try:
                if record.decision and signals is not None:
                    self._note_signals(signals, target.route, record)
            finally:
                self._recorder.close(record, time.monotonic())
                trace.end(record)

    async def _serve(self, exchange: Exchange, target: Target, outgoing: Outgoing, decision: Decision) -> None:
        """Send, and pass on what comes back. Place and engine connection are free again when this ends, however it ends."""
        view = outgoing.view
        lease: Lease | None = None
        response: Response | None = None
        copy: Copy | None = None
        try:
            lease, response = await self._sender.send(outgoing, decision)
            if response.status >= 300:
                refusal = await response.read(ERROR_BODY_BYTES)
                longer = self._longer_pool(target, outgoing, decision, response.status, refusal)
                if longer is None:
                    self._pass_refusal(exchange, outgoing, decision, response, refusal)
                    return
                lease.release()
                reasons = (f"{outgoing.record.pool} says that its context is too small", *decision.reasons)
                decision = replace(decision, pool=longer, fallbacks=(), reasons=reasons)
                self._decider.note_move(target, outgoing.affinity, outgoing.signals, longer)
                lease, response = await self._sender.send(outgoing, decision)
                if response.status >= 300:
                    refusal = await response.read(ERROR_BODY_BYTES)
                    self._pass_refusal(exchange, outgoing, decision, response, refusal)
                    return
            copy = self._shadowing.sample(target.route_name, target.route, outgoing, decision, response)
            if target.route.check.tool_calls == "escalate" and worth_checking(view, decision, outgoing.record.pool, response):
                await self._relay_checked(exchange, target, outgoing, decision, response, lease, copy)
            else:
                await self._relay(exchange, outgoing, decision, response, copy)
            self._judge(lease, outgoing)
        finally:
            if response is not None:
                response.abandon()
            if lease is not None:
                lease.release()
        if copy is not None and outgoing.record.outcome == "ok" and not outgoing.record.escalation:
            self._shadowing.begin(copy, target.route_name, target.route, outgoing, self._sender, self._pools)

    async def _relay(
        self, exchange: Exchange, outgoing: Outgoing, decision: Decision, response: Response, copy: Copy | None = None
    ) -> None:
        """Pass on a good answer as it comes, and note what it tells."""
        record = outgoing.record
        record.status = response.status
        stream = response.is_stream
        reader = _reader(outgoing, stream, copy)
        hide_usage = stream and "usage" in record.changed
        headers = _answer_headers(response, _shown(decision, record), stream)
        exchange.start(response.status, headers, None if hide_usage else response.length)
        try:
            broken = await Relay(exchange, reader, [HideUsage()] if hide_usage else []).run(response)
        except asyncio.CancelledError:
            if not exchange.client_left:
                exchange.break_off(_drained(), reader.between_events, reader.tail)
            elif stream and reader.has_ended:  # it had its last event and did not wait for the end of the body
                self._note_answer(reader, None, record, outgoing.view)
            raise
        self._note_answer(reader, broken, record, outgoing.view)

    async def _relay_checked(
        self,
        exchange: Exchange,
        target: Target,
        outgoing: Outgoing,
        decision: Decision,
        response: Response,
        lease: Lease,
        copy: Copy | None,
    ) -> None:
        """The same for an answer whose tool calls are looked at first; a larger pool takes over from a bad one."""
        record = outgoing.record
        record.status = response.status
        escalation = Escalation(self._sender, outgoing, decision)
        reader = _reader(outgoing, response.is_stream, copy)
        try:
            if response.is_stream:
                exchange.start(response.status, _answer_headers(response, _shown(decision, record), True), None)
                hide_usage = "usage" in record.changed
                broken, last = await escalation.stream(exchange, response, reader, lease, hide_usage)
                self._note_answer(last, broken, record, outgoing.view, stored=not record.escalation)
                if last is not reader:
                    _add_first(reader, record)
            else:
                decision, answer, body = await escalation.whole(response, lease)
                reader.see(body)
                exchange.start(answer.status, _answer_headers(answer, _shown(decision, record), False), len(body))
                exchange.write(body)
                exchange.finish()
                self._note_answer(reader, None, record, outgoing.view)
            if record.escalation:
                self._decider.note_move(target, outgoing.affinity, outgoing.signals, record.pool)
        finally:
            escalation.release()

    def _note_answer(
        self, reader: AnswerReader, broken: GatewayError | None, record: Record, view: RequestView, stored: bool = True
    ) -> None:
        """What an answer told, into the record."""
        failed = error_status(reader.tail) if broken is None and view.stream else None
        if failed in FAULTS:
            broken = BrokenStream("the engine ended its stream with an error")
        record.outcome = "broken" if broken is not None else "ok" if failed is None else "engine_error"
        record.error = broken.code if broken is not None else ""
        usage = reader.usage()
        record.input_tokens, record.output_tokens = usage.input_tokens, usage.output_tokens
        record.cached_tokens = usage.cached_tokens
        record.first_token_s = reader.first_token_s
        record.answer_bytes = reader.received_bytes
        if stored and view.protocol == "responses" and (response_id := reader.response_id()) is not None:
            self._stored.remember(response_id, record.pool, record.replica)

    def _judge(self, lease: Lease, outgoing: Outgoing) -> None:
        """What this answer says about the replica's health.

        After an escalation, nothing: two of them made it. Nor when the engine refused, though the answer had begun.
        """
        record = outgoing.record
        if record.escalation or record.outcome == "engine_error":
            return
        pool, now_s = self._pools[record.pool], asyncio.get_running_loop().time()
        if record.outcome != "ok":
            pool.note_bad(lease.replica, record.error, now_s, lease.began_s)
            return
        pool.note_good(lease.replica, now_s)
        if lease.alone and record.first_token_s:
            prefilled = (record.input_tokens or lease.prompt_tokens) - (record.cached_tokens or 0)
            lease.replica.evidence.note_prefill(prefilled, record.first_token_s - record.sent_s)

    # ---- refusals of an engine ----

    def _longer_pool(self, target: Target, outgoing: Outgoing, decision: Decision, status: int, refusal: bytes) -> str | None:
        """Where a request goes that its engine finds too long; None when it stays a refusal."""
        bound = decision.only_replica is not None or decision.kind in {"named", "asked"}
        if bound or not says_overflow(status, refusal):
            return None
        return self._decider.longer_pool(target, outgoing.signals, outgoing.record.pool)

    def _pass_refusal(
        self, exchange: Exchange, outgoing: Outgoing, decision: Decision, response: Response, refusal: bytes
    ) -> None:
        """An engine's refusal goes to the client with its status; a redirect is a fault of the engine."""
        record = outgoing.record
        shown = _shown(decision, record)
        if response.status < 400:
            raise Unreachable(f"{record.replica} answered with a redirect ({response.status}), which is never followed")
        if exchange.endpoint.counting and response.status in {404, 405, 501}:
            _count_here(exchange, outgoing, shown)
            return
        record.status, record.outcome = response.status, "engine_error"
        record.answer_bytes = len(refusal)
        exchange.pass_error(response.status, [*to_client(response.headers), *shown], refusal)

    # ---- reading a request ----

    def _identify(self, view: RequestView, record: Record) -> Target:
        """What the model name means.

        Raises:
            InvalidRequest, UnknownModel: there is none, or it means nothing here.
        """
        model = view.body.value("model")
        if not isinstance(model, str) or not model:
            raise InvalidRequest(
                "model is missing or no text: name a route or a pool; GET /v1/models lists them", param="model"
            )
        record.model = model[:200]
        record.stream = view.stream
        target = self._decider.find_target(model)
        if target is None:
            known = ", ".join([*self._policy.routes, *self._policy.pools])
            raise UnknownModel(f"there is no model {model[:100]!r} here; known: {known}", param="model")
        record.route = target.route_name
        return target

    def _note_decision(self, decision: Decision, signals: Signals, session: Session, record: Record) -> None:
        record.decision = decision.as_record()
        record.signals, record.counted = signals.known(), signals.counted
        record.session, record.session_source = session.key, session.source
        if self._policy.server.log_prompts:
            record.prompt = signals.last_human_text

    def _note_signals(self, signals: Signals, route: Route, record: Record) -> None:
        """The facts that were read; for a decision log all that another policy may want to know (`whatif`).

        Done when the answer is out, so that nobody waits for it.
        """
        if self._policy.server.decision_log is not None:
            with contextlib.suppress(GatewayError):  # a field that is no text: the engine had the last word
                for name in ALWAYS_RECORDED:
                    signals.get(name)
        named = {name for rule in route.rules for name in rule.when if name.startswith(HEADER_PREFIX)}
        record.signals = {**signals.known(), **{name: signals.get(name) for name in named}}

    # ---- requests of other kinds ----

    async def explain(self, view: RequestView) -> dict[str, Any]:
        """Decide about a request without serving it, and without remembering it.

        Raises:
            GatewayError: what the client would be told.
        """
        record = Record("", "", view.protocol, 0.0)
        target = self._identify(view, record)
        signals = Signals(view, self._read_hour())
        session = identify(signals)
        await self._arrivals.learn(target.route_name, session)
        decision = await self._decider.decide(target, signals, session, remember=False)
        return {
            "model": record.model,
            **decision.as_record(),
            "session": {"key": session.key, "source": session.source},
            "signals": {name: signals.get(name) for name in SIGNALS},
            "rules": [
                {"use": rule.use, "matches": matches(rule, signals), "rule": describe(rule, signals)}
                for rule in target.route.rules
            ],
        }

    async def handle_stored(self, exchange: Exchange, response_id: str) -> None:
        """GET, DELETE or POST on a stored response: goes to the replica that made it."""
        headers = _as_text(exchange.headers)
        record = _open_record(exchange, headers)
        trace = self._tracing.begin(exchange.endpoint.path, headers)
        response: Response | None = None
        claim: Claim | None = None
        try:
            view = RequestView("responses", Body(b"{}"), headers)
            signals = Signals(view)
            claim = await self._arrivals.enter(record, signals, Session("", ""), response_id)
            place = self._stored.place_of(response_id)
            pool = self._pools.get(place[0]) if place is not None else None
            replica = next((r for r in pool.replicas if r.label == place[1]), None) if pool and place else None
            if pool is None or replica is None:
                message = f"no response {response_id[:64]!r} is known here: it was made elsewhere, long ago, or not stored"
                raise UnknownModel(message)
            record.pool, record.replica = pool.name, replica.label
            record.attempts.append((pool.name, replica.label))
            outgoing = Outgoing(exchange.method, exchange.target, exchange.headers, view, signals, "", record, trace)
            record.sent_s = record.decided_s = record.admitted_s = time.monotonic()
            response = await self._sender.attempt(outgoing, pool, replica, exchange.body)
            decision = Decision("", pool.name, (), "held", ("the response is stored there",), only_replica=replica.label)
            if response.status >= 300:
                self._pass_refusal(exchange, outgoing, decision, response, await response.read(ERROR_BODY_BYTES))
            else:
                await self._relay(exchange, outgoing, decision, response)
        except ConnectFailed as failed:
            record.error, record.status, record.outcome = failed.error.code, failed.error.status, "refused"
            _refuse(exchange, failed.error, record)
        except GatewayError as error:
            record.error, record.status, record.outcome = error.code, error.status, "refused"
            _refuse(exchange, error, record)
        except asyncio.CancelledError:
            _end_cancelled(exchange, record)
        except Exception:
            _note_failure(exchange, record)
            raise
        finally:
            if response is not None:
                response.abandon()
            self._arrivals.leave(claim, record)
            self._recorder.close(record, time.monotonic())
            trace.end(record)


def _read(exchange: Exchange, headers: Mapping[str, str]) -> RequestView:
    endpoint = exchange.endpoint
    return RequestView(endpoint.protocol, Body(exchange.body), headers, exchange.key_name, exchange.address, endpoint.counting)


def _reader(outgoing: Outgoing, stream: bool, copy: Copy | None) -> AnswerReader:
    protocol = outgoing.view.protocol
    return AnswerReader(protocol, stream) if copy is None else CopyingReader(protocol, copy)


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


def _end_cancelled(exchange: Exchange, record: Record) -> None:
    """The client left, or the gateway's time to drain is over."""
    if exchange.client_left:
        record.outcome = record.outcome or "client_left"
        return
    error = _drained()
    record.outcome, record.error = "broken" if exchange.answered else "refused", error.code
    record.status = record.status or error.status
    _refuse(exchange, error, record)


def _note_failure(exchange: Exchange, record: Record) -> None:
    """The gateway itself has failed; who catches it tells the client."""
    record.outcome, record.error = "broken" if exchange.answered else "refused", GatewayError.code
    record.status = record.status or GatewayError.status


def _drained() -> Draining:
    return Draining("the gateway is shutting down and its time for running requests is over", retry_after_s=5)


def _add_first(reader: AnswerReader, record: Record) -> None:
    """The tokens of an answer that another one has taken over, and the time of its first token."""
    usage = reader.usage()
    for name in ("input_tokens", "output_tokens", "cached_tokens"):
        first, second = getattr(usage, name), getattr(record, name)
        if first is not None:
            setattr(record, name, first + (second or 0))
    record.first_token_s = reader.first_token_s or record.first_token_s


def _count_here(exchange: Exchange, outgoing: Outgoing, shown: Headers) -> None:
    """The engine can't count tokens: answer with a count by the pool's tokenizer or an estimate, and say so."""
    signals, pool = outgoing.signals, outgoing.record.pool
    body = msgspec.json.encode({"input_tokens": max(1, signals.prompt_tokens_for(pool))})
    outgoing.record.status, outgoing.record.outcome = 200, "ok"
    estimate = (b"x-switchyard-estimate", b"tokenizer" if pool in signals.counted else b"true")
    exchange.start(200, [(b"content-type", b"application/json"), estimate, *shown], len(body))
    exchange.write(body)
    exchange.finish()


def _shown(decision: Decision, record: Record) -> Headers:
    """The headers that say what was decided."""
    reasons = [decision.reasons[0], *(c for c in record.changed if c != "usage")]
    if record.pool != decision.pool:
        reasons.insert(0, f"no replica of {decision.pool} can be reached")
    reason = "; ".join(reasons)[:300]
    if not reason.isprintable():  # a rule's words, or an engine's, may be anything
        reason = "".join(c if c.isprintable() else " " for c in reason)
    shown = [
        (b"x-switchyard-pool", record.pool.encode("ascii")),
        (b"x-switchyard-replica", record.replica.encode("ascii")),
        (b"x-switchyard-reason", reason.encode("ascii", "replace")),
    ]
    if record.affinity:
        shown.append((b"x-switchyard-affinity", record.affinity.encode("ascii")))
    return shown


def _answer_headers(response: Response, shown: Headers, stream: bool) -> Headers:
    headers = [*to_client(response.headers), *shown]
    if stream:
        names = {name for name, _ in headers}
        headers += [pair for pair in ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")) if pair[0] not in names]
    return headers
