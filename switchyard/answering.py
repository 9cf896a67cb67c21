"""The answering half of the request path: an engine's answer goes to the client, and what it tells into the record."""

from __future__ import annotations

import asyncio

import msgspec

from switchyard.deciding import Decider, Stored, Target
from switchyard.errors import BrokenStream, GatewayError, Unreachable
from switchyard.escalating import Escalation
from switchyard.exchange import Exchange
from switchyard.pools.replica import Lease
from switchyard.refusing import drained
from switchyard.routing.decision import Decision
from switchyard.routing.request import RequestView
from switchyard.sending import Outgoing, Sender
from switchyard.shadowing import Copy, CopyingReader
from switchyard.telemetry.record import Record
from switchyard.upstream.connection import Headers, Response
from switchyard.upstream.ending import error_status
from switchyard.upstream.headers import to_client
from switchyard.upstream.opening import FAULTS
from switchyard.upstream.relay import HideUsage, Relay
from switchyard.upstream.sse import AnswerReader

ERROR_BODY_BYTES = 256 * 1024  # of an engine's error answer: it is read before it is passed on


class Answers:
    """Passes answers on.

    Args:
        sender: asks a larger pool when a tool call is bad.
        decider: told where a conversation goes on.
        stored: places of stored responses.
    """

    def __init__(self, sender: Sender, decider: Decider, stored: Stored) -> None:
        self._sender = sender
        self._decider = decider
        self._stored = stored

    async def relay(
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
                exchange.break_off(drained(), reader.between_events, reader.tail)
            elif stream and reader.has_ended:  # it had its last event and did not wait for the end of the body
                self._note_answer(reader, None, record, outgoing.view)
            raise
        self._note_answer(reader, broken, record, outgoing.view)

    async def relay_checked(
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

    def pass_refusal(
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
            session = record.session if record.session_source != "fingerprint" else ""
            self._stored.remember(response_id, record.pool, record.replica, session, record.key_name)


def _reader(outgoing: Outgoing, stream: bool, copy: Copy | None) -> AnswerReader:
    protocol = outgoing.view.protocol
    return AnswerReader(protocol, stream) if copy is None else CopyingReader(protocol, copy)


def _shown(decision: Decision, record: Record) -> Headers:
    """The headers that say what was decided."""
    reasons = [decision.reasons[0], *(c for c in record.changed if c != "usage")]
    if record.pool != decision.pool:
        reasons.insert(0, f"no replica of {decision.pool} can be reached")
    reasons[:0] = [f"{replica} died before it answered" for _, replica in record.died]
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
