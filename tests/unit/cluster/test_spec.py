"""Cluster files are read as strictly as policies, and everything that is wrong is said at once."""

from pathlib import Path

import pytest

from switchyard.cluster.spec import Cluster, ClusterError, Pool, parse_cluster

EXAMPLE = Path(__file__).parents[3] / "deploy" / "cluster.yaml"
SMALL = """\
version: 1
node_defaults: {memory_gb: 64, hca: [a]}
nodes:
  - {name: s1, mgmt: 10.0.0.1}
  - {name: s2, mgmt: 10.0.0.2, memory_gb: 128, hca: []}
pools:
  small: {model: m/m, image: vllm, replicas: 1}
"""


def read(text: str) -> Cluster:
    return parse_cluster(text.encode(), environment={}).value


def problems(text: str) -> list[str]:
    with pytest.raises(ClusterError) as caught:
        read(text)
    return [str(p).removeprefix("cluster.yaml:") for p in caught.value.problems]


def test_a_node_has_the_defaults_filled_in_and_its_own_word_wins():
    first, second = read(SMALL).nodes
    assert (first.memory_gb, first.hca) == (64, ("a",))
    assert (second.memory_gb, second.hca) == (128, ())
    assert read(SMALL).node("s2") == second
    with pytest.raises(KeyError):
        read(SMALL).node("s3")


def test_visible_memory_is_as_measured_or_said_else_assumed():
    first, second = read(SMALL).nodes
    assert round(first.shows_gib, 1) == 56.6  # 64 * 10^9 bytes less 5 %
    assert second.shows_gib == 121.7
    assert round(second.usable_gib, 1) == 97.4
    assert read(SMALL.replace("memory_gb: 64", "memory_gb: 64, visible_gib: 61.4")).nodes[0].shows_gib == 61.4


def test_everything_that_is_wrong_is_said_at_once_with_its_line():
    text = (
        SMALL.replace("memory_gb: 64", "memory_gb: 64GB")
        .replace("mgmt: 10.0.0.2", "mgmt: 10.0.0.1, stat: lent")
        .replace("replicas: 1", "replicas: 1, placement: [[s9]], engine: {max-model-len: 1}, port: 70000")
    )
    assert problems(text) == [
        "2:17: node_defaults.memory_gb: a number is expected, not 64GB (the unit is in the key: write the number alone)",
        "5:16: nodes[1].mgmt: nodes[0] has 10.0.0.1 already (each node has its own; of one machine with several kinds of "
        "GPUs, each says which are its own: gpu_ids)",
        "5:32: nodes[1].stat: unknown key stat (did you mean state?)",
        "7:62: pools.small.placement[0][0]: there is no node s9 (known: s1, s2)",
        "7:77: pools.small.engine.max-model-len: the name of a flag with _ for -, like max_model_len, is expected",
        "7:96: pools.small.port: must be less than or equal to 65535, not 70000",
    ]


@pytest.mark.parametrize(
    ("was", "now", "expected"),
    [
        ("10.0.0.1}", "10.0.0.1, state: lent}", "a lent node needs owner and until"),
        ("10.0.0.1}", "10.0.0.1, owner: anna}", "owner and until belong to a lent node: state is active"),
        (
            "10.0.0.1}",
            "10.0.0.1, state: lent, owner: anna, until: '2026-12-01'}",
            "a moment with its time zone is expected, like '2026-12-01T18:00:00+01:00'",
        ),
        (
            "10.0.0.1}",
            "10.0.0.1, state: lent, owner: anna, until: 2026-12-01T18:00:00+01:00}",
            "YAML reads 2026-12-01T18:00:00+01:00 as a date: quote it",
        ),
        ("name: s1", "name: s1; reboot", "a name of small letters, digits and -, at most 40, is expected"),
        ("image: vllm", "image: $(reboot)", "an image, like registry/name:tag or name@sha256:..., is expected"),
        ("image: vllm", "image: vllm, path: '/a b'", "a path without spaces and quotes is expected"),
        ("10.0.0.1}", "10.0.0.1, models_dir: models}", "a path from the root, like /srv/models"),  # Compose: a volume's name
        ("small:", "27b:", "a name of small letters, digits and -, a letter first"),  # no Service may be called that
        ("small:", "gateway:", "gateway is a name of files that are rendered; so are gateway, namespace, node, policy, redis"),
        ("10.0.0.1}", "10.0.0.1, gpus: 2, gpu_ids: [1, 1]}", "nodes[0].gpu_ids: a GPU is named twice"),
        ("image: vllm", "image: vllm, env: {A: \"b\\nc\"}", "one line of text is expected"),
        ("version: 1", "version: 1\ngateway: {node: s}", "there is no node s (did you mean s2?)"),
        ("version: 1", "version: 1\nfabric: {kind: direct, pairs: [[s1, s3]]}", "there is no node s3 (known: s1, s2)"),
        ("image: vllm", "image: vllm, checkpoint: {format: fp8}", "parameters_b and format are only of use together"),
        ("image: vllm", "image: vllm, checkpoint: {attention: hybrid, layers: 4}", "a hybrid model needs full_layers, too"),
    ],
)  # fmt: skip
def test_nonsense_is_refused(was, now, expected):
    (problem,) = problems(SMALL.replace(was, now, 1))
    assert expected in problem


def test_a_machine_with_several_kinds_of_gpus():
    text = SMALL.replace("mgmt: 10.0.0.2", "mgmt: 10.0.0.1, gpus: 2, gpu_ids: [1, 2]").replace(
        "10.0.0.1}", "10.0.0.1, gpu_ids: [0]}"
    )
    first, second = read(text).nodes
    assert (first.gpu_numbers, second.gpu_numbers) == ((0,), (1, 2))
    (problem,) = problems(text.replace("[1, 2]", "[0, 1]"))
    assert "nodes[0] has 10.0.0.1 already" in problem
    (problem,) = problems(text.replace("[1, 2]", "[1, 2, 3]"))
    assert "s2 has 2 GPUs, and gpu_ids names 3" in problem
    text = SMALL.replace("version: 1", "version: 1").replace("10.0.0.1}", "10.0.0.1, gpus: 2, gpu_ids: [0]}")
    first, second = problems(text.replace("mgmt: 10.0.0.2", "mgmt: 10.0.0.2, gpu_ids: [0, 1]"))  # both at once
    assert first.endswith("nodes[0].gpu_ids: s1 has 2 GPUs, and gpu_ids names 1 (all of them)")
    assert "nodes[1].gpu_ids: s2 has 1 GPUs, and gpu_ids names 2" in second


def test_no_surprises_of_the_parser():
    assert problems("") == ["1:1: the file is empty (start from an example in deploy/)"]
    assert problems("- a") == ["1:1: a mapping is expected at the top, with version, nodes and pools"]


def test_a_problem_found_later_has_its_place():
    loaded = parse_cluster(SMALL.encode())
    assert str(loaded.problem(("nodes", 1, "mgmt"), "what")) == "cluster.yaml:5:16: nodes[1].mgmt: what"
    assert str(loaded.problem(("pools", "small", "port"), "what", "why")).startswith("cluster.yaml:7:3: pools.small.port: what")


def test_tensor_parallel_is_nodes_times_gpus():
    assert Pool(model="m", image="i", replicas=1, nodes_per_replica=2, gpus_per_node=4).tensor_parallel == 8


def test_the_reference_cluster():
    cluster = parse_cluster(EXAMPLE.read_bytes()).value
    assert [p.replicas * p.nodes_per_replica for p in cluster.pools.values()] == [6, 2]
    assert all(n.fabric_ifname for n in cluster.nodes)
