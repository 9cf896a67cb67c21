"""Traces: a client's context goes on when it is sane, spans carry the conventions' names, and unset costs nothing."""

import subprocess
import sys

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from switchyard.telemetry.tracing import NoTracing, OtlpTracing, context_lines, make_tracing

from .records import record_of

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    ("headers", "lines"),
    [
        ({"traceparent": PARENT}, [f"traceparent: {PARENT}"]),
        ({"traceparent": PARENT, "tracestate": "a=1,b=2"}, [f"traceparent: {PARENT}", "tracestate: a=1,b=2"]),
        ({"traceparent": PARENT, "tracestate": ""}, [f"traceparent: {PARENT}"]),
        ({"traceparent": PARENT, "tracestate": "x" * 513}, [f"traceparent: {PARENT}"]),
        ({"traceparent": PARENT, "tracestate": "a=\x7f"}, [f"traceparent: {PARENT}"]),
        ({"tracestate": "a=1"}, []),
        ({}, []),
        ({"traceparent": ""}, []),
        ({"traceparent": PARENT.upper()}, []),
        ({"traceparent": PARENT + "-x"}, []),
        ({"traceparent": "01" + PARENT[2:]}, []),
        ({"traceparent": f"00-{'0' * 32}-{SPAN}-01"}, []),
        ({"traceparent": f"00-{TRACE}-{'0' * 16}-01"}, []),
        ({"traceparent": "00-xyz-abc-01"}, []),
        ({"traceparent": PARENT + "\r\nx-evil: 1"}, []),
    ],
)
def test_a_sane_context_goes_on_and_anything_else_is_dropped(headers, lines):
    assert context_lines(headers) == tuple(line.encode() for line in lines)
    assert NoTracing().begin("/v1/x", headers).lines() == context_lines(headers)


@pytest.mark.parametrize(
    ("environment", "kind"),
    [
        ({}, NoTracing),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, NoTracing),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "TRUE"}, NoTracing),
    ],
)
def test_tracing_is_off_unless_an_endpoint_is_named(environment, kind):
    assert type(make_tracing(environment)) is kind


class Otlp:
    """Tracing whose spans and metrics stay in memory."""

    def __init__(self) -> None:
        self.spans, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(self.spans))
        self.tracing = OtlpTracing(tracers, MeterProvider([self.reader]))

    def points(self) -> dict[str, list]:
        data = self.reader.get_metrics_data()
        metrics = [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics] if data else []
        return {m.name: list(m.data.data_points) for m in metrics}


@pytest.fixture
def otlp():
    made = Otlp()
    yield made
    made.tracing.shut_down()


def test_a_span_for_a_request(otlp):
    trace = otlp.tracing.begin("/v1/chat/completions", {"traceparent": PARENT, "tracestate": "a=1"})
    parent, state = (line.decode() for line in trace.lines())
    trace.end(record_of())
    (span,) = otlp.spans.get_finished_spans()
    assert parent == f"traceparent: 00-{TRACE}-{span.context.span_id:016x}-01"
    assert state == "tracestate: a=1"
    assert (span.name, span.kind) == ("chat auto", SpanKind.SERVER)
    assert f"{span.parent.span_id:016x}" == SPAN
    assert dict(span.attributes) == {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "switchyard", "gen_ai.request.model": "auto",
        "gen_ai.usage.input_tokens": 40, "gen_ai.usage.output_tokens": 12, "http.response.status_code": 200,
        "switchyard.route": "auto", "switchyard.pool": "small", "switchyard.replica": "small-1", "switchyard.outcome": "ok",
        "switchyard.reason": "p 0.70 >= 0.6 by embedded", "switchyard.decision.kind": "score", "switchyard.request_id": "req-1",
    }  # fmt: skip
    assert span.status.status_code is not StatusCode.ERROR


def test_a_request_without_a_context_begins_a_trace(otlp):
    trace = otlp.tracing.begin("/v1/messages", {"traceparent": "nonsense"})
    assert context_lines(dict([trace.lines()[0].decode().split(": ")])) == trace.lines()
    trace.end(record_of(protocol="messages"))
    (span,) = otlp.spans.get_finished_spans()
    assert span.parent is None
    assert span.name == "chat auto"


@pytest.mark.parametrize(
    ("how", "kind", "status"),
    [
        (
            {"outcome": "refused", "error": "model_not_found", "status": 404, "decision": {}, "pool": "", "route": ""},
            "model_not_found",
            404,
        ),
        ({"outcome": "engine_error", "status": 500}, "engine_error", 500),
        ({"outcome": "broken", "error": "upstream_broken"}, "upstream_broken", 200),
    ],
)
def test_a_failure_is_an_error_with_a_type(otlp, how, kind, status):
    trace = otlp.tracing.begin("/v1/embeddings", {})
    trace.end(record_of(protocol="embeddings", input_tokens=None, output_tokens=None, **how))
    (span,) = otlp.spans.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes["error.type"], span.attributes["http.response.status_code"]) == (kind, status)
    assert "gen_ai.usage.input_tokens" not in span.attributes
    assert span.name.startswith("embeddings")


def test_the_conventions_metrics(otlp):
    otlp.tracing.begin("/v1/x", {}).end(record_of())
    otlp.tracing.begin("/v1/x", {}).end(record_of(first_token_s=0.0, input_tokens=None, output_tokens=None, ended_s=101.0))
    points = otlp.points()
    assert set(points) == {"gen_ai.client.operation.duration", "gen_ai.client.token.usage", "gen_ai.server.time_to_first_token"}
    (duration,) = points["gen_ai.client.operation.duration"]
    assert (duration.count, duration.sum) == (2, pytest.approx(4.0))
    assert duration.attributes["gen_ai.operation.name"] == "chat"
    assert duration.attributes["gen_ai.request.model"] == "auto"
    tokens = {p.attributes["gen_ai.token.type"]: p.sum for p in points["gen_ai.client.token.usage"]}
    assert tokens == {"input": 40, "output": 12}
    (first,) = points["gen_ai.server.time_to_first_token"]
    assert (first.count, first.sum) == (1, pytest.approx(0.499))


def imported(code: str) -> set[str]:
    """Modules of OpenTelemetry that a fresh process has after running this."""
    code += "\nimport sys; print(*[m for m in sys.modules if m.startswith('opentelemetry')])"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_without_the_variables_nothing_of_opentelemetry_is_imported():
    tracing = "from switchyard.telemetry.tracing import make_tracing; make_tracing({}).begin('/v1/x', {}).lines()"
    assert imported(tracing) == set()
    # FastAPI imports the API where it is installed; what costs memory and threads is the SDK and its exporters
    found = imported("import switchyard.app; " + tracing)
    assert not {m for m in found if m.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))}
