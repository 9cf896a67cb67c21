"""OpenTelemetry: a span for each request and the GenAI metrics, by OTLP, when the standard variables ask for it.

Unset, nothing of OpenTelemetry is imported and a client's trace context goes on to the engine as it came.
Names follow the semantic conventions for generative AI; ours begin with `switchyard.`.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from switchyard.telemetry.record import Record

if TYPE_CHECKING:
    from opentelemetry.metrics import Histogram
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

_PARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_STATE = re.compile(r"[\x20-\x7e]{1,512}")
_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_METRICS_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
SHUT_DOWN_LIMIT_S = 3.0
_OPERATIONS = {
    "chat": "chat", "messages": "chat", "responses": "chat", "completions": "text_completion", "embeddings": "embeddings",
}  # fmt: skip


class Trace(Protocol):
    """The trace of one request."""

    def lines(self) -> tuple[bytes, ...]:
        """Header lines for the engine, so that its spans belong to the same trace."""

    def end(self, record: Record) -> None:
        """The request has ended."""


class Tracing(Protocol):
    """Begins traces."""

    def begin(self, path: str, headers: Mapping[str, str]) -> Trace:
        """A request has come."""

    def shut_down(self) -> None:
        """Send what is still waiting."""


class PassedOn:
    """No tracing of our own: a sane trace context of the client goes on, anything else is dropped."""

    __slots__ = ("_lines",)

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._lines = context_lines(headers) if "traceparent" in headers else ()

    def lines(self) -> tuple[bytes, ...]:
        """See `Trace`."""
        return self._lines

    def end(self, record: Record) -> None:
        """See `Trace`."""


class NoTracing:
    """What is used while the variables are unset."""

    def begin(self, path: str, headers: Mapping[str, str]) -> Trace:
        """See `Tracing`."""
        return PassedOn(headers)

    def shut_down(self) -> None:
        """See `Tracing`."""


def context_lines(headers: Mapping[str, str]) -> tuple[bytes, ...]:
    """A valid traceparent and its tracestate as header lines; nothing when the parent is malformed (W3C Trace Context)."""
    parent = headers.get("traceparent", "")
    if not _PARENT.fullmatch(parent):
        return ()
    lines = [b"traceparent: " + parent.encode("ascii")]
    state = headers.get("tracestate", "")
    if _STATE.fullmatch(state):
        lines.append(b"tracestate: " + state.encode("ascii"))
    return tuple(lines)


def make_tracing(environment: Mapping[str, str]) -> Tracing:
    """OTLP export where the environment names an endpoint, else nothing."""
    if not any(environment.get(v) for v in _VARIABLES) or environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return NoTracing()
    return OtlpTracing()


class OtlpTracing:
    """Spans and metrics by OTLP over HTTP; endpoint, headers and intervals from the standard variables."""

    def __init__(self, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        resource = Resource.create({} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "switchyard"})
        if tracer_provider is None:
            tracer_provider = TracerProvider(resource=resource)
            tracer_provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        if meter_provider is None:
            wanted = any(os.environ.get(v) for v in _METRICS_VARIABLES)
            readers = [PeriodicExportingMetricReader(OTLPMetricExporter())] if wanted else []
            meter_provider = MeterProvider(readers, resource=resource)
        self._tracers = tracer_provider
        self._meters = meter_provider
        self._tracer = tracer_provider.get_tracer("switchyard")
        meter = meter_provider.get_meter("switchyard")
        self._duration = meter.create_histogram("gen_ai.client.operation.duration", "s", "Duration of a request.")
        self._tokens = meter.create_histogram("gen_ai.client.token.usage", "{token}", "Tokens as the engine counted them.")
        self._first_token = meter.create_histogram("gen_ai.server.time_to_first_token", "s", "Time to the first token.")

    def begin(self, path: str, headers: Mapping[str, str]) -> Trace:
        """See `Tracing`."""
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        propagator = TraceContextTextMapPropagator()
        context = propagator.extract({k: headers[k] for k in ("traceparent", "tracestate") if k in headers})
        span = self._tracer.start_span(f"POST {path}", context, SpanKind.SERVER)
        return _SpanTrace(span, self._duration, self._tokens, self._first_token)

    def shut_down(self) -> None:
        """See `Tracing`."""
        # A collector that can't be reached is not waited for: its exporter goes on trying for many seconds.
        ending = threading.Thread(target=self._send_rest, daemon=True)
        ending.start()
        ending.join(SHUT_DOWN_LIMIT_S)

    def _send_rest(self) -> None:
        self._tracers.shutdown()
        self._meters.shutdown()


class _SpanTrace:
    def __init__(self, span: Span, duration: Histogram, tokens: Histogram, first_token: Histogram) -> None:
        self._span = span
        self._duration = duration
        self._tokens = tokens
        self._first_token = first_token

    def lines(self) -> tuple[bytes, ...]:
        context = self._span.get_span_context()
        parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
        state = context.trace_state.to_header()
        return context_lines({"traceparent": parent, "tracestate": state} if state else {"traceparent": parent})

    def end(self, record: Record) -> None:
        from opentelemetry.trace import StatusCode

        operation = _OPERATIONS.get(record.protocol, record.protocol)
        common: dict[str, str] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "switchyard",
            "gen_ai.request.model": record.model,
            "switchyard.route": record.route,
            "switchyard.pool": record.pool,
            "switchyard.replica": record.replica,
        }
        self._span.update_name(f"{operation} {record.route or record.pool}".strip())
        self._span.set_attributes(common)
        self._span.set_attributes(
            {
                "switchyard.reason": (record.decision.get("reasons") or ("",))[0],
                "switchyard.decision.kind": record.decision.get("kind", ""),
                "switchyard.outcome": record.outcome,
                "http.response.status_code": record.status,
                "switchyard.request_id": record.id,
            }
        )
        for name, value in (
            ("gen_ai.usage.input_tokens", record.input_tokens),
            ("gen_ai.usage.output_tokens", record.output_tokens),
        ):
            if value is not None:
                self._span.set_attribute(name, value)
        if record.outcome != "ok":
            self._span.set_status(StatusCode.ERROR, record.error or record.outcome)
            self._span.set_attribute("error.type", record.error or record.outcome)
        self._span.end(time.time_ns())
        self._duration.record(record.ended_s - record.began_s, common)
        if record.first_token_s:
            self._first_token.record(record.first_token_s - record.sent_s, common)
        for kind, tokens in (("input", record.input_tokens), ("output", record.output_tokens)):
            if tokens is not None:
                self._tokens.record(tokens, {**common, "gen_ai.token.type": kind})
