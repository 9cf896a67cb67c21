"""The request path. Read `Pipeline.handle` from top to bottom and you know the product.

    identify -> signals -> arrive -> pinned? -> classify -> decide -> admit -> choose replica -> send -> check -> relay
      -> record

One step is one call. Arriving is `arriving.py`, deciding `deciding.py`, getting an answer `sending.py`, passing it on
`answering.py`; what a step does inside is its own module's business. Nothing is retried after the first byte of an
answer; a cancelled request releases its place and closes its engine connection on the way out.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from switchyard.answering import ERROR_BODY_BYTES, Answers
from switchyard.arriving import Arrivals
from switchyard.config.policy import Policy
from switchyard.config.route import Route
from switchyard.config.vocabulary import HEADER_PREFIX, SIGNALS
from switchyard.deciding import Decider, Target
from switchyard.errors import GatewayError, InvalidRequest, UnknownModel
from switchyard.escalating import worth_checking
from switchyard.exchange import Exchange, as_text, open_record
from switchyard.pools.pool import Pool
from switchyard.pools.replica import Lease
from switchyard.refusing import end_cancelled, note_failure, refuse
from switchyard.routing.decision import Decision
from switchyard.routing.overflow import says_overflow
from switchyard.routing.recorded import ALWAYS_RECORDED
from switchyard.routing.request import Body, RequestView
from switchyard.routing.rules import describe, matches
from switchyard.routing.session import Session, identify
from switchyard.routing.signals import Signals
from switchyard.sending import Outgoing, Sender
from switchyard.shadowing import Copy, Shadowing
from switchyard.state.base import Claim
from switchyard.telemetry.record import Record, Recorder
from switchyard.telemetry.tracing import Tracing
from switchyard.upstream.connection import Response

LONG_BODY_BYTES = 2 * 1024 * 1024
_read_all = attrgetter(*ALWAYS_RECORDED)


class Pipeline:
    """Everything a request passes through, under one policy. Collaborators are made in `app.py`.

    Args:
        policy: the policy in force.
        pools: by name.
        arrivals: lets requests in.
        decider: finds the pool.
        sender: gets an answer from it.
        answers: passes the answer on.
        recorder: takes the record of every request.
        tracing: begins a trace for every request.
        shadowing: asks the big pool once more, now and then.
        session_of: the session of a stored response, by its id and the API key.
        read_hour: hour of the day.
    """

    def __init__(
        self,
        policy: Policy,
        pools: Mapping[str, Pool],
        arrivals: Arrivals,
        decider: Decider,
        sender: Sender,
        answers: Answers,
        recorder: Recorder,
        tracing: Tracing,
        shadowing: Shadowing,
        session_of: Callable[[str, str], str],
        read_hour: Callable[[], int],
    ) -> None:
        self._policy = policy
        self._pools = pools
        self._arrivals = arrivals
        self._decider = decider
        self._sender = sender
        self._answers = answers
        self._recorder = recorder
        self._tracing = tracing
        self._shadowing = shadowing
        self._session_of = session_of
        self._read_hour = read_hour

    async def handle(self, exchange: Exchange) -> None:
        """Serve one request, whatever happens to it; writes its record in any case."""
        headers = as_text(exchange.headers)
        record = open_record(exchange, headers)
        trace = self._tracing.begin(exchange.endpoint.path, headers)
        signals: Signals | None = None
        claim: Claim | None = None
        try:
            view = _read(exchange, headers)
            target = self._identify(view, record)
            signals = Signals(view, self._read_hour())
            if is_long := len(exchange.body) > LONG_BODY_BYTES:
                await asyncio.sleep(0)  # between two steps over many megabytes, other streams get their turn
            session = identify(signals, self._session_of)
            if is_long:
                await asyncio.sleep(0)
            claim = await self._arrivals.enter(record, signals, session)
            decision = await self._decider.decide(target, signals, session)
            record.decided_s = time.monotonic()
            self._note_decision(decision, signals, session, record)
            outgoing = Outgoing(exchange.method, exchange.target, exchange.headers, view, signals, session.key, record, trace)
            await self._serve(exchange, target, outgoing, decision)
        except GatewayError as error:
            record.error, record.status = error.code, error.status
            record.outcome = record.outcome or "refused"
            refuse(exchange, error, record)
        except asyncio.CancelledError:
            end_cancelled(exchange, record)
        except Exception:
            note_failure(exchange, record)
            raise
        finally:
            self._arrivals.leave(claim, record)
            try:
                if record.decision and signals is not None:
                    self._note_signals(signals, target.route, record)
            finally:
                self._recorder.close(record, time.monotonic())
                trace.end(record)

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
        record.counted = signals.counted
        record.session, record.session_source = session.key, session.source
        if self._policy.server.log_prompts:
            record.prompt = signals.last_human_text

    async def _serve(self, exchange: Exchange, target: Target, outgoing: Outgoing, decision: Decision) -> None:
        """Send, and pass on what comes back. Place and engine connection are free again when this ends, however it ends."""
        view = outgoing.view
        lease: Lease | None = None
        response: Response | None = None
        copy: Copy | None = None
        try:
            lease, response = await self._sender.send(outgoing, decision)
            if outgoing.record.pool != decision.pool:
                self._decider.note_stand_in(target, outgoing.affinity, outgoing.signals, outgoing.record.pool)
            if response.status >= 300:
                refusal = await response.read(ERROR_BODY_BYTES)
                longer = self._longer_pool(target, outgoing, decision, response.status, refusal)
                if longer is None:
                    self._answers.pass_refusal(exchange, outgoing, decision, response, refusal)
                    return
                lease.release()
                reasons = (f"{outgoing.record.pool} says that its context is too small", *decision.reasons)
                decision = replace(decision, pool=longer, fallbacks=(), reasons=reasons)
                self._decider.note_move(target, outgoing.affinity, outgoing.signals, longer)
                lease, response = await self._sender.send(outgoing, decision)
                if response.status >= 300:
                    refusal = await response.read(ERROR_BODY_BYTES)
                    self._answers.pass_refusal(exchange, outgoing, decision, response, refusal)
                    return
            copy = self._shadowing.sample(target.route_name, target.route, outgoing, decision, response)
            if target.route.check.tool_calls == "escalate" and worth_checking(view, decision, outgoing.record.pool, response):
                await self._answers.relay_checked(exchange, target, outgoing, decision, response, lease, copy)
            else:
                await self._answers.relay(exchange, outgoing, decision, response, copy)
            self._judge(lease, outgoing)
        finally:
            if response is not None:
                response.abandon()
            if lease is not None:
                lease.release()
        if copy is not None and outgoing.record.outcome == "ok" and not outgoing.record.escalation:
            self._shadowing.begin(copy, target.route_name, target.route, outgoing, self._sender, self._pools)

    def _longer_pool(self, target: Target, outgoing: Outgoing, decision: Decision, status: int, refusal: bytes) -> str | None:
        """Where a request goes that its engine finds too long; None when it stays a refusal."""
        bound = decision.only_replica is not None or decision.kind in {"named", "asked"}
        if bound or not says_overflow(status, refusal):
            return None
        return self._decider.longer_pool(target, outgoing.signals, outgoing.record.pool)

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

    def _note_signals(self, signals: Signals, route: Route, record: Record) -> None:
        """The facts that were read; for a decision log all that another policy may want to know (`whatif`).

        Done when the answer is out, so that nobody waits for it.
        """
        if self._policy.server.decision_log is not None:
            with contextlib.suppress(GatewayError):  # a field that is no text: the engine had the last word
                _read_all(signals)
        record.signals = signals.known()
        for rule in route.rules:
            for name in rule.when:
                if name.startswith(HEADER_PREFIX):
                    record.signals[name] = signals.get(name)

    async def explain(self, view: RequestView, request_id: str) -> dict[str, Any]:
        """Decide about a request without serving it, and without remembering it. It counts as a request of its API key.

        Raises:
            GatewayError: what the client would be told.
        """
        record = Record(request_id, "", view.protocol, 0.0, key_name=view.key_name)
        target = self._identify(view, record)
        signals = Signals(view, self._read_hour())
        session = identify(signals, self._session_of)
        claim = await self._arrivals.enter(record, signals, session, only_looks=True)
        try:
            decision = await self._decider.decide(target, signals, session, remember=False)
        finally:
            self._arrivals.leave(claim, record)
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


def _read(exchange: Exchange, headers: Mapping[str, str]) -> RequestView:
    endpoint = exchange.endpoint
    return RequestView(endpoint.protocol, Body(exchange.body), headers, exchange.key_name, exchange.address, endpoint.counting)
