"""Say where everything runs, how fast it will be, what routing gains for a mix of requests, and which split is best.

  switchyard cluster plan deploy/cluster.yaml --mix 0.25
  switchyard cluster plan deploy/cluster.yaml --solve --svg plan.svg

--mix 0.25 says that a quarter of the requests needs the big pool (the one with the largest weights); with more than two
pools, say the share of each: --mix big=0.2,mid=0.3,small=0.5. Routing is compared with the big model alone on all nodes.

Where the file has no placement, one is solved; --solve solves all of them anew. Speeds are measured by you
(`speed.measured`), fitted to published figures of the same model (`speed.like`: qwen3.8-27b-nvfp4, glm-5.3-nvfp4), or
scaled from those, and each says which. Exit code 1 when something has no place.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from switchyard.cli.cluster.files import add_file, read_cluster
from switchyard.cli.main import COULD_NOT_RUN, GOOD, NOT_GOOD, WRONG_USE, CommandFailed

if TYPE_CHECKING:
    from switchyard.cluster.plan import Plan, PoolPlan, Routed
    from switchyard.cluster.spec import Node

BAR = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_file(parser)
    parser.add_argument("--mix", metavar="MIX", help="share of requests for the big pool, or a share for each pool")
    parser.add_argument("--solve", action="store_true", help="place everything anew, whatever the file says")
    parser.add_argument(
        "--prompt-tokens", type=int, default=8192, metavar="N", help="mean length of prompts (default: %(default)s)"
    )
    parser.add_argument(
        "--answer-tokens", type=int, default=256, metavar="N", help="mean length of answers (default: %(default)s)"
    )
    parser.add_argument("--svg", metavar="FILE", help="write a picture")
    parser.add_argument("--json", action="store_true", help="the plan as JSON")


def run(given: argparse.Namespace) -> int:
    """Plan a cluster."""
    from switchyard.cluster.picture import draw
    from switchyard.cluster.plan import BadMix, Load, make_plan

    if given.prompt_tokens < 1 or given.answer_tokens < 1:
        raise CommandFailed("requests have at least one token of prompt and of answer", WRONG_USE)
    cluster = read_cluster(given.cluster).value
    try:
        plan = make_plan(cluster, given.mix, Load(given.prompt_tokens, given.answer_tokens), given.solve)
    except BadMix as error:
        raise CommandFailed(f"--mix: {error}", WRONG_USE) from None
    if given.svg is not None:
        try:
            Path(given.svg).write_text(draw(plan), "utf-8")
        except OSError as error:
            raise CommandFailed(f"can't write {given.svg}: {error.strerror}", COULD_NOT_RUN) from None
    if given.json:
        print(json.dumps(as_json(plan), indent=2))
    else:
        print("\n".join(as_text(plan)))
    return NOT_GOOD if plan.layout.unplaced or not all(p.replicas for p in plan.pools) else GOOD


def as_text(plan: Plan) -> Iterator[str]:
    """For people."""
    yield "Memory of each GPU (# weights, = KV cache, + overhead, | what may be taken)"
    for node in plan.cluster.nodes:
        yield from _bars(plan, node)
    yield ""
    yield "Placement" + (f" ({', '.join(plan.layout.solved)}: solved)" if plan.layout.solved else "")
    for replica in plan.layout.replicas:
        away = "" if replica.running else "   does not run"
        yield f"  {replica.name:<14} {'+'.join(replica.nodes)}{away}"
    for name, reason in plan.layout.unplaced.items():
        yield f"  {name}: no place. {reason}"
    yield ""
    yield f"Speed of one replica ({plan.load.prompt_tokens:,} tokens in, {plan.load.answer_tokens} out)"
    for pool in plan.pools:
        yield from _speed(pool)
    if plan.routed is not None:
        yield ""
        yield from _routed(plan, plan.routed)


def _bars(plan: Plan, node: Node) -> Iterator[str]:
    for gpu, gib in enumerate(plan.layout.gpu_gib(node)):
        scale = BAR / node.shows_gib
        ranks = [t for t in plan.layout.taken[node.name] if t.gpu == gpu]
        drawn = ""
        for taken in ranks:
            parts = ((taken.memory.weights or 0.0, "#"), (taken.memory.kv, "="), (taken.memory.overhead, "+"))
            drawn += "".join(sign * round(size * scale) for size, sign in parts)
        limit = round(node.usable_gib * scale)
        bar = drawn[:BAR].ljust(BAR)
        bar = bar[:limit] + "|" + bar[limit:]
        names = ", ".join(dict.fromkeys(t.replica for t in ranks)) or ("free" if node.state == "active" else node.state)
        number = f".{gpu}" if node.gpus > 1 else ""
        yield f"  {node.name + number:<9} [{bar}] {gib:5.1f} of {node.usable_gib:.1f} GiB   {names}"


def _speed(pool: PoolPlan) -> Iterator[str]:
    if pool.speed is None:
        yield f"  {pool.name}: not known. {pool.unknown}"
    else:
        decode, prefill = pool.speed.decode_tokens_s(1), pool.speed.prefill_tokens_s
        yield f"  {pool.name}: decode {decode:.1f} tokens/s for one request, prefill {prefill:,.0f} tokens/s"
        yield f"    {pool.speed.note}"
    if pool.requests_s is not None:
        yield f"    full: {pool.requests_s:.2f} requests/s a replica ({pool.requests_from})"
    if pool.kv_tokens is not None:
        yield f"    KV cache: about {pool.kv_tokens:,} tokens"
    if pool.remark:
        yield f"    {pool.remark}"


def _routed(plan: Plan, routed: Routed) -> Iterator[str]:
    shares = ", ".join(f"{share:.0%} {pool}" for pool, share in routed.shares.items() if share > 0)
    yield f"Routed: {shares}, against {routed.big} alone on all nodes ({routed.all_big_replicas} replicas)"
    if routed.shared:
        yield f"  replicas share GPUs on {', '.join(routed.shared)}: what that costs is not known, so there is no comparison"
        return
    if routed.ratio is not None:
        slower = ": SLOWER than without routing" if routed.ratio < 1 else ""
        yield f"  {routed.ratio:.2f} times as many requests{slower}, as long as {routed.big} is full first. That rests on:"
        for name, need in routed.needs.items():
            yield f"    a {name} replica doing at least {need:.2f} times the requests of a {routed.big} replica"
        yield "    deciding costing nothing, and nothing escalating"
        yield from _by_rates(routed)
        yield f"  with {routed.escalated_share:.0%} of the other requests escalating: {routed.escalated_ratio:.2f} times"
        if routed.lent_ratio is not None:
            yield f"  with one {routed.big} replica lent: {routed.lent_ratio:.2f} times"
    else:
        yield f"  no comparison: {routed.big} gets no requests, has no replica, or no place alone"
        yield from _by_rates(routed)
    if plan.splits:
        yield "  best splits of the GPUs for this mix" + ("" if routed.certain else " (as certain as those rates)")
        for split in plan.splits[:3]:
            counts = " + ".join(f"{count} x {pool}" for pool, count in split.replicas.items())
            times = ""
            if routed.estimate is not None and routed.estimate_ratio is not None:
                times = f", {split.requests_s * routed.estimate_ratio / routed.estimate[0]:.2f} times"
            yield f"    {counts}: {split.limit} is full first: {split.requests_s:.2f} requests/s{times}"


def _by_rates(routed: Routed) -> Iterator[str]:
    """Which pool is full first by the speeds that are known, and what that leaves of the gain."""
    if routed.estimate is not None and routed.estimate_ratio is not None:
        total, limit = routed.estimate
        rates = "the rates above" if routed.certain else "the rates above, of which some are only scaled,"
        but = "by" if limit == routed.big else "BUT by"
        yield f"  {but} {rates} {limit} is full first: {total:.2f} requests/s, {routed.estimate_ratio:.2f} times"
    elif routed.estimate is None:
        yield "  requests/s: not known, a pool's speed is missing"


def as_json(plan: Plan) -> dict[str, Any]:
    """For scripts."""
    routed = plan.routed
    return {
        "nodes": [
            {
                "name": node.name,
                "state": node.state,
                "usable_gib": round(node.usable_gib, 2),
                "gpus": [round(gib, 2) for gib in plan.layout.gpu_gib(node)],
                "ranks": list(dict.fromkeys(t.replica for t in plan.layout.taken[node.name])),
            }
            for node in plan.cluster.nodes
        ],
        "replicas": [
            {"name": r.name, "pool": r.pool, "nodes": list(r.nodes), "running": r.running} for r in plan.layout.replicas
        ],
        "solved": list(plan.layout.solved),
        "unplaced": dict(plan.layout.unplaced),
        "load": {"prompt_tokens": plan.load.prompt_tokens, "answer_tokens": plan.load.answer_tokens},
        "pools": [
            {
                "name": p.name,
                "replicas": p.replicas,
                "decode_tokens_s": None if p.speed is None else round(p.speed.decode_tokens_s(1), 2),
                "prefill_tokens_s": None if p.speed is None else round(p.speed.prefill_tokens_s, 1),
                "origin": None if p.speed is None else p.speed.origin,
                "note": p.unknown if p.speed is None else p.speed.note,
                "remark": p.remark,
                "requests_s": None if p.requests_s is None else round(p.requests_s, 4),
                "kv_tokens": p.kv_tokens,
            }
            for p in plan.pools
        ],
        "routed": None
        if routed is None
        else {
            "shares": dict(routed.shares),
            "shared_nodes": list(routed.shared),
            "big": routed.big,
            "all_big_replicas": routed.all_big_replicas,
            "ratio": _rounded(routed.ratio),
            "needs": {name: round(need, 4) for name, need in routed.needs.items()},
            "escalated_ratio": _rounded(routed.escalated_ratio),
            "lent_ratio": _rounded(routed.lent_ratio),
            "requests_s": None if routed.estimate is None else round(routed.estimate[0], 4),
            "full_first": None if routed.estimate is None else routed.estimate[1],
            "ratio_by_rates": _rounded(routed.estimate_ratio),
            "certain": routed.certain,
        },
        "splits": [
            {"replicas": dict(s.replicas), "requests_s": round(s.requests_s, 4), "full_first": s.limit} for s in plan.splits
        ],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
