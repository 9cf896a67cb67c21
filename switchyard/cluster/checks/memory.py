"""Whether ranks fit their GPUs, and what their KV caches hold, with the arithmetic in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from switchyard.cluster.checks.finding import Finding, error, place_of, warning
from switchyard.cluster.fit import (
    OVERHEAD_GIB,
    PLANNED_SHARE,
    kv_bytes_a_token,
    kv_tokens,
    number,
    rank_memory,
    ranks_that_fit,
    sums,
    usable_words,
)
from switchyard.cluster.place import SLACK_GIB, Layout
from switchyard.cluster.spec import Cluster, Node, Pool
from switchyard.config.problem import KeyPath

MOST_NODES = 16
"""Widest replica that is suggested."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a pool's ranks fit the memory of one kind of node.

    Attributes:
        pool: its name.
        nodes: names of the nodes with the same memory that it was computed for.
        fits: the verdict; None where the weights' size is not known.
        words: the arithmetic, with the KV cache.
        kv_gib: KV cache of each rank.
        kv_tokens: tokens that a plan counts on; None where the file doesn't say what the model is like.
    """

    pool: str
    nodes: tuple[str, ...]
    fits: bool | None
    words: str
    kv_gib: float
    kv_tokens: int | None


def check_memory(cluster: Cluster, layout: Layout) -> Iterator[Finding]:
    """Whether the ranks on each GPU fit it, and whether one conversation fits the KV cache."""
    for name, pool in cluster.pools.items():
        at: KeyPath = ("pools", name, "checkpoint")
        if pool.checkpoint.weights_gib is None:
            hint = "size_gib, or parameters_b and format"
            yield warning(at, "how large the weights are is not said: memory can't be checked", hint)
        length = number(pool, "max_model_len")
        runs = [cluster.node(n) for r in layout.of(name) for n in r.nodes]
        if not runs or pool.checkpoint.weights_gib is None:
            continue
        tightest = min(runs, key=lambda n: n.usable_gib)
        memory = rank_memory(pool, tightest)
        tokens = kv_tokens(pool, memory.kv)
        if length is not None and tokens is not None and tokens / PLANNED_SHARE < length:
            each = kv_bytes_a_token(pool)
            yield error(
                ("pools", name, "engine", "max_model_len"),
                f"one conversation of {length:,.0f} tokens doesn't fit a KV cache of {memory.kv:.1f} GiB a rank "
                f"({each:,.0f} bytes a token)",
                "more KV cache, a shorter max_model_len, or kv_cache_dtype: fp8",
            )
    for node in cluster.nodes:
        for gpu, gib in enumerate(layout.gpu_gib(node)):
            ranks = [t for t in layout.taken[node.name] if t.gpu == gpu]
            on = f" on GPU {gpu}" if node.gpus > 1 else ""
            if gib > node.usable_gib + SLACK_GIB:
                parts = " + ".join(f"{t.replica} {t.memory.total:.1f}" for t in ranks)
                yield error(
                    place_of(cluster, node.name),
                    f"{parts} = {gib:.1f} GiB{on}, and {usable_words(node)} may be taken",
                    _remedy(cluster, cluster.pools[ranks[0].pool], node) if len(ranks) == 1 else "fewer ranks here, or less KV",
                )
            elif len(ranks) > 1:
                names = " and ".join(t.replica for t in ranks)
                yield warning(
                    place_of(cluster, node.name), f"{names} share a GPU{on}: they slow each other, plans don't count that"
                )


def _remedy(cluster: Cluster, pool: Pool, node: Node) -> str:
    """What would make a rank fit."""
    found = ranks_that_fit(pool, node, MOST_NODES)
    if found is None:
        return f"its weights don't fit {MOST_NODES} such nodes in any way: larger nodes, or a narrower checkpoint"
    nodes, room = found
    if nodes <= pool.nodes_per_replica:
        return f"with at most {room:.1f} GiB of KV cache it fits"
    kv = number(pool, "kv_cache_memory_gb")
    what = f"with at most {room:.1f} GiB of KV cache" if kv is None or kv > room else f"with its {kv:.1f} GiB of KV cache"
    if nodes > len(cluster.nodes):
        return f"a replica would need {nodes} such nodes, {what}"
    return f"on {nodes} nodes a replica it fits, {what}"


def memory_verdicts(cluster: Cluster, layout: Layout) -> Iterator[Verdict]:
    """One for each pool and kind of node that it runs on; of a pool without a place, for the nodes that there are."""
    for name, pool in cluster.pools.items():
        placed = [n for r in layout.of(name, running=False) for n in r.nodes]
        kinds: dict[tuple[float, float], list[Node]] = {}
        for node in [cluster.node(n) for n in dict.fromkeys(placed)] or list(cluster.nodes):
            kinds.setdefault((node.shows_gib, node.usable), []).append(node)
        for nodes in kinds.values():
            yield _verdict(cluster, name, pool, nodes)


def _verdict(cluster: Cluster, name: str, pool: Pool, nodes: list[Node]) -> Verdict:
    node, memory = nodes[0], rank_memory(pool, nodes[0])
    tokens = kv_tokens(pool, memory.kv)
    fits = None if memory.weights is None else memory.total <= node.usable_gib + SLACK_GIB and memory.kv > 0
    ranks = f"TP{pool.tensor_parallel} over {pool.nodes_per_replica} node{'s' if pool.nodes_per_replica > 1 else ''}"
    words = f"{name}, {ranks}: {sums(pool, memory)} a GPU; {usable_words(node)} may be taken: "
    if fits is None:
        words += "not known"
    elif fits:
        words += "fits"
    else:
        short = (memory.weights or 0) + max(memory.kv, 1.0) + OVERHEAD_GIB - node.usable_gib
        words += f"does not fit, {short:.1f} GiB short; {_remedy(cluster, pool, node)}"
    if tokens is not None and fits is not False:
        length = number(pool, "max_model_len")
        whole = f", {tokens / length:.1f} conversations of {length:,.0f}" if length else ""
        words += (
            f". {memory.kv:.1f} GiB of KV hold about {tokens:,} tokens{whole} "
            f"({PLANNED_SHARE:g} of what {kv_bytes_a_token(pool):,.0f} bytes a token give)"
        )
    return Verdict(name, tuple(n.name for n in nodes), fits, words, memory.kv, tokens)
