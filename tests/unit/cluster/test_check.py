"""What `check` says: a good cluster changed in one place, and what is found. Nothing else may be found with it."""

import pytest

from switchyard.cluster.check import check
from switchyard.config.load import parse_policy
from unit.cluster.make import EXAMPLES, NOW, SPARKS, cluster_of, example, example_policy, report_of, said


def test_nothing_to_complain_about():
    assert said(report_of(SPARKS)) == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_shipped_examples_have_no_errors(name):
    cluster = example(name)
    _, policy = example_policy(cluster)
    report = check(cluster, NOW, policy)
    assert said(report, "error") == []
    assert all(verdict.fits for verdict in report.verdicts)


S2 = "{name: s2, mgmt: 10.0.0.2, fabric: 192.168.0.2"
LENT = ", state: lent, owner: anna, until: '2026-12-01T00:00:00+00:00'"
ERRORS = [
    # fabric
    ("kind: switch", "kind: none", "pools.big.nodes_per_replica: 2 nodes need a network between them, and fabric.kind is none"),
    ("kind: switch", "kind: ring", "pools.big.nodes_per_replica: a ring serves one replica over all its 4 nodes"),
    ("kind: switch", "kind: direct, pairs: [[s1, s3], [s2, s4]]", "s1 and s2 are not cabled to each other (pairs: s1-s3"),
    ("kind: switch", "kind: direct, pairs: [[s1, s2], [s2, s3]]", "fabric.pairs: s2 is in more than one pair"),
    ("kind: switch", "kind: switch, pairs: [[s1, s2]]", "fabric.pairs: pairs belong to kind: direct"),
    (", fabric: 192.168.0.2", "", "nodes.1: fabric missing: replicas over several nodes need them"),
    ("fabric_ifname: eth1, hca: [a, b]", "usable: 0.8", "nodes.0: fabric_ifname missing: replicas"),
    # placement
    ("[[s3], [s4]]", "[[s3]]", "pools.small.placement: 1 groups of nodes for 2 replicas"),
    ("[[s1, s2]]", "[[s1]]", "pools.big.placement.0: 1 nodes where nodes_per_replica says 2"),
    ("[[s1, s2]]", "[[s1, s1]]", "pools.big.placement.0: a node is named twice"),
    ("placement: [[s3], [s4]]", "placement: [[s3], [s4]]\n    gpus_per_node: 2", "s3 has 1 GPU, a rank takes 2"),
    (S2, S2 + LENT, "pools.big.placement.0: half of big-1 is lent (s2): s1 can't serve alone (lend whole replicas)"),
    (S2, S2 + ", state: cordoned", "pools.big.min_replicas: 0 of 1 replicas run"),
    # ports
    ("[[s3], [s4]]", "[[s3], [s1]]", "pools.small.port: big-1 and small-2 both want port 8000 on s1"),
    ("nodes_per_replica: 2\n", "nodes_per_replica: 2\n    master_port: 8000\n", "the engine itself and big-1 both"),
    ("pools:\n", "gateway: {port: 8000}\npools:\n", "pools.big.port: the gateway and big-1 both want port 8000 on s1"),
    # images and machines
    (S2, S2 + ", image: other", "pools.big.placement.0: big-1 would run vllm@sha256:1 and other (all ranks need one image)"),
    (S2, S2 + ", arch: amd64", "pools.big.placement.0: big-1 would run on arm64 and amd64"),
    # engines
    ("max_model_len: 65536", "tensor_parallel_size: 4", "tensor_parallel_size is set by Switchyard"),
    ("max_model_len: 65536", "api_key: abc", "api_key is set by Switchyard (it follows from pools.NAME.api_key_env)"),
    ("max_model_len: 65536", "kv_cache_memory_bytes: 5", "it follows from kv_cache_memory_gb, in GiB"),
    ("kv_cache_memory_gb: 20", "kv_cache_memory_gb: much", "pools.big.engine.kv_cache_memory_gb: a number of GiB is expected"),
    ("size_gib: 126", "size_gib: 126, context_tokens: 32768", "max_model_len: 65536 is more than the model's context of 32768"),
    ("size_gib: 126", "size_gib: 126, heads: 25", "25 attention heads can't be split over 2 ranks"),
    ("size_gib: 126", "size_gib: 126, kv_heads: 3", "3 KV heads can't be split over 2 ranks (one must divide the other)"),
    ("image: vllm@sha256:2", "image: vllm@sha256:2\n    env: {HF_TOKEN: abc}", "small.env.HF_TOKEN: a secret?"),
    # memory
    ("size_gib: 126", "size_gib: 160", "nodes.0: big-1 106.0 = 106.0 GiB, and 0.80 x 121.7 GiB = 97.4 GiB may be taken"),
    ("    placement: [[s1, s2]]\n", "", None),
    ("size_gib: 126", "size_gib: 126, layers: 900, kv_heads: 8, head_dim: 128",
     "one conversation of 65,536 tokens doesn't fit a KV cache of 20.0 GiB a rank (1,843,200 bytes a token)"),
    # gateway
    ("pools:\n", "gateway: {node: s2}\npools:\n", None),
]  # fmt: skip


@pytest.mark.parametrize(("was", "now", "expected"), ERRORS)
def test_errors(was, now, expected):
    assert was in SPARKS
    errors = said(report_of(SPARKS.replace(was, now, 1)), "error")
    if expected is None:
        assert errors == []
    else:
        assert any(expected in error for error in errors), errors


WARNINGS = [
    (", hca: [a, b]", "", "nodes.0: hca missing: ranks will talk over TCP, which is slow"),
    ("kind: switch", "kind: switch, collectives: rocenante", "stock vLLM doesn't call RoCEnante: vllm@sha256:1 will use NCCL"),
    ("hca: [a, b]", "hca: [a]", "nodes.0.hca: 1 device: a Spark's port carries 200 Gb/s over both of its two"),
    ("memory_gb: 128", "memory_gb: 128, usable: 0.9", "engines may take 109.5 of 121.7 GiB that the CPU shares"),
    ("fabric: 192.168.0.4", "fabric: 10.0.0.4", "nodes.3.fabric: the same address as mgmt"),
    ("vllm@sha256:1", "vllm:v1", "pools.big.image: vllm:v1 is a tag: two nodes may hold different images under it"),
    ("max_model_len: 65536", "max_num_seq: 6", "it is passed on as --max-num-seq (did you mean max_num_seqs?)"),
    ("kv_cache_memory_gb: 20", "gpu_memory_utilization: 0.7", "no hard cap on memory that the CPU shares"),
    ("max_model_len: 65536", "gpu_memory_utilization: 0.7", "it only says how much has to be free at the start (leave it out"),
    ("size_gib: 126", "size_gib: 126, kv_heads: 1", "1 KV heads on 2 ranks: each is kept 2 times, so the KV cache holds 50%"),
    ("checkpoint: {size_gib: 5}", "min_replicas: 1", "how large the weights are is not said: memory can't be checked"),
    ("192.168.0.4}", "192.168.0.4" + LENT + "}", "pools.small.placement.1: small-2 does not run: s4 is lent"),
    ("192.168.0.4}", "192.168.0.4, state: cordoned}", "pools.small.placement.1: small-2 does not run: s4 is cordoned"),
    ("192.168.0.4}", "192.168.0.4" + LENT.replace("12-01", "11-01") + "}", "nodes.3.until: the lease of anna is over"),
]  # fmt: skip


@pytest.mark.parametrize(("was", "now", "expected"), WARNINGS)
def test_warnings(was, now, expected):
    assert was in SPARKS
    report = report_of(SPARKS.replace(was, now, 1))
    assert said(report, "error") == []
    assert any(expected in warning for warning in said(report, "warning")), said(report)


def test_all_at_once():
    text = SPARKS.replace("size_gib: 126", "size_gib: 160, heads: 25").replace("kind: switch", "kind: none")
    assert len(said(report_of(text), "error")) >= 4


def test_a_ring_needs_three_nodes_and_no_gid_index():
    two = "\n".join(line for line in SPARKS.splitlines() if "name: s3" not in line and "name: s4" not in line)
    two = two.split("  small:")[0].replace("kind: switch", "kind: ring, gid_index: 5")
    report = report_of(two)
    assert any("a ring has at least three nodes, not 2" in e for e in said(report, "error"))
    assert any("a ring is run without a GID index" in w for w in said(report, "warning"))


def test_on_a_ring_ranks_meet_where_all_reach_all():
    """A cable joins neighbours: with the address of one, the ranks of four nodes would never find each other."""
    ring = SPARKS.replace("kind: switch", "kind: ring").replace("nodes_per_replica: 2", "nodes_per_replica: 4")
    ring = ring.replace("[[s1, s2]]", "[[s1, s2, s3, s4]]").replace("[[s3], [s4]]", "[[s3], [s4]]\n    port: 8002")
    warnings = said(report_of(ring), "warning")
    assert sum("a cable of the ring reaches the neighbours only" in w for w in warnings) == 4
    assert sum("2 of 4 devices: on a ring a Spark needs those of both" in w for w in warnings) == 4
    met = ring.replace("192.168.0.", "10.0.0.").replace("hca: [a, b]", "hca: [a, b, c, d]")
    assert [f for f in said(report_of(met)) if "share a GPU" not in f] == []


def test_rocenante_on_a_ring_of_more_than_two():
    text = SPARKS.replace("kind: switch", "kind: ring, collectives: rocenante").replace(
        "nodes_per_replica: 2", "nodes_per_replica: 4"
    )
    text = text.replace("[[s1, s2]]", "[[s1, s2, s3, s4]]").replace(
        "vllm@sha256:1", "vllm@sha256:1\n    image_has: [rocenante]"
    )
    text = text.replace("[[s3], [s4]]", "[[s3], [s4]]\n    port: 8002")
    assert said(report_of(text), "error") == ["fabric.collectives: RoCEnante on more than two nodes needs a switch (big has 4)"]


def test_direct_cables_join_two():
    text = SPARKS.replace("kind: switch", "kind: direct").replace("nodes_per_replica: 2", "nodes_per_replica: 4")
    text = text.replace("[[s1, s2]]", "[[s1, s2, s3, s4]]").replace("[[s3], [s4]]", "[[s3], [s4]]\n    port: 8002")
    assert any("4 nodes can't be cabled directly: a cable joins two" in e for e in said(report_of(text), "error"))


def test_two_ranks_on_a_gpu_are_added_up():
    text = SPARKS.replace("[[s3], [s4]]", "[[s3], [s3]]")
    report = report_of(text)
    assert said(report, "error") == []
    assert [r.shift for r in report.layout.of("small")] == [0, 1]  # each has its own port
    assert any("small-1 and small-2 share a GPU" in w for w in said(report, "warning"))
    text = text.replace("kv_cache_memory_gb: 10", "kv_cache_memory_gb: 50")
    assert any("small-1 61.0 + small-2 61.0 = 122.0 GiB" in e for e in said(report_of(text), "error"))


def test_the_next_port_may_be_taken():
    text = SPARKS.replace("[[s3], [s4]]", "[[s1], [s1]]\n    port: 7999\n    checkpoint: {size_gib: 1}")
    text = text.replace("    checkpoint: {size_gib: 5}\n", "")
    assert any("big-1 and small-2 both want port 8000 on s1" in e for e in said(report_of(text), "error"))


POLICY = """\
version: 1
server: {api_keys_env: KEYS}
pools:
  big: {model: org/big, replicas: [http://h:1], limits: {in_flight: 99}}
  small: {model: org/small, replicas: [http://h:2]}
  elsewhere: {model: m, replicas: [http://h:3]}
routes:
  auto: {use: big}
"""


def test_policy_and_cluster_are_compared():
    text = SPARKS.replace("kv_cache_memory_gb: 20", "kv_cache_memory_gb: 20, max_num_seqs: 8")
    report = check(cluster_of(text), NOW, parse_policy(POLICY.encode()))
    assert said(report) == [
        "gateway.policy: pool elsewhere of the policy is not in this cluster: it stays as it is",
        "gateway.policy: pool big sends 99 requests at once to a replica that works on 8 "
        "(the others queue in the engine, where the gateway can't see them)",
        "gateway.policy: no route of the policy uses pool small (clients can only ask for it by name)",
    ]


def test_a_policy_that_nobody_could_reach_or_share():
    open_policy = parse_policy(POLICY.replace("server: {api_keys_env: KEYS}\n", "").encode())
    errors = said(check(cluster_of(SPARKS), NOW, open_policy), "error")  # the gateway would refuse to start
    assert any("without keys the gateway listens on loopback only" in e for e in errors)
    several = cluster_of(SPARKS.replace("pools:\n", "gateway: {replicas: 2}\npools:\n"))
    assert any("several gateways need a common state" in e for e in said(check(several, NOW, open_policy), "error"))


def test_a_pool_without_a_running_replica_can_not_be_routed_to():
    text = SPARKS.replace("192.168.0.2}", "192.168.0.2, state: cordoned}").replace(
        "nodes_per_replica: 2", "nodes_per_replica: 2\n    min_replicas: 0"
    )
    report = check(cluster_of(text), NOW, parse_policy(POLICY.encode()))
    assert said(report, "error") == [
        "pools.big: no replica runs, and the policy needs one (return nodes, or take the pool out)"
    ]


def test_what_has_no_place_is_said_once():
    text = SPARKS.replace("    placement: [[s1, s2]]\n", "").replace("size_gib: 126", "size_gib: 300")
    errors = said(check(cluster_of(text), NOW, parse_policy(POLICY.encode())), "error")
    assert [e for e in errors if e.startswith("pools.big: ")] == [
        "pools.big: no place found: big needs 1 x 2 nodes; 0 of 4 active nodes have room for a rank of 176.0 GiB"
    ]


def test_nowhere_for_the_gateway():
    text = SPARKS.replace("node_defaults", "gateway: {node: s4}\nnode_defaults").replace(
        "192.168.0.4}", "192.168.0.4, state: cordoned}"
    )
    assert "gateway.node: s4 is cordoned (name an active node)" in said(report_of(text), "error")
    nowhere = SPARKS.replace("}\n  - {name", ", state: cordoned}\n  - {name").replace(
        "192.168.0.4}", "192.168.0.4, state: cordoned}"
    )
    assert any("there is nowhere to run the gateway" in e for e in said(report_of(nowhere), "error"))
