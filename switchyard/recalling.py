"""Requests about a stored response: they go to the replica that made it, and nothing is decided."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from switchyard.answering import ERROR_BODY_BYTES, Answers
from switchyard.arriving import Arrivals
from switchyard.deciding import Stored
from switchyard.errors import GatewayError, UnknownModel
from switchyard.exchange import Exchange, as_text, open_record
from switchyard.pools.pool import Pool
from switchyard.refusing import end_cancelled, note_failure, refuse
from switchyard.routing.decision import Decision
from switchyard.routing.request import Body, RequestView
from switchyard.routing.session import Session
from switchyard.routing.signals import Signals
from switchyard.sending import Outgoing, Sender
from switchyard.state.base import Claim
from switchyard.telemetry.record import Recorder
from switchyard.telemetry.tracing import Tracing
from switchyard.upstream.connection import Response
from switchyard.upstream.pool import ConnectFailed


class Recall:
    """GET, DELETE and POST on stored responses.

    Args:
        pools: by name.
        arrivals: lets requests in.
        sender: gets an answer from the replica.
        answers: passes it on.
        stored: places of stored responses.
        recorder: takes the record of every request.
        tracing: begins a trace for every request.
    """

    def __init__(
        self,
        pools: Mapping[str, Pool],
        arrivals: Arrivals,
        sender: Sender,
        answers: Answers,
        stored: Stored,
        recorder: Recorder,
        tracing: Tracing,
    ) -> None:
        self._pools = pools
        self._arrivals = arrivals
        self._sender = sender
        self._answers = answers
        self._stored = stored
        self._recorder = recorder
        self._tracing = tracing

    async def handle(self, exchange: Exchange, response_id: str) -> None:
        """GET, DELETE or POST on a stored response: goes to the replica that made it."""
        headers = as_text(exchange.headers)
        record = open_record(exchange, headers)
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
                self._answers.pass_refusal(exchange, outgoing, decision, response, await response.read(ERROR_BODY_BYTES))
            else:
                await self._answers.relay(exchange, outgoing, decision, response)
        except ConnectFailed as failed:
            record.error, record.status, record.outcome = failed.error.code, failed.error.status, "refused"
            refuse(exchange, failed.error, record)
        except GatewayError as error:
            record.error, record.status, record.outcome = error.code, error.status, "refused"
            refuse(exchange, error, record)
        except asyncio.CancelledError:
            end_cancelled(exchange, record)
        except Exception:
            note_failure(exchange, record)
            raise
        finally:
            if response is not None:
                response.abandon()
            self._arrivals.leave(claim, record)
            self._recorder.close(record, time.monotonic())
            trace.end(record)
