"""Nodes, the fabric between them, and ports."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from switchyard.cluster.checks.finding import Finding, error, place_of, warning
from switchyard.cluster.fit import UNIFIED_WARN_SHARE
from switchyard.cluster.place import Layout
from switchyard.cluster.spec import Cluster, Node, Pool
from switchyard.config.problem import KeyPath

SPARK_HCAS = 2
"""RDMA devices of a DGX Spark's port; one alone carries half of 200 Gb/s. On a ring a node uses both of its ports."""


def check_nodes(cluster: Cluster, now: datetime) -> Iterator[Finding]:
    """Leases, addresses, and memory that is best left to the machine."""
    for i, node in enumerate(cluster.nodes):
        at: KeyPath = ("nodes", i)
        if node.until is not None and datetime.fromisoformat(node.until) <= now:
            owner = node.owner
            yield warning(
                (*at, "until"), f"the lease of {owner} is over", f"switchyard cluster return FILE {node.name}, or extend it"
            )
        if node.fabric is not None and node.fabric == node.mgmt and cluster.fabric.kind != "ring":
            yield warning((*at, "fabric"), "the same address as mgmt: clients and ranks share a network")
        if node.unified and node.usable > UNIFIED_WARN_SHARE + 0.005:
            gib = node.usable_gib
            yield warning(
                (*at, "usable"),
                f"engines may take {gib:.1f} of {node.shows_gib:.1f} GiB that the CPU shares: machines froze at that",
                f"at most {UNIFIED_WARN_SHARE:.2f}, better 0.80",
            )


def check_fabric(cluster: Cluster) -> Iterator[Finding]:
    """Whether the cabling carries what the pools want of it."""
    fabric, wide = cluster.fabric, {n: p for n, p in cluster.pools.items() if p.nodes_per_replica > 1}
    names = tuple(n.name for n in cluster.nodes)
    if fabric.kind == "ring" and len(names) < 3:
        yield error(("fabric", "kind"), f"a ring has at least three nodes, not {len(names)}", "two nodes are joined direct")
    if fabric.kind == "ring" and "gid_index" in fabric.model_fields_set:
        yield warning(("fabric", "gid_index"), "a ring is run without a GID index: it has no effect")
    if fabric.pairs and fabric.kind != "direct":
        yield error(("fabric", "pairs"), "pairs belong to kind: direct")
    if fabric.kind == "direct":
        named = [n for pair in fabric.pairs for n in pair]
        for name in dict.fromkeys(n for n in named if named.count(n) > 1):
            yield error(("fabric", "pairs"), f"{name} is in more than one pair", "a third cable makes it a ring")
    for name, pool in wide.items():
        yield from _fabric_of_pool(cluster, name, pool)
    used = [n for n in cluster.nodes if n.state == "active"] if wide else []
    for node in used:
        at = place_of(cluster, node.name)
        missing = [key for key in ("fabric", "fabric_ifname") if getattr(node, key) is None]
        if not _may_be_wide(cluster, node.name):
            continue
        if missing:
            hint = "`ip -br addr` on the node tells; without, ranks may meet on the wrong network, like Wi-Fi"
            yield error(at, f"{' and '.join(missing)} missing: replicas over several nodes need them", hint)
        if not node.hca:
            yield warning(at, "hca missing: ranks will talk over TCP, which is slow", "`ibdev2netdev` lists RDMA devices")
        elif node.unified and fabric.kind == "ring" and len(node.hca) < 2 * SPARK_HCAS:
            yield warning((*at, "hca"), f"{len(node.hca)} of 4 devices: on a ring a Spark needs those of both of its ports")
        elif node.unified and len(node.hca) < SPARK_HCAS:
            yield warning((*at, "hca"), f"{len(node.hca)} device: a Spark's port carries 200 Gb/s over both of its two")
        if fabric.kind == "ring" and node.fabric not in {None, node.mgmt}:
            yield warning(
                (*at, "fabric"),
                "a cable of the ring reaches the neighbours only, and all ranks have to meet at this address",
                "the address and interface of the management network; what `hca` names still goes over the cables",
            )


def _may_be_wide(cluster: Cluster, node: str) -> bool:
    """Whether a replica over several nodes has, or may be given, a place on this node."""
    for pool in cluster.pools.values():
        if pool.nodes_per_replica > 1 and (pool.placement is None or any(node in group for group in pool.placement)):
            return True
    return False


def _fabric_of_pool(cluster: Cluster, name: str, pool: Pool) -> Iterator[Finding]:
    fabric, at = cluster.fabric, ("pools", name, "nodes_per_replica")
    size, nodes = pool.nodes_per_replica, len(cluster.nodes)
    if fabric.kind == "none":
        yield error(at, f"{size} nodes need a network between them, and fabric.kind is none", "say how they are cabled")
    elif fabric.kind == "direct" and size > 2:
        yield error(at, f"{size} nodes can't be cabled directly: a cable joins two", "ring for one replica over all, or switch")
    elif fabric.kind == "ring" and size < nodes:
        yield error(
            at,
            f"a ring serves one replica over all its {nodes} nodes; independent groups of {size} need a switch",
            "fabric.kind: switch, or direct for pairs",
        )
    if fabric.collectives == "rocenante":
        if size > 2 and fabric.kind != "switch":
            yield error(("fabric", "collectives"), f"RoCEnante on more than two nodes needs a switch ({name} has {size})")
        if "rocenante" not in pool.image_has:
            yield warning(
                ("pools", name, "image"),
                f"stock vLLM doesn't call RoCEnante: {pool.image} will use NCCL",
                "a patched image, and image_has: [rocenante]; or fabric.collectives: nccl",
            )


def check_ports(cluster: Cluster, layout: Layout) -> Iterator[Finding]:
    """Ports that two processes on one node want."""
    heard: dict[tuple[str, int], str] = {}  # by address: two nodes may be one machine
    gateway = gateway_node(cluster)
    if gateway is not None:
        heard[gateway.mgmt, cluster.gateway.port] = "the gateway"
    for replica in layout.replicas:
        pool, machine = cluster.pools[replica.pool], cluster.node(replica.head).mgmt
        ports = {"port": pool.port} | ({"master_port": pool.master_port} if pool.nodes_per_replica > 1 else {})
        for key, first in ports.items():
            port = first + replica.shift
            other = heard.setdefault((machine, port), replica.name)
            if other == replica.name and (key == "port" or pool.master_port != pool.port):
                continue
            other = "the engine itself" if other == replica.name else other
            said = f"{other} and {replica.name} both want port {port} on {replica.head}"
            yield error(("pools", replica.pool, key), said, "a port of its own for each that is on a node")


def gateway_node(cluster: Cluster) -> Node | None:
    """Where the gateway runs: the node that is named, else the first active one."""
    if cluster.gateway.node is not None:
        return cluster.node(cluster.gateway.node)
    return next((n for n in cluster.nodes if n.state == "active"), None)


def check_gateway(cluster: Cluster) -> Iterator[Finding]:
    """Whether there is a node for the gateway."""
    node = gateway_node(cluster)
    if node is None:
        yield error(("gateway",), "no node is active: there is nowhere to run the gateway")
    elif node.state != "active":
        yield error(("gateway", "node"), f"{node.name} is {node.state}", "name an active node")
