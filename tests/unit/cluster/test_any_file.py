"""Whatever stands in a file, it becomes a cluster that can be looked at, planned and rendered, or clear problems."""

import copy
import json
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from switchyard.cluster.check import check
from switchyard.cluster.picture import draw
from switchyard.cluster.plan import make_plan
from switchyard.cluster.render.bundle import MAKERS, render
from switchyard.cluster.spec import Cluster, ClusterError, parse_cluster
from unit.cluster.make import DEPLOY, EXAMPLES, NOW, SPARKS
from unit.cluster.render.sources import source_of

DOCUMENTS = [yaml.safe_load(SPARKS), *(yaml.safe_load((DEPLOY / f"{name}.yaml").read_text()) for name in EXAMPLES)]
WORDS = ["s1", "s2", "switch", "ring", "direct", "lent", "hybrid", "", "x y", "2026-12-01T00:00:00+00:00"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 300) | st.floats(-1, 300) | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "mgmt", "a"]), inner, max_size=2),
    max_leaves=5,
)


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value of a document."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(path for key, inner in entries for path in paths(inner, (*at, key)))]


@st.composite
def damaged(draw: st.DrawFn) -> Any:
    """A good document with up to three values replaced or taken away."""
    document = copy.deepcopy(draw(st.sampled_from(DOCUMENTS)))
    for _ in range(draw(st.integers(0, 3))):
        *way, last = draw(st.sampled_from([p for p in paths(document) if p]))
        block = document
        for step in way:
            block = block[step]
        if draw(st.booleans()):
            block[last] = draw(VALUES)
        else:
            del block[last]
    return document


@given(damaged())
@settings(max_examples=300)
def test_any_file_is_answered(document: Any):
    try:
        cluster = parse_cluster(json.dumps(document).encode(), environment={}).value
    except ClusterError as error:
        problems = error.problems
    else:
        look_at(cluster)
        problems = []
    assert all(problem.line >= 1 and problem.message for problem in problems)


def look_at(cluster: Cluster) -> None:
    """Everything that commands do with a cluster."""
    report = check(cluster, NOW)
    assert all(finding.message for finding in report.findings)
    draw(make_plan(cluster))
    draw(make_plan(cluster, ",".join(f"{name}={1 / len(cluster.pools)!r}" for name in cluster.pools)))
    if not report.errors:
        source = source_of(cluster)
        for target in MAKERS:
            assert render(target, source)
