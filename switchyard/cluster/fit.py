"""What a rank takes of its GPU's memory, and what its KV cache holds. Formulas only; verdicts are `check.py`'s.

  rank = weights / TP + KV cache + 6 GiB              at most: usable share x visible memory
  KV bytes of a token and rank:
    gqa     2 (keys, values) x layers x max(1, KV heads / TP) x head_dim x width
    hybrid  the same, with the layers of full attention alone
    mla     layers x latent x width; not divided: every rank keeps the whole latent

The token formula is an upper bound: pages, recurrent states and the like take their part. Plans count on 0.55 of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from switchyard.cluster.spec import Node, Pool

OVERHEAD_GIB = 6.0
"""CUDA context, graphs, activations, NCCL buffers of one rank, as seen on DGX Spark."""
PLANNED_SHARE = 0.55
"""Share of the tokens by the formula that plans count on."""
UNIFIED_WARN_SHARE = 100 / 121.7
"""Of memory that the CPU shares, more than this was seen to freeze machines: 100 GiB of a Spark's 121.7."""
NARROW = ("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla")


@dataclass(frozen=True, slots=True)
class RankMemory:
    """What one rank takes of one GPU, in GiB. Weights are None where the file doesn't tell them."""

    weights: float | None
    kv: float
    overhead: float = OVERHEAD_GIB

    @property
    def total(self) -> float:
        """All of it; of a pool whose weights are not known, what is known."""
        return (self.weights or 0.0) + self.kv + self.overhead


def rank_memory(pool: Pool, node: Node) -> RankMemory:
    """What a rank of this pool takes on that node.

    The KV cache is what the file says; with gpu_memory_utilization, what that leaves; with neither, what is left of the
    usable memory, which supposes that the rank has its GPU for itself.
    """
    whole = pool.checkpoint.weights_gib
    weights = None if whole is None else whole / pool.tensor_parallel
    given = number(pool, "kv_cache_memory_gb")
    if given is not None:
        return RankMemory(weights, given)
    share = number(pool, "gpu_memory_utilization")
    room = node.usable_gib if share is None else share * node.shows_gib
    return RankMemory(weights, max(0.0, room - (weights or 0.0) - OVERHEAD_GIB))


def kv_bytes_a_token(pool: Pool, tensor_parallel: int | None = None) -> float | None:
    """Bytes that one token takes in the KV cache of one rank; None where the file doesn't say what the model is like."""
    of, ranks = pool.checkpoint, tensor_parallel or pool.tensor_parallel
    width = 1 if pool.engine.get("kv_cache_dtype") in NARROW else 2
    layers = of.full_layers if of.attention == "hybrid" else of.layers
    if layers is None:
        return None
    if of.attention == "mla":
        return layers * of.latent_dim * width
    if of.kv_heads is None or of.head_dim is None:
        return None
    return 2 * layers * max(1.0, of.kv_heads / ranks) * of.head_dim * width


def kv_tokens(pool: Pool, kv_gib: float) -> int | None:
    """Tokens that a plan counts on in a KV cache of that size on each rank."""
    each = kv_bytes_a_token(pool)
    return None if each is None else int(PLANNED_SHARE * kv_gib * 2**30 / each)


def number(pool: Pool, flag: str) -> float | None:
    """The value of an engine flag, where it is a number."""
    value = pool.engine.get(flag)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def sums(pool: Pool, memory: RankMemory) -> str:
    """The arithmetic of one rank in words: `126.0 GiB / 2 + 20.0 GiB KV + 6 GiB = 89.0 GiB`."""
    whole = pool.checkpoint.weights_gib
    ranks = f" / {pool.tensor_parallel}" if pool.tensor_parallel > 1 else ""
    weights = "weights of unknown size" if whole is None else f"{whole:.1f} GiB{ranks}"
    return f"{weights} + {memory.kv:.1f} GiB KV + {memory.overhead:g} GiB = {memory.total:.1f} GiB"


def usable_words(node: Node) -> str:
    """`0.80 x 121.7 GiB = 97.4 GiB`."""
    return f"{node.usable:.2f} x {node.shows_gib:.1f} GiB = {node.usable_gib:.1f} GiB"


def ranks_that_fit(pool: Pool, node: Node, most_nodes: int) -> tuple[int, float] | None:
    """The smallest power of two of nodes a replica (of at most so many) on which the weights fit, and the KV room left.

    None when they never do, or their size is not known.
    """
    whole = pool.checkpoint.weights_gib
    nodes = 1
    while whole is not None and nodes <= most_nodes:
        room = node.usable_gib - OVERHEAD_GIB - whole / (nodes * pool.gpus_per_node)
        if room >= 1:
            return nodes, room
        nodes *= 2
    return None
