"""Lending nodes to somebody else, and taking them back: what may go, and what the borrower has to know. Pure.

Whole replicas are lent, since a replica without one of its ranks is nothing; each pool keeps its `min_replicas`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from switchyard.cluster.checks.network import gateway_node
from switchyard.cluster.launch import node_environment, pool_environment
from switchyard.cluster.place import Replica, lay_out
from switchyard.cluster.spec import Cluster, Node

RENDEZVOUS_PORT = 29500
"""Where torchrun's ranks find each other; engines use 29501."""


@dataclass(frozen=True, slots=True)
class Rank:
    """One node of a training job.

    Attributes:
        node: its name.
        env: variables for torchrun.
        command: torchrun up to the user's own script.
    """

    node: str
    env: Mapping[str, str]
    command: str


def leaving(cluster: Cluster, names: Sequence[str]) -> tuple[Replica, ...]:
    """The replicas that run on these nodes, in part or in whole."""
    return tuple(r for r in lay_out(cluster).replicas if r.running and set(r.nodes) & set(names))


def why_not_lend(cluster: Cluster, names: Sequence[str]) -> list[str]:
    """Everything that speaks against lending these nodes of the cluster; empty when nothing does."""
    problems = []
    for name in names:
        node = cluster.node(name)
        if node.state == "lent":
            problems.append(f"{name} is lent to {node.owner} until {node.until} already")
    home = gateway_node(cluster)
    if home is not None and home.name in names:
        problems.append(f"the gateway runs on {home.name}: name another node in gateway.node first, and move it")
    gone = leaving(cluster, names)
    for replica in gone:
        if missing := [n for n in replica.nodes if n not in names]:
            problems.append(
                f"{replica.name} runs on {', '.join(replica.nodes)}: lend {', '.join(missing)} as well, or none of them"
            )
    for name, pool in cluster.pools.items():
        if pool.placement is None:  # solved anew without these nodes, everything might move
            solved = [list(r.nodes) for r in lay_out(cluster).of(name)]
            problems.append(
                f"pool {name} has no placement, so it would move: write down the one it has, {solved}".replace("'", "")
            )
    running = [r for r in lay_out(cluster).replicas if r.running]
    for name, pool in cluster.pools.items():
        before = sum(r.pool == name for r in running)
        after = before - sum(r.pool == name for r in gone)
        if after < min(before, pool.min_replicas):
            problems.append(f"pool {name} would keep {after} of {before} replicas, and min_replicas is {pool.min_replicas}")
    return problems


def why_not_return(cluster: Cluster, names: Sequence[str]) -> list[str]:
    """Everything that speaks against taking these nodes of the cluster back."""
    states = {name: cluster.node(name).state for name in names}
    return [f"{name} is not lent: it is {state}" for name, state in states.items() if state != "lent"]


def coming_back(cluster: Cluster, names: Sequence[str]) -> tuple[Replica, ...]:
    """The replicas that run again once these nodes are back; `cluster` is as it will be then."""
    return tuple(r for r in lay_out(cluster).replicas if r.running and set(r.nodes) & set(names))


def with_state(cluster: Cluster, names: Sequence[str], state: str) -> Cluster:
    """The cluster with these nodes in another state; a lease is not set here."""
    update = {"state": state, "owner": None, "until": None}
    nodes = tuple(n.model_copy(update=update) if n.name in names else n for n in cluster.nodes)
    return cluster.model_copy(update={"nodes": nodes})


def torchrun_ranks(cluster: Cluster, names: Sequence[str]) -> list[Rank]:
    """How a training job starts on these nodes: one rank a GPU, the first node is the master."""
    nodes = [cluster.node(name) for name in names]
    master = nodes[0].fabric or nodes[0].mgmt
    return [_rank(cluster, node, i, len(nodes), master) for i, node in enumerate(nodes)]


def _rank(cluster: Cluster, node: Node, number: int, nodes: int, master: str) -> Rank:
    env = {"MASTER_ADDR": master, "MASTER_PORT": str(RENDEZVOUS_PORT), "NNODES": str(nodes), "NODE_RANK": str(number)}
    if nodes > 1:
        wide = next((p for p in cluster.pools.values() if p.nodes_per_replica > 1), None)
        fabric = pool_environment(cluster, wide) if wide is not None else {}
        env |= {name: value for name, value in fabric.items() if name.startswith("NCCL_")}
        env |= {name: value for name, value in node_environment(node).items() if not name.startswith("VLLM_")}
    command = "torchrun --nnodes $NNODES --node-rank $NODE_RANK --master-addr $MASTER_ADDR --master-port $MASTER_PORT "
    return Rank(node.name, env, command + f"--nproc-per-node {node.gpus}")
