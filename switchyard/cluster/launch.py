"""How each rank is started: command line, environment, GPUs. Every target writes down what is made here.

The facts about networks and NCCL on DGX Spark are from NVIDIA's playbooks and the community's images; each variable that
names an interface may differ from node to node.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from switchyard.cluster.fit import number, rank_memory
from switchyard.cluster.place import SLACK_GIB, Layout, Replica
from switchyard.cluster.spec import Cluster, Node, Pool

READY_TIMEOUT_S = 3600
"""Loading 100 GiB from disk and compiling takes minutes; vLLM by itself gives up earlier."""
MODELS = "/models"
"""Where engines see the node's `models_dir`."""
ROCE_MAX_SIZE = "2MB"
"""Largest message for RoCEnante, as NVIDIA's recipe for two Sparks has it."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One rank's process.

    Attributes:
        replica: what it is a part of.
        rank: 0 for the head.
        node: where it runs.
        image: its container image.
        argv: the command, `vllm` first.
        node_env: variables that hold on this node, whatever runs there.
        env: variables of the pool.
        gpus: as the machine counts them.
        whole_machine: whether these are all its GPUs.
        port: of the head's HTTP server.
        model: the name that it serves.
        api_key_env: variable that holds the engine's key, if it wants one.
    """

    replica: Replica
    rank: int
    node: Node
    image: str
    argv: tuple[str, ...]
    node_env: Mapping[str, str]
    env: Mapping[str, str]
    gpus: tuple[int, ...]
    whole_machine: bool
    port: int
    model: str
    api_key_env: str | None

    @property
    def name(self) -> str:
        """`qwen-1-rank0`, or `minicpm-1` where one node is all."""
        return f"{self.replica.name}-rank{self.rank}" if self.wide else self.replica.name

    @property
    def wide(self) -> bool:
        """Whether the replica has ranks on other nodes, too."""
        return len(self.replica.nodes) > 1

    @property
    def rdma(self) -> bool:
        """Whether it needs the node's RDMA devices."""
        return self.wide and bool(self.node.hca)


def launches(cluster: Cluster, layout: Layout) -> tuple[Launch, ...]:
    """Every rank of every replica that runs, replicas in the order of the file."""
    return tuple(_launch(cluster, r, rank) for r in layout.replicas if r.running for rank in range(len(r.nodes)))


def _launch(cluster: Cluster, replica: Replica, rank: int) -> Launch:
    pool, node = cluster.pools[replica.pool], cluster.node(replica.nodes[rank])
    head = cluster.node(replica.head)
    wide = len(replica.nodes) > 1
    where: tuple[str, ...] = ()
    if wide:
        where = wide_flags(pool, head.fabric or head.mgmt, str(rank), rank > 0, replica.shift)
    gpus = tuple(node.gpu_numbers[i] for i in replica.gpus[rank] if i < node.gpus)
    return Launch(
        replica=replica,
        rank=rank,
        node=node,
        image=node.image or pool.image,
        argv=(*serve(pool, replica.shift), *where, *engine_flags(pool, node)),
        node_env=node_environment(node) if wide else {},
        env=pool_environment(cluster, pool),
        gpus=gpus,
        whole_machine=len(gpus) == node.gpus and not node.gpu_ids,
        port=pool.port + replica.shift,
        model=pool.model,
        api_key_env=pool.api_key_env,
    )


def serve(pool: Pool, shift: int = 0) -> tuple[str, ...]:
    """The command up to where ranks differ."""
    port = str(pool.port + shift)
    named = () if pool.path is None else ("--served-model-name", pool.model)
    width = ("--tensor-parallel-size", str(pool.tensor_parallel)) if pool.tensor_parallel > 1 else ()
    return ("vllm", "serve", pool.path or pool.model, *named, "--host", "0.0.0.0", "--port", port, *width)


def wide_flags(pool: Pool, master: str, rank: str, headless: bool, shift: int = 0) -> tuple[str, ...]:
    """What tells a rank its place among those on other nodes; only rank 0 has an HTTP server."""
    place = ("--nnodes", str(pool.nodes_per_replica), "--node-rank", rank)
    port = str(pool.master_port + shift)
    return (*place, "--master-addr", master, "--master-port", port, *(("--headless",) if headless else ()))


def engine_flags(pool: Pool, node: Node) -> tuple[str, ...]:
    """The pool's own flags, in the order of the file."""
    flags: list[str] = []
    for name, value in pool.engine.items():
        if name != "kv_cache_memory_gb":
            flags += _flag(name, value)
    if "tool_call_parser" in pool.engine and "enable_auto_tool_choice" not in pool.engine:
        flags.append("--enable-auto-tool-choice")  # without it vLLM refuses what agents send
    kv_gib = number(pool, "kv_cache_memory_gb")
    if number(pool, "gpu_memory_utilization") is None:
        memory = rank_memory(pool, node)
        known = kv_gib is not None or memory.weights is not None
        share = min(1.0, math.ceil(100 * memory.total / node.shows_gib - SLACK_GIB) / 100) if known else node.usable
        kv_gib = memory.kv if known else None
        # by itself vLLM takes 0.92, and doesn't start where that isn't free: beside another engine, or with a desktop
        flags += ["--gpu-memory-utilization", f"{share:g}"]
    if kv_gib is not None:
        flags += ["--kv-cache-memory-bytes", str(int(kv_gib * 2**30))]
    return tuple(flags)


def _flag(name: str, value: object) -> Iterator[str]:
    dashed = name.replace("_", "-")
    if isinstance(value, bool):
        yield f"--{dashed}" if value else f"--no-{dashed}"
        return
    yield f"--{dashed}"
    if isinstance(value, dict):
        yield json.dumps(value)
    elif isinstance(value, tuple):
        yield from map(_word, value)
    else:
        yield _word(value)


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def pool_environment(cluster: Cluster, pool: Pool) -> dict[str, str]:
    """Variables that are the same on all nodes of a pool."""
    env = {
        "VLLM_ENGINE_READY_TIMEOUT_S": str(READY_TIMEOUT_S),
        "HF_HUB_CACHE": f"{MODELS}/hub",
        "HF_HUB_OFFLINE": "1",
    }
    if pool.nodes_per_replica > 1:
        env |= {
            "NCCL_CROSS_NIC": "1",
            "NCCL_IGNORE_CPU_AFFINITY": "1",
            "NCCL_CUMEM_ENABLE": "0",
            "NCCL_NVLS_ENABLE": "0",
        }
        if cluster.fabric.kind == "ring":
            env |= {"NCCL_NET_PLUGIN": "none", "NCCL_IB_SUBNET_AWARE_ROUTING": "1", "NCCL_IB_MERGE_NICS": "0"}
        else:
            env["NCCL_IB_GID_INDEX"] = str(cluster.fabric.gid_index)
        if cluster.fabric.collectives == "rocenante" and "rocenante" in pool.image_has:
            env |= {"VLLM_ENABLE_ROCE_ALLREDUCE": "1", "VLLM_ROCE_ALLREDUCE_MAX_SIZE": ROCE_MAX_SIZE}
    return env | pool.env


def node_environment(node: Node) -> dict[str, str]:
    """Variables that follow from a node's cards and cables; needed by ranks that talk to other nodes."""
    env: dict[str, str] = {}
    if node.fabric is not None:
        env["VLLM_HOST_IP"] = node.fabric
    if node.fabric_ifname is not None:
        for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "UCX_NET_DEVICES"):
            env[name] = node.fabric_ifname
        env["OMPI_MCA_btl_tcp_if_include"] = node.fabric_ifname
    if node.hca:
        env |= {"NCCL_NET": "IB", "NCCL_IB_HCA": ",".join(node.hca)}  # never TCP by accident
    return env
