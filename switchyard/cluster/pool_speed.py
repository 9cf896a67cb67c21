"""Which speed a pool of the cluster file has: measured by its owner, published for its model, or scaled. Pure.

In this order, and each says what it is: `speed.measured`, `speed.like`, the checkpoint's size. What a measurement leaves out
is filled from the next.
"""

from __future__ import annotations

import math
from dataclasses import replace

from switchyard.cluster.fitting import Undetermined
from switchyard.cluster.published import Link
from switchyard.cluster.spec import Checkpoint, Cluster, Fabric, Pool
from switchyard.cluster.speed import QWEN_27B, DenseModel, EngineSpeed, ExpertModel, Shape

SHIPPED = ("qwen3.8-27b-nvfp4", "glm-5.3-nvfp4")
"""Names for `speed.like`."""
GLM_NODES = 8
"""GLM 5.3 was measured on so many nodes only."""


def link_of(fabric: Fabric, nodes: int) -> Link:
    """How the nodes of one replica are joined.

    Raises:
        Undetermined: more than one node and no fabric.
    """
    if nodes == 1:
        return "none"
    if fabric.kind == "none":
        raise Undetermined("replicas over several nodes need a fabric: fabric.kind is none")
    if fabric.kind == "switch" and fabric.collectives == "rocenante":
        return "switch+rocenante"
    return fabric.kind


def pool_speed(cluster: Cluster, name: str) -> EngineSpeed:
    """The speed of one replica of a pool.

    Raises:
        Undetermined: the file says too little; the message says which key would tell.
    """
    pool = cluster.pools[name]
    try:
        return _speed(pool, link_of(cluster.fabric, pool.nodes_per_replica))
    except Undetermined as missing:
        raise Undetermined(f"pools.{name}: {missing}") from None


def _speed(pool: Pool, link: Link) -> EngineSpeed:
    own = [m for m in pool.speed.measured if m.nodes == pool.nodes_per_replica]
    decode = {m.concurrency: m.decode_tok_s for m in own if m.decode_tok_s is not None}
    prefill = [m.prefill_tok_s for m in own if m.prefill_tok_s is not None]
    steps = tuple((c, c / rate) for c, rate in sorted(decode.items()))
    if steps and prefill:
        return EngineSpeed(steps, max(prefill), "measured", "measured by you")
    base = _unmeasured(pool, link, prefill_tokens_s=max(prefill, default=None))
    if steps:
        return replace(base, steps=steps, note=f"decode measured by you; prefill {base.note}")
    if prefill:
        return replace(base, prefill_tokens_s=max(prefill), note=f"prefill measured by you; decode {base.note}")
    return base


def _unmeasured(pool: Pool, link: Link, prefill_tokens_s: float | None) -> EngineSpeed:
    nodes, like, scale = pool.nodes_per_replica, pool.speed.like, pool.speed.scale
    if like is None:
        shape = _shape(pool.model, pool.checkpoint)
        return DenseModel().speed(nodes, link, shape)
    if like == "glm-5.3-nvfp4":
        if nodes != GLM_NODES:
            raise Undetermined(
                f"{like} was measured on {GLM_NODES} nodes only, not on {nodes}: put your own into speed.measured"
            )
        if prefill_tokens_s is None:
            raise Undetermined(f"prefill of {like} was not published: put a prefill_tok_s of yours into speed.measured")
        speed = ExpertModel().speed(prefill_tokens_s)
    elif like == "qwen3.8-27b-nvfp4":
        speed = DenseModel().speed(nodes, link)
    else:
        raise Undetermined(f"speed.like: there are no shipped figures {like}; known: {', '.join(SHIPPED)}")
    if scale == 1:
        return speed
    steps = tuple((c, s / scale) for c, s in speed.steps)
    note = f"{scale:g} times {like}, as the file says"
    return EngineSpeed(steps, speed.prefill_tokens_s * scale, "scaled", note)


def _shape(model: str, checkpoint: Checkpoint) -> Shape:
    """What is read for a token, and how wide: the width follows from parameters = 12 layers width^2 (Kaplan et al. 2020)."""
    read_gib = checkpoint.active_gib or checkpoint.weights_gib
    if read_gib is None:
        keys = "speed.measured, speed.like, or checkpoint.size_gib (of a mixture of experts active_gib)"
        raise Undetermined(f"nothing tells its speed: fill in {keys}")
    layers = checkpoint.layers or QWEN_27B.layers
    active_b = QWEN_27B.active_b * read_gib / QWEN_27B.read_gib
    hidden = round(math.sqrt(active_b * 1e9 / (12 * layers)))
    return Shape(model, read_gib, active_b, layers, hidden)
