"""A plan as a picture: nodes with their memory, who runs where, who reaches whom. SVG, made of nothing but text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from itertools import pairwise

from switchyard.cluster.checks.network import gateway_node
from switchyard.cluster.place import Taken
from switchyard.cluster.plan import Plan
from switchyard.cluster.spec import Node

COLOURS = ("#3b6fb6", "#d9822b", "#3d9a6a", "#a3519b", "#b5485d", "#6b7a8f")
"""One for each pool, in the order of the file."""
BOX, GAP, COLUMNS = 150, 22, 8
BAR_TOP, BAR_HEIGHT = 62, 150
ROW = BAR_TOP + BAR_HEIGHT + 96
LEFT, TOP = 24, 92


def draw(plan: Plan) -> str:
    """The whole picture."""
    nodes = plan.cluster.nodes
    columns = min(COLUMNS, len(nodes))
    width = max(LEFT * 2 + columns * (BOX + GAP) - GAP, 640)
    rows = -(-len(nodes) // columns)
    height = TOP + rows * ROW + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="system-ui, sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        *_head(plan, width),
    ]
    corners = {n.name: (LEFT + (i % columns) * (BOX + GAP), TOP + (i // columns) * ROW) for i, n in enumerate(nodes)}
    parts += _ties(plan, corners)
    for node in nodes:
        parts += _node(plan, node, *corners[node.name])
    parts.append(_text(LEFT, height - 14, _legend(plan), "#555"))
    return "\n".join(parts) + "\n</svg>\n"


def _head(plan: Plan, width: int) -> Iterator[str]:
    cluster = plan.cluster
    home = gateway_node(cluster)
    where = "" if home is None else f" on {home.name}"
    yield _text(LEFT, 30, f"clients → Switchyard{where}, port {cluster.gateway.port} → heads", "#222", 16)
    x = LEFT
    for i, pool in enumerate(plan.pools):
        colour = COLOURS[i % len(COLOURS)]
        width_ranks = cluster.pools[pool.name].tensor_parallel
        label = f"{pool.name}: {pool.replicas} x TP{width_ranks}"
        yield f'<rect x="{x}" y="46" width="14" height="14" rx="3" fill="{colour}"/>'
        yield _text(x + 20, 58, label, "#222", 13)
        x += 44 + 8 * len(label)
    kind = cluster.fabric.kind
    if kind != "none":
        yield _text(x, 58, f"fabric: {kind}, {cluster.fabric.collectives}", "#555", 13)
        yield f'<line x1="{LEFT}" y1="{TOP - 14}" x2="{width - LEFT}" y2="{TOP - 14}" stroke="#bbb" stroke-width="3"/>'


def _ties(plan: Plan, corners: Mapping[str, tuple[int, int]]) -> Iterator[str]:
    """What joins the nodes of one replica: a band in the pool's colour from each to the next."""
    pools = list(plan.cluster.pools)
    for replica in plan.layout.replicas:
        colour = COLOURS[pools.index(replica.pool) % len(COLOURS)]
        for (x, y), (to_x, to_y) in pairwise(corners[n] for n in replica.nodes):
            yield (
                f'<line x1="{x + BOX / 2:g}" y1="{y + 30}" x2="{to_x + BOX / 2:g}" y2="{to_y + 30}" stroke="{colour}" '
                f'stroke-width="6"><title>{escape(replica.name)}</title></line>'
            )


def _node(plan: Plan, node: Node, x: int, y: int) -> Iterator[str]:
    """A node: name and address, a bar for each GPU, its ranks below."""
    faded = "" if node.state == "active" else ' opacity="0.45"'
    yield f"<g{faded}>"
    yield f'<rect x="{x}" y="{y}" width="{BOX}" height="{ROW - 18}" rx="8" fill="#f6f7f9" stroke="#cfd4da"/>'
    state = "" if node.state == "active" else f" ({node.state})"
    yield _text(x + 10, y + 22, f"{node.name}{state}", "#222", 15)
    yield _text(x + 10, y + 40, node.mgmt, "#555")
    ranks = plan.layout.taken[node.name]
    bar = (BOX - 20 - 6 * (node.gpus - 1)) / node.gpus
    for gpu in range(node.gpus):
        left = x + 10 + gpu * (bar + 6)
        yield from _bar(plan, node, [t for t in ranks if t.gpu == gpu], left, y + BAR_TOP, bar)
    below = y + BAR_TOP + BAR_HEIGHT
    gib = plan.layout.gpu_gib(node)
    yield _text(x + 10, below + 18, f"{max(gib):.1f} of {node.usable_gib:.1f} GiB", "#222")
    named = dict.fromkeys(_rank_words(plan, node, t) for t in ranks)
    for line, words in enumerate(named or ["free"]):
        yield _text(x + 10, below + 36 + 16 * line, words, "#222")
    yield "</g>"


def _bar(plan: Plan, node: Node, ranks: list[Taken], x: float, y: int, width: float) -> Iterator[str]:
    """One GPU's memory: for each rank weights, KV cache, overhead; the dashed line is what may be taken."""
    scale = BAR_HEIGHT / node.shows_gib
    yield f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR_HEIGHT}" fill="white" stroke="#cfd4da"/>'
    bottom = float(y + BAR_HEIGHT)
    pools = list(plan.cluster.pools)
    for taken in ranks:
        colour = COLOURS[pools.index(taken.pool) % len(COLOURS)]
        parts = (
            ("weights", taken.memory.weights or 0.0, 1.0),
            ("KV", taken.memory.kv, 0.6),
            ("other", taken.memory.overhead, 0.3),
        )
        for what, gib, opacity in parts:
            high = gib * scale
            bottom -= high
            if high < 0.05:
                continue
            yield (
                f'<rect x="{x:.1f}" y="{bottom:.1f}" width="{width:.1f}" height="{high:.1f}" fill="{colour}" '
                f'fill-opacity="{opacity}"><title>{escape(taken.replica)}: {what} {gib:.1f} GiB</title></rect>'
            )
    line = y + BAR_HEIGHT - node.usable_gib * scale
    yield (
        f'<line x1="{x - 3:.1f}" y1="{line:.1f}" x2="{x + width + 3:.1f}" y2="{line:.1f}" stroke="#c0392b" '
        'stroke-dasharray="4 3"/>'
    )


def _rank_words(plan: Plan, node: Node, taken: Taken) -> str:
    replica = next(r for r in plan.layout.replicas if r.name == taken.replica)
    if len(replica.nodes) == 1:
        return f"{taken.replica}, port {plan.cluster.pools[taken.pool].port + replica.shift}"
    rank = replica.nodes.index(node.name)
    return f"{taken.replica}, {'head' if rank == 0 else f'rank {rank}'}"


def _legend(plan: Plan) -> str:
    words = "bars: weights, KV cache (lighter), 6 GiB overhead (lightest); dashed: what engines may take"
    if plan.routed is not None and plan.routed.ratio is not None:
        shares = ", ".join(f"{share:.0%} {pool}" for pool, share in plan.routed.shares.items())
        words = f"{shares}: {plan.routed.ratio:.2f} times all-{plan.routed.big}, if {plan.routed.big} is full first.  {words}"
    return words


def _text(x: float, y: float, words: str, colour: str, size: int = 12) -> str:
    return f'<text x="{x:g}" y="{y:g}" fill="{colour}" font-size="{size}">{escape(words)}</text>'
