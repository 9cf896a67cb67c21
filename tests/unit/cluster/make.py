"""Clusters for tests: the shipped examples, small ones from text, and random ones."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from switchyard.cluster.check import Report, check
from switchyard.cluster.spec import Cluster, parse_cluster
from switchyard.config.load import parse_policy

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
EXAMPLES = sorted(path.stem for path in DEPLOY.glob("*.yaml"))
NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)

SPARKS = """\
version: 1
fabric: {kind: switch}
node_defaults: {memory_gb: 128, fabric_ifname: eth1, hca: [a, b]}
nodes:
  - {name: s1, mgmt: 10.0.0.1, fabric: 192.168.0.1}
  - {name: s2, mgmt: 10.0.0.2, fabric: 192.168.0.2}
  - {name: s3, mgmt: 10.0.0.3, fabric: 192.168.0.3}
  - {name: s4, mgmt: 10.0.0.4, fabric: 192.168.0.4}
pools:
  big:
    model: org/big
    image: vllm@sha256:1
    replicas: 1
    nodes_per_replica: 2
    placement: [[s1, s2]]
    engine: {max_model_len: 65536, kv_cache_memory_gb: 20}
    checkpoint: {size_gib: 126}
  small:
    model: org/small
    image: vllm@sha256:2
    replicas: 2
    placement: [[s3], [s4]]
    engine: {kv_cache_memory_gb: 10}
    checkpoint: {size_gib: 5}
"""
"""Four nodes behind a switch, without anything to complain about."""


def cluster_of(text: str) -> Cluster:
    return parse_cluster(text.encode(), environment={}).value


def example(name: str) -> Cluster:
    return parse_cluster((DEPLOY / f"{name}.yaml").read_bytes(), environment={}).value


def example_policy(cluster: Cluster) -> tuple[str, Any] | tuple[None, None]:
    """Text and model of the policy that an example names."""
    if cluster.gateway.policy is None:
        return None, None
    raw = (DEPLOY / cluster.gateway.policy).read_bytes()
    return raw.decode(), parse_policy(raw)


def report_of(text: str) -> Report:
    return check(cluster_of(text), NOW)


def said(report: Report, severity: str | None = None) -> list[str]:
    """`path: message (hint)` of the findings."""
    kinds = [f for f in report.findings if severity in {None, f.severity}]
    return [f"{'.'.join(map(str, f.path))}: {f.message}" + (f" ({f.hint})" if f.hint else "") for f in kinds]


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Clusters of all sorts, many of which don't fit; all pools are to be solved."""
    kind = draw(st.sampled_from(["none", "direct", "ring", "switch"]))
    count = draw(st.integers(1, 8))
    size = st.sampled_from([24.0, 64.0, 128.0])
    nodes = [
        {
            "name": f"s{i}",
            "mgmt": f"10.0.0.{i}",
            "fabric": f"192.168.0.{i}",
            "fabric_ifname": draw(st.sampled_from(["eth1", "eth2"])),
            "hca": ["a", "b"],
            "memory_gb": draw(size),
            "gpus": draw(st.sampled_from([1, 1, 1, 2])),
            "arch": draw(st.sampled_from(["arm64", "arm64", "amd64"])),
            **({"state": "cordoned"} if draw(st.integers(0, 5)) == 0 else {}),
        }
        for i in range(1, count + 1)
    ]
    wide = {"none": [1], "direct": [1, 2], "ring": [1, count], "switch": [1, 2, 4]}[kind]
    pools = {
        name: {
            "model": f"org/{name}",
            "image": f"vllm@sha256:{name}",
            "replicas": draw(st.integers(1, 3)),
            "nodes_per_replica": draw(st.sampled_from(wide)),
            "gpus_per_node": draw(st.sampled_from([1, 1, 2])),
            "port": 8000 + 10 * number,
            "master_port": 29500 + number,
            "min_replicas": 0,
            "engine": {"kv_cache_memory_gb": draw(st.floats(1, 40)), "max_num_seqs": draw(st.integers(1, 64))},
            "checkpoint": {"size_gib": draw(st.floats(1, 300))},
            **({"api_key_env": "ENGINE_KEY"} if draw(st.booleans()) else {}),
        }
        for number, name in enumerate(["big", "mid", "small"][: draw(st.integers(1, 3))])
    }
    return Cluster.model_validate({"version": 1, "fabric": {"kind": kind}, "nodes": nodes, "pools": pools})
