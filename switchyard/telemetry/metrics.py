"""Counters and histograms, and their Prometheus text.

On the request path a metric is an addition to a dict; names, help and text form are made when somebody scrapes.
Label values come from a small fixed set: names in the policy, and words of this code.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from switchyard.errors import GatewayError
from switchyard.telemetry.record import Record

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
SHORT_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1)

COUNTERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "switchyard_requests": ("Requests that have ended.", ("route", "pool", "protocol", "status", "outcome")),
    "switchyard_errors": ("Answers of the gateway's own making, by code.", ("code",)),
    "switchyard_limited": ("Requests over a limit of their API key, by key and limit.", ("key", "limit")),
    "switchyard_decisions": (
        "Decisions by what settled them; `classifier` is empty where no score was made.",
        ("route", "pool", "kind", "classifier"),
    ),
    "switchyard_classifier_failures": (
        "Requests decided while a classifier was down, late or talked nonsense.",
        ("route",),
    ),
    "switchyard_attempts": ("Tries against a replica.", ("pool", "replica")),
    "switchyard_moved_requests": (
        "Requests whose replica died before there was anything of an answer, and that went to another.",
        ("pool",),
    ),
    "switchyard_affinity": (
        "Requests of pools that balance by prefix: on the replica of the conversation's last request (hit), moved to "
        "another (repin), first seen (miss).",
        ("pool", "result"),
    ),
    "switchyard_input_tokens": ("Prompt tokens, as the engines counted them.", ("pool",)),
    "switchyard_cached_tokens": (
        "Prompt tokens that came from a prefix cache, as the engines counted them.",
        ("pool",),
    ),
    "switchyard_output_tokens": ("Output tokens, as the engines counted them.", ("pool",)),
    "switchyard_policy_reloads": ("New policies while running, by result: good or refused.", ("result",)),
    "switchyard_escalations": ("Answers that a larger pool took over since a tool call was bad.", ("route",)),
    "switchyard_usage_missing": ("Good answers in which the engine did not say how many tokens it used.", ("pool",)),
}
HISTOGRAMS: dict[str, tuple[str, tuple[str, ...], tuple[float, ...]]] = {
    "switchyard_request_seconds": ("Whole request, from its last byte to the answer's last byte.", ("pool",), SECONDS),
    "switchyard_first_byte_seconds": ("From sending to the engine's first byte.", ("pool",), SECONDS),
    "switchyard_first_token_seconds": (
        "Streams: from sending to the first reasoning, text or tool piece.",
        ("pool",),
        SECONDS,
    ),
    "switchyard_queue_seconds": ("Wait for a place on a replica.", ("pool",), SECONDS),
    "switchyard_decide_seconds": (
        "From the request's last byte to the decision, classifiers included.",
        (),
        SHORT_SECONDS,
    ),
    "switchyard_overhead_seconds": ("The gateway's own time before sending: all but the queue.", (), SHORT_SECONDS),
}
ASKED: dict[str, tuple[str, tuple[str, ...]]] = {
    "switchyard_classifier_questions": (
        "Classifiers that ask somebody: questions asked, answered, found in memory (cached), joined to a running one.",
        ("classifier", "result"),
    ),
    "switchyard_classifier_abstentions": (
        "Requests that a classifier gave no score, by reason.",
        ("classifier", "reason"),
    ),
    "switchyard_classifier_seconds": ("Time that answered questions took together.", ("classifier",)),
    "switchyard_shadows": (
        "Shadows by how they ended: same, different, not_compared, left (somebody came), busy (none began), failed.",
        ("route", "small", "big", "result"),
    ),
    "switchyard_shadows_compared": (
        "Answers of shadows that could be compared, by kind (tool_calls, text) and result (same, different).",
        ("route", "small", "big", "kind", "result"),
    ),
    "switchyard_shadow_tokens": (
        "What shadows cost: tokens, as the big pool's engines counted them.",
        ("route", "small", "big", "kind"),
    ),
    "switchyard_shadow_seconds": ("What shadows cost: time on the big pool's engines.", ("route", "small", "big")),
    "switchyard_state_questions": (
        "Questions to Redis: answered in time, late, or not asked since it is down.",
        ("result",),
    ),
    "switchyard_classifier_tokens": ("Tokens of a judge's answers, as its engine counted them.", ("classifier", "kind")),
}
GAUGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "switchyard_in_flight": ("Requests on a replica, to the end of the body.", ("pool", "replica")),
    "switchyard_tokens_in_flight": (
        "Estimated tokens of those requests, prompts and wanted answers.",
        ("pool", "replica"),
    ),
    "switchyard_foreign_requests": (
        "Requests on the engine that are not this gateway's, by its own figures.",
        ("pool", "replica"),
    ),
    "switchyard_replica_state": (
        "1 for the state that the replica is in: unknown, ready, loading, down, ejected or draining.",
        ("pool", "replica", "state"),
    ),
    "switchyard_queued": ("Requests that wait for a pool.", ("pool",)),
    "switchyard_replica_up": ("1 when requests are sent to the replica.", ("pool", "replica")),
    "switchyard_discovery_up": (
        "1 when the pool's replicas could be read from where the policy says (dns:// or file://), at the last look.",
        ("pool",),
    ),
    "switchyard_share": ("Share of the scored decisions that the policy's `share` looks after.", ("route", "pool")),
    "switchyard_state_up": ("1 while there is a connection to Redis; not there with `state: memory`.", ()),
    "switchyard_sessions": ("Sessions that are remembered.", ()),
}

Labels = tuple[str, ...]
Reading = Iterable[tuple[str, Labels, float]]


class _Histogram:
    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class _Histograms(dict[Labels, _Histogram]):
    """Those of one name, by their label values; each is made when its first value comes."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        super().__init__()
        self._bounds = bounds

    def __missing__(self, labels: Labels) -> _Histogram:
        histogram = self[labels] = _Histogram(self._bounds)
        return histogram


class Metrics(Collector):
    """All metrics of one process.

    Args:
        read_gauges: called at a scrape; gives name, label values and value of each gauge.
        read_counters: the same for counters that others keep: of questions to classifiers and to Redis, and of shadows.
        has_replica: whether a pool has a replica of that name; series of one that has gone are dropped, for where replicas
            are found by DNS each of them has another name.
    """

    def __init__(
        self,
        read_gauges: Callable[[], Reading],
        read_counters: Callable[[], Reading] = lambda: (),
        has_replica: Callable[[str, str], bool] = lambda pool, replica: True,
    ) -> None:
        self._read_gauges = read_gauges
        self._read_counters = read_counters
        self._has_replica = has_replica
        self._counters: dict[str, defaultdict[Labels, float]] = {name: defaultdict(float) for name in COUNTERS}
        self._histograms = {name: _Histograms(bounds) for name, (_, _, bounds) in HISTOGRAMS.items()}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def note(self, record: Record) -> None:
        """Count a request that has ended; see `record.Listener`."""
        counters, histograms = self._counters, self._histograms
        pool = record.pool
        status = f"{record.status // 100}xx" if record.status else "none"
        counters["switchyard_requests"][(record.route, pool, record.protocol, status, record.outcome)] += 1
        if record.error:
            counters["switchyard_errors"][(record.error,)] += 1
        if record.limit:
            counters["switchyard_limited"][(record.key_name, record.limit)] += 1
        if record.escalation:
            counters["switchyard_escalations"][(record.route,)] += 1
        if record.decision:
            decision = record.decision
            settled = (record.route, decision["pool"], decision["kind"], decision["classifier"])
            counters["switchyard_decisions"][settled] += 1
            if decision["degraded"]:
                counters["switchyard_classifier_failures"][(record.route,)] += 1
            histograms["switchyard_decide_seconds"][()].add(record.decided_s - record.began_s)
        if not pool:
            return
        for place in record.attempts:
            counters["switchyard_attempts"][place] += 1
        for dead_in, _ in record.died:
            counters["switchyard_moved_requests"][(dead_in,)] += 1
        if record.affinity:
            counters["switchyard_affinity"][(pool, record.affinity)] += 1
        if record.input_tokens is not None:
            counters["switchyard_input_tokens"][(pool,)] += record.input_tokens
        if record.cached_tokens is not None:
            counters["switchyard_cached_tokens"][(pool,)] += record.cached_tokens
        if record.output_tokens is not None:
            counters["switchyard_output_tokens"][(pool,)] += record.output_tokens
        elif record.outcome == "ok":
            counters["switchyard_usage_missing"][(pool,)] += 1
        histograms["switchyard_request_seconds"][(pool,)].add(record.ended_s - record.began_s)
        if record.sent_s:
            queued = record.admitted_s - record.decided_s
            histograms["switchyard_queue_seconds"][(pool,)].add(queued)
            before_s = (record.first_sent_s or record.sent_s) - record.began_s  # a later attempt waited for an engine
            histograms["switchyard_overhead_seconds"][()].add(max(0.0, before_s - queued))
        if record.first_byte_s:
            histograms["switchyard_first_byte_seconds"][(pool,)].add(record.first_byte_s - record.sent_s)
        if record.first_token_s:
            histograms["switchyard_first_token_seconds"][(pool,)].add(record.first_token_s - record.sent_s)

    def count_refusal(self, error: GatewayError) -> None:
        """A request was refused before anything was known about it but its head."""
        self._counters["switchyard_errors"][(error.code,)] += 1

    def count_reload(self, good: bool) -> None:
        """A new policy was put in force, or refused."""
        self._counters["switchyard_policy_reloads"][("good" if good else "refused",)] += 1

    def collect(self) -> Iterator[Metric]:
        """For prometheus_client."""
        tries = self._counters["switchyard_attempts"]
        for place in [place for place in tries if not self._has_replica(*place)]:
            del tries[place]
        for name, (help_, labels) in COUNTERS.items():
            counter = CounterMetricFamily(name, help_, labels=labels)
            for values, amount in list(self._counters[name].items()):
                counter.add_metric(values, amount)
            yield counter
        for name, (help_, labels, bounds) in HISTOGRAMS.items():
            histogram = HistogramMetricFamily(name, help_, labels=labels)
            for values, found in list(self._histograms[name].items()):
                steps = zip([*map(str, bounds), "+Inf"], map(float, accumulate(found.counts)), strict=True)
                histogram.add_metric(values, list(steps), found.sum)
            yield histogram
        asked = {name: CounterMetricFamily(name, help_, labels=labels) for name, (help_, labels) in ASKED.items()}
        for name, values, value in self._read_counters():
            asked[name].add_metric(values, value)
        yield from asked.values()
        gauges = {name: GaugeMetricFamily(name, help_, labels=labels) for name, (help_, labels) in GAUGES.items()}
        for name, values, value in self._read_gauges():
            gauges[name].add_metric(values, value)
        yield from gauges.values()

    def text(self) -> bytes:
        """The Prometheus exposition."""
        return generate_latest(self._registry)
