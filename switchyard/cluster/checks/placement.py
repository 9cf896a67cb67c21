"""Which replica is where, and with which image."""

from __future__ import annotations

from collections.abc import Iterator

from switchyard.cluster.checks.finding import Finding, error, warning
from switchyard.cluster.place import Layout, Replica, fabric_groups
from switchyard.cluster.spec import Cluster, Pool
from switchyard.config.problem import KeyPath


def check_placements(cluster: Cluster, layout: Layout) -> Iterator[Finding]:
    """Whether each replica has a place, and a whole one."""
    for name, reason in layout.unplaced.items():
        yield error(("pools", name), f"no place found: {reason}")
    groups = fabric_groups(cluster)
    for name, pool in cluster.pools.items():
        running = len(layout.of(name)) if name not in layout.unplaced else pool.replicas
        if running < pool.min_replicas:
            yield error(
                ("pools", name, "min_replicas"),
                f"{running} of {pool.replicas} replicas run: nodes of the others are lent or cordoned",
                f"return nodes, or lower min_replicas from {pool.min_replicas}",
            )
        if pool.placement is None:
            continue
        at: KeyPath = ("pools", name, "placement")
        if len(pool.placement) != pool.replicas:
            yield error(at, f"{len(pool.placement)} groups of nodes for {pool.replicas} replicas")
        for i, group in enumerate(pool.placement):
            if len(group) != pool.nodes_per_replica:
                yield error((*at, i), f"{len(group)} nodes where nodes_per_replica says {pool.nodes_per_replica}")
            elif len(set(group)) < len(group):
                yield error((*at, i), "a node is named twice: each rank has its own")
            elif cluster.fabric.kind == "direct" and len(group) == 2 and set(group) not in map(set, groups or ()):
                cabled = ", ".join("-".join(pair) for pair in groups or ())
                yield error((*at, i), f"{group[0]} and {group[1]} are not cabled to each other", f"pairs: {cabled}")
        for i, replica in enumerate(r for r in layout.of(name, running=False)):
            yield from _placed(cluster, pool, replica, (*at, i))


def _placed(cluster: Cluster, pool: Pool, replica: Replica, at: KeyPath) -> Iterator[Finding]:
    nodes = [cluster.node(n) for n in replica.nodes]
    away = [n.name for n in nodes if n.state != "active"]
    lent = [n.name for n in nodes if n.state == "lent"]
    if lent and len(lent) < len(nodes):
        rest = ", ".join(n.name for n in nodes if n.name not in lent)
        yield error(at, f"half of {replica.name} is lent ({', '.join(lent)}): {rest} can't serve alone", "lend whole replicas")
    elif away:
        yield warning(at, f"{replica.name} does not run: {', '.join(f'{n} is {cluster.node(n).state}' for n in away)}")
    for node in nodes:
        if node.gpus < pool.gpus_per_node:
            yield error(at, f"{node.name} has {node.gpus} GPU{'s' if node.gpus > 1 else ''}, a rank takes {pool.gpus_per_node}")


def check_images(cluster: Cluster, layout: Layout) -> Iterator[Finding]:
    """Whether all ranks of a replica run the same program."""
    for name, pool in cluster.pools.items():
        for replica in layout.of(name, running=False):
            nodes = [cluster.node(n) for n in replica.nodes]
            at = ("pools", name, "placement", replica.number - 1)
            images = list(dict.fromkeys(n.image or pool.image for n in nodes))
            if len(images) > 1:
                yield error(at, f"{replica.name} would run {' and '.join(images)}", "all ranks need one image")
            arches = list(dict.fromkeys(n.arch for n in nodes))
            if len(arches) > 1:
                yield error(
                    at, f"{replica.name} would run on {' and '.join(arches)}", "ranks of one replica need one kind of CPU"
                )
        if pool.nodes_per_replica > 1 and "@sha256:" not in pool.image:
            yield warning(
                ("pools", name, "image"),
                f"{pool.image} is a tag: two nodes may hold different images under it",
                "name it by digest: `docker inspect --format '{{index .RepoDigests 0}}' IMAGE`",
            )
