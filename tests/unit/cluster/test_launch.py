"""Command lines and environments of ranks."""

import json

import pytest

from switchyard.cluster.launch import Launch, launches
from switchyard.cluster.place import lay_out
from unit.cluster.make import EXAMPLES, SPARKS, cluster_of, example


def launched(text: str) -> tuple[Launch, ...]:
    cluster = cluster_of(text)
    return launches(cluster, lay_out(cluster))


def line(launch: Launch) -> str:
    return " ".join(launch.argv)


def test_ranks_differ_in_their_place_only():
    head, worker, alone, _ = launched(SPARKS)
    assert line(head) == (
        "vllm serve org/big --host 0.0.0.0 --port 8000 --tensor-parallel-size 2 --nnodes 2 --node-rank 0 "
        "--master-addr 192.168.0.1 --master-port 29501 --max-model-len 65536 --gpu-memory-utilization 0.74 "
        "--kv-cache-memory-bytes 21474836480"
    )
    assert line(worker) == line(head).replace("--node-rank 0", "--node-rank 1").replace("29501 ", "29501 --headless ")
    assert line(alone) == (
        "vllm serve org/small --host 0.0.0.0 --port 8000 --gpu-memory-utilization 0.18 --kv-cache-memory-bytes 10737418240"
    )
    assert [x.name for x in (head, worker, alone)] == ["big-1-rank0", "big-1-rank1", "small-1"]


def test_the_flags_of_the_file():
    engine = "{a_flag: true, no_way: false, text: 'a b', num: 0.5, words: [x, 2], conf: {k: 1, t: true}, tool_call_parser: p}"
    head = launched(SPARKS.replace("{max_model_len: 65536, kv_cache_memory_gb: 20}", engine))[0]
    at = head.argv.index("--a-flag")
    assert head.argv[at:] == (
        "--a-flag", "--no-no-way", "--text", "a b", "--num", "0.5", "--words", "x", "2",
        "--conf", json.dumps({"k": 1, "t": True}), "--tool-call-parser", "p", "--enable-auto-tool-choice",
        "--gpu-memory-utilization", "0.8", "--kv-cache-memory-bytes", str(int((0.8 * 121.7 - 63 - 6) * 2**30)),
    )  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_engines_on_one_gpu_can_all_start(name):
    """Before it loads anything vLLM asks for its share of the GPU to be free, whatever its KV cache is to be."""
    cluster = example(name)
    shares: dict[tuple[str, int], float] = {}
    for launch in launches(cluster, lay_out(cluster)):
        share = float(launch.argv[launch.argv.index("--gpu-memory-utilization") + 1])
        for gpu in launch.gpus:
            shares[launch.node.mgmt, gpu] = shares.get((launch.node.mgmt, gpu), 0.0) + share
    assert all(share <= 0.94 for share in shares.values()), shares


def test_auto_tool_choice_is_not_forced():
    flags = launched(SPARKS.replace("kv_cache_memory_gb: 20", "tool_call_parser: p, enable_auto_tool_choice: false"))[0].argv
    assert "--no-enable-auto-tool-choice" in flags
    assert "--enable-auto-tool-choice" not in flags


@pytest.mark.parametrize(
    ("engine", "checkpoint", "expected"),
    [
        ("{gpu_memory_utilization: 0.5}", "{size_gib: 126}", ("--gpu-memory-utilization", "0.5")),
        ("{}", "{}", ("--gpu-memory-utilization", "0.8")),
    ],
)
def test_memory_is_left_to_vllm_where_the_file_says_so_or_too_little(engine, checkpoint, expected):
    text = SPARKS.replace("{max_model_len: 65536, kv_cache_memory_gb: 20}", engine).replace("{size_gib: 126}", checkpoint)
    assert launched(text)[0].argv[17:] == expected


def test_a_local_path_is_served_under_the_model_s_name():
    text = SPARKS.replace("model: org/small", "model: org/small\n    path: /models/small")
    assert line(launched(text)[2]).startswith("vllm serve /models/small --served-model-name org/small --host")


def test_interfaces_are_those_of_the_node():
    text = SPARKS.replace("{name: s2, mgmt: 10.0.0.2,", "{name: s2, mgmt: 10.0.0.2, fabric_ifname: eth9, hca: [c],")
    head, worker, alone, _ = launched(text)
    assert dict(head.node_env) == {
        "VLLM_HOST_IP": "192.168.0.1",
        "NCCL_SOCKET_IFNAME": "eth1",
        "GLOO_SOCKET_IFNAME": "eth1",
        "TP_SOCKET_IFNAME": "eth1",
        "UCX_NET_DEVICES": "eth1",
        "OMPI_MCA_btl_tcp_if_include": "eth1",
        "NCCL_NET": "IB",
        "NCCL_IB_HCA": "a,b",
    }
    assert worker.node_env["NCCL_SOCKET_IFNAME"] == "eth9"
    assert worker.node_env["NCCL_IB_HCA"] == "c"
    assert alone.node_env == {}


def test_what_nccl_is_told_depends_on_the_cables():
    head = launched(SPARKS)[0].env
    assert (head["NCCL_IB_GID_INDEX"], head["VLLM_ENGINE_READY_TIMEOUT_S"]) == ("3", "3600")
    assert "NCCL_IB_MERGE_NICS" not in head
    ring = SPARKS.replace("kind: switch", "kind: ring").replace("nodes_per_replica: 2", "nodes_per_replica: 4")
    env = launched(ring.replace("[[s1, s2]]", "[[s1, s2, s3, s4]]"))[0].env
    assert (env["NCCL_NET_PLUGIN"], env["NCCL_IB_SUBNET_AWARE_ROUTING"], env["NCCL_IB_MERGE_NICS"]) == ("none", "1", "0")
    assert "NCCL_IB_GID_INDEX" not in env
    assert not any(name.startswith("NCCL") for name in launched(SPARKS)[2].env)  # one node needs no network


def test_without_rdma_devices_nccl_takes_tcp():
    assert "NCCL_NET" not in launched(SPARKS.replace(", hca: [a, b]", ""))[0].node_env


def test_rocenante_only_with_an_image_that_has_it():
    text = SPARKS.replace("kind: switch", "kind: switch, collectives: rocenante")
    assert not any(name.startswith("VLLM_ENABLE_ROCE") for name in launched(text)[0].env)
    patched = text.replace("vllm@sha256:1", "vllm@sha256:1\n    image_has: [rocenante]")
    assert launched(patched)[0].env["VLLM_ENABLE_ROCE_ALLREDUCE"] == "1"
    assert not any(name.startswith("VLLM_ENABLE_ROCE") for name in launched(patched)[2].env)


def test_a_pool_s_own_variables_win():
    text = SPARKS.replace("checkpoint: {size_gib: 126}", "checkpoint: {size_gib: 126}\n    env: {NCCL_NET: Socket, X: '1'}")
    env = launched(text)[0].env
    assert (env["NCCL_NET"], env["X"]) == ("Socket", "1")


def test_nodes_have_their_image_and_replicas_that_are_away_are_not_started():
    text = SPARKS.replace("192.168.0.4}", "192.168.0.4, image: other}").replace("192.168.0.3}", "192.168.0.3, state: cordoned}")
    assert [(x.name, x.image) for x in launched(text)] == [
        ("big-1-rank0", "vllm@sha256:1"), ("big-1-rank1", "vllm@sha256:1"), ("small-2", "other"),
    ]  # fmt: skip


def test_gpus_are_counted_as_the_machine_counts_them():
    cluster = example("gpu-box")
    big, small = launches(cluster, lay_out(cluster))
    assert (big.gpus, small.gpus) == ((0, 1), (2,))
    assert not big.whole_machine


@pytest.mark.parametrize("name", EXAMPLES)
def test_one_launch_a_rank(name):
    cluster = example(name)
    found = launches(cluster, lay_out(cluster))
    assert len(found) == sum(p.replicas * p.nodes_per_replica for p in cluster.pools.values())
    assert len({x.name for x in found}) == len(found)
    assert sum("--headless" not in x.argv for x in found) == sum(p.replicas for p in cluster.pools.values())
