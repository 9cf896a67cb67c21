"""The metrics: text that Prometheus parses, a fixed set of labels, numbers that mean what their names say."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from switchyard.telemetry.metrics import ASKED, COUNTERS, GAUGES, HISTOGRAMS, Metrics

from .records import DECISION, record_of

LABELS = {
    **{name: set(labels) for name, (_, labels) in COUNTERS.items()},
    **{name: set(labels) for name, (_, labels, _) in HISTOGRAMS.items()},
    **{name: set(labels) for name, (_, labels) in [*GAUGES.items(), *ASKED.items()]},
}


def no_gauges() -> list:
    return []


def samples(metrics: Metrics) -> dict[tuple[str, frozenset], float]:
    families = text_string_to_metric_families(metrics.text().decode())
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return samples(metrics).get((name, frozenset(labels.items())), 0.0)


def test_a_good_answer_counts_everywhere():
    metrics = Metrics(no_gauges)
    metrics.note(record_of())
    common = {"route": "auto", "pool": "small"}
    assert value(metrics, "switchyard_requests_total", **common, protocol="chat", status="2xx", outcome="ok") == 1
    assert value(metrics, "switchyard_decisions_total", **common, kind="score", classifier="embedded") == 1
    assert value(metrics, "switchyard_attempts_total", pool="small", replica="small-1") == 1
    assert value(metrics, "switchyard_input_tokens_total", pool="small") == 40
    assert value(metrics, "switchyard_output_tokens_total", pool="small") == 12
    assert value(metrics, "switchyard_cached_tokens_total", pool="small") == 30
    assert value(metrics, "switchyard_usage_missing_total", pool="small") == 0
    seconds = {"request": 3.0, "first_byte": 0.399, "first_token": 0.499, "queue": 0.498, "decide": 0.002, "overhead": 0.003}
    for name, took_s in seconds.items():
        labels = {} if name in {"decide", "overhead"} else {"pool": "small"}
        assert value(metrics, f"switchyard_{name}_seconds_sum", **labels) == pytest.approx(took_s), name
        assert value(metrics, f"switchyard_{name}_seconds_count", **labels) == 1


def test_histograms_are_cumulative_and_end_with_all():
    metrics = Metrics(no_gauges)
    for seconds in (0.005, 0.3, 0.3, 9999):
        metrics.note(record_of(ended_s=100.0 + seconds))
    found = {
        dict(labels)["le"]: n for (name, labels), n in samples(metrics).items() if name == "switchyard_request_seconds_bucket"
    }
    assert found["+Inf"] == 4
    assert (found["0.01"], found["0.25"], found["0.5"], found["600.0"] if "600.0" in found else found["600"]) == (1, 1, 3, 3)
    counts = [found[le] for le in sorted(found, key=float)]
    assert counts == sorted(counts)


@pytest.mark.parametrize(
    ("how", "name", "labels"),
    [
        ({"status": 404, "outcome": "refused", "error": "model_not_found", "pool": "", "decision": {}, "attempts": []},
         "switchyard_errors_total", {"code": "model_not_found"}),
        ({"status": 0, "outcome": "client_left"}, "switchyard_requests_total",
         {"route": "auto", "pool": "small", "protocol": "chat", "status": "none", "outcome": "client_left"}),
        ({"status": 503, "outcome": "engine_error"}, "switchyard_requests_total",
         {"route": "auto", "pool": "small", "protocol": "chat", "status": "5xx", "outcome": "engine_error"}),
        ({"input_tokens": None, "output_tokens": None}, "switchyard_usage_missing_total", {"pool": "small"}),
        ({"decision": {**DECISION, "degraded": True}}, "switchyard_classifier_failures_total", {"route": "auto"}),
        ({"attempts": [("big", "b1"), ("small", "s1")]}, "switchyard_attempts_total", {"pool": "big", "replica": "b1"}),
        ({"died": [("big", "b1")]}, "switchyard_moved_requests_total", {"pool": "big"}),
    ],
)  # fmt: skip
def test_what_else_is_counted(how, name, labels):
    metrics = Metrics(no_gauges)
    metrics.note(record_of(**how))
    assert value(metrics, name, **labels) == 1


def test_series_of_a_replica_that_has_gone_go_too():
    """Where replicas are found by DNS every one of them has another address."""
    here = {("small", "small-1")}
    metrics = Metrics(no_gauges, has_replica=lambda pool, replica: (pool, replica) in here)
    metrics.note(record_of(attempts=[("small", "10.0.0.1:8000"), ("small", "small-1")]))
    assert value(metrics, "switchyard_attempts_total", pool="small", replica="small-1") == 1
    assert "10.0.0.1" not in metrics.text().decode()
    here.clear()
    assert not [labels for (name, labels) in samples(metrics) if name == "switchyard_attempts_total"]
    assert value(metrics, "switchyard_output_tokens_total", pool="small") == 12, "what belongs to the pool stays"


def test_gauges_are_read_at_the_scrape():
    gauges = [
        ("switchyard_in_flight", ("small", "small-1"), 3),
        ("switchyard_queued", ("small",), 2),
        ("switchyard_sessions", (), 7),
    ]
    metrics = Metrics(lambda: gauges)
    assert value(metrics, "switchyard_in_flight", pool="small", replica="small-1") == 3
    gauges[2] = ("switchyard_sessions", (), 8)
    assert value(metrics, "switchyard_sessions") == 8


def test_every_name_is_exported_with_its_help_and_only_with_its_labels():
    def ones(table):
        return lambda: [(name, tuple("x" for _ in labels), 1.0) for name, (_, labels) in table.items()]

    metrics = Metrics(ones(GAUGES), ones(ASKED))
    for how in (
        {},
        {"error": "x", "decision": {**DECISION, "degraded": True}},
        {"output_tokens": None},
        {"died": [("x", "x")]},
    ):
        metrics.note(record_of(**how))
    families = {f.name: f for f in text_string_to_metric_families(metrics.text().decode())}
    assert set(families) == set(LABELS)
    for name, family in families.items():
        assert family.documentation.endswith(".")
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == LABELS[name]


def test_names_are_snake_case_with_units():
    for name in LABELS:
        assert name.startswith("switchyard_")
        assert name == name.lower()
    assert all(name.endswith("_seconds") for name in HISTOGRAMS)
    assert all(bounds == tuple(sorted(bounds)) for _, _, bounds in HISTOGRAMS.values())


def test_a_label_value_from_a_policy_is_escaped():
    metrics = Metrics(no_gauges)
    metrics.note(record_of(pool='p"\\\n'))
    assert value(metrics, "switchyard_input_tokens_total", pool='p"\\\n') == 40
