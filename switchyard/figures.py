"""What a scrape of `/metrics` reads from those who keep the figures themselves: pools, classifiers, Redis, shadows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from switchyard.config.classifier import Classifier as ClassifierBlock
from switchyard.config.classifier import EmbeddedClassifier, ModelClassifier
from switchyard.pools.discovery import Discovery
from switchyard.pools.pool import Pool
from switchyard.routing.classify.base import Classifier
from switchyard.routing.classify.stats import AskStats
from switchyard.shadowing import Shadowing
from switchyard.telemetry.metrics import Labels

if TYPE_CHECKING:
    from switchyard.state.link import Link

Figures = Iterator[tuple[str, Labels, float]]
"""Name of a metric, values of its labels, value."""


def read_pools(pools: Iterable[Pool], discovery: Discovery) -> Figures:
    """Gauges of pools and replicas."""
    for pool in pools:
        yield "switchyard_queued", (pool.name,), pool.queued
        if pool.settings.source is not None:
            yield "switchyard_discovery_up", (pool.name,), float(not discovery.problem_of(pool.name))
        for replica in pool.replicas:
            place = (pool.name, replica.label)
            yield "switchyard_in_flight", place, replica.in_flight
            yield "switchyard_tokens_in_flight", place, replica.tokens
            yield "switchyard_foreign_requests", place, replica.foreign
            yield "switchyard_replica_state", (*place, replica.state), 1.0
            yield "switchyard_replica_up", place, float(replica.healthy)


def read_classifiers(made: Mapping[ClassifierBlock, Classifier]) -> Figures:
    """Counters of abstentions and of questions to models; two blocks may ask the same pool, and then add up."""
    totals: dict[tuple[str, Labels], float] = {}
    for block, classifier in made.items():
        stats = getattr(classifier, "stats", None)
        if not isinstance(stats, AskStats):
            continue
        by = f"model {block.pool}" if isinstance(block, ModelClassifier) else block.type
        found: list[tuple[str, Labels, float]] = [
            ("switchyard_classifier_abstentions", (by, why), count) for why, count in stats.abstained.items()
        ]
        results = {"asked": stats.asked, "answered": stats.answered, "cached": stats.cached, "joined": stats.joined}
        if not isinstance(block, EmbeddedClassifier):  # that one asks nobody
            found += [
                *(("switchyard_classifier_questions", (by, result), value) for result, value in results.items()),
                ("switchyard_classifier_seconds", (by,), stats.seconds),
                ("switchyard_classifier_tokens", (by, "input"), stats.input_tokens),
                ("switchyard_classifier_tokens", (by, "output"), stats.output_tokens),
            ]
        for name, labels, value in found:
            totals[(name, labels)] = totals.get((name, labels), 0.0) + value
    yield from ((name, labels, value) for (name, labels), value in totals.items())


def read_redis(link: Link) -> Figures:
    """Counters of questions to Redis."""
    for result, count in {"answered": link.answered, **link.missed}.items():
        yield "switchyard_state_questions", (result,), count


def read_shadows(shadowing: Shadowing) -> Figures:
    """Counters of shadows."""
    for place, found in shadowing.found.items():
        yield from (("switchyard_shadows", (*place, result), count) for result, count in found.results.items())
        yield from (("switchyard_shadow_tokens", (*place, kind), count) for kind, count in found.tokens.items())
        yield "switchyard_shadow_seconds", place, found.seconds
        for kind, count in found.compared.items():
            yield "switchyard_shadows_compared", (*place, kind, "same"), found.same[kind]
            yield "switchyard_shadows_compared", (*place, kind, "different"), count - found.same[kind]
