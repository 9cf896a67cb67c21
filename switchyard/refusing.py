"""Requests that end without an engine's answer: what the client is told, and what the record says."""

from __future__ import annotations

from switchyard.errors import BrokenStream, Draining, GatewayError
from switchyard.exchange import Exchange
from switchyard.telemetry.record import Record


def refuse(exchange: Exchange, error: GatewayError, record: Record) -> None:
    """Tell the client about an error of our own: in the stream where one has begun."""
    if exchange.answered:
        exchange.break_off(error if isinstance(error, Draining) else BrokenStream(error.message), False, b"")
        return
    shown = [(b"x-switchyard-pool", record.pool.encode()), (b"x-switchyard-replica", record.replica.encode())]
    exchange.refuse(error, shown if record.pool else [])


def end_cancelled(exchange: Exchange, record: Record) -> None:
    """The client left, or the gateway's time to drain is over."""
    if exchange.client_left:
        record.outcome = record.outcome or "client_left"
        return
    error = drained()
    record.outcome, record.error = "broken" if exchange.answered else "refused", error.code
    record.status = record.status or error.status
    refuse(exchange, error, record)


def note_failure(exchange: Exchange, record: Record) -> None:
    """The gateway itself has failed; who catches it tells the client."""
    record.outcome, record.error = "broken" if exchange.answered else "refused", GatewayError.code
    record.status = record.status or GatewayError.status


def drained() -> Draining:
    """What a request is told that still ran when the time to drain was over."""
    return Draining("the gateway is shutting down and its time for running requests is over", retry_after_s=5)
