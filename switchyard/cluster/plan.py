"""What a cluster will do: where everything runs, how fast each pool is, what routing gains, and which split is best."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from switchyard.cluster.fit import kv_tokens, number
from switchyard.cluster.fitting import Undetermined
from switchyard.cluster.place import Layout, lay_out
from switchyard.cluster.pool_speed import pool_speed
from switchyard.cluster.spec import Cluster
from switchyard.cluster.speed import EngineSpeed
from switchyard.cluster.throughput import (
    against_all_big,
    escalated,
    limiting_pool,
    rate_needed,
    routed_requests_s,
)

PLACES = 8
"""Requests that an engine is supposed to work on at once where the file has no max_num_seqs."""
SPARK_FIGURES = "shipped figures are of DGX Spark, and its nodes are none: measure yours"
ESCALATED = 0.10
"""The share of escalations that plans show the price of."""


@dataclass(frozen=True, slots=True)
class Load:
    """What requests are like: tokens of prompt and of answer, on average. As llama-benchy measures, by default."""

    prompt_tokens: int = 8192
    answer_tokens: int = 256


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """One pool's part.

    Attributes:
        name: of the pool.
        replicas: that run.
        speed: of one replica; None where the file says too little.
        unknown: why there is no speed.
        requests_s: of one saturated replica; None where that is not known.
        requests_from: what that figure is: from the file, or computed from the speed.
        kv_tokens: that the KV cache of a replica holds.
        remark: what is odd about the figures; empty as a rule.
    """

    name: str
    replicas: int
    speed: EngineSpeed | None
    unknown: str
    requests_s: float | None
    requests_from: str
    kv_tokens: int | None
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Routed:
    """What routing does for one mix of requests.

    Attributes:
        shares: of the requests, by pool.
        shared: nodes on which replicas share a GPU; then the algebra doesn't hold, and there are no ratios.
        big: the pool that the layout is compared with having alone.
        all_big_replicas: that would have place.
        ratio: against the big model alone, if the big pool is full first; None where none has place alone.
        needs: what a replica of each other pool must do for that, in units of a big replica's rate.
        estimate: requests a second by the rates that are known or estimated, and the pool that is full first.
        estimate_ratio: the same against the big model alone.
        certain: whether all rates are measured or fitted to measurements of that very model.
        escalated_share: of the others' requests, that the big pool has to do, too, in `escalated_ratio`.
        escalated_ratio: with those escalations.
        lent_ratio: with one big replica fewer; None when there is only one.
    """

    shares: Mapping[str, float]
    shared: tuple[str, ...]
    big: str
    all_big_replicas: int
    ratio: float | None
    needs: Mapping[str, float]
    estimate: tuple[float, str] | None
    estimate_ratio: float | None
    certain: bool
    escalated_share: float
    escalated_ratio: float | None
    lent_ratio: float | None


@dataclass(frozen=True, slots=True)
class Split:
    """A number of replicas for each pool, and what it does for a mix."""

    replicas: Mapping[str, int]
    requests_s: float
    limit: str


@dataclass(frozen=True)
class Plan:
    """All of it."""

    cluster: Cluster
    layout: Layout
    load: Load
    pools: tuple[PoolPlan, ...]
    routed: Routed | None
    splits: tuple[Split, ...]


class BadMix(ValueError):
    """Shares that make no sense for this cluster; the message says why."""


def make_plan(cluster: Cluster, mix: str | None = None, load: Load | None = None, solve_all: bool = False) -> Plan:
    """Place, predict, compare.

    Args:
        cluster: as the file says.
        mix: share of requests that go to the big pool, like 0.25; or one for each pool, like qwen=0.25,minicpm=0.75.
        load: what requests are like.
        solve_all: place everything anew, whatever the file says.

    Raises:
        BadMix: the mix doesn't fit the cluster.
    """
    load = load or Load()
    layout = lay_out(cluster, solve_all)
    pools = tuple(_pool_plan(cluster, layout, name, load) for name in cluster.pools)
    if mix is None:
        return Plan(cluster, layout, load, pools, None, ())
    shares = read_mix(cluster, mix)
    rates = {p.name: p.requests_s for p in pools if p.requests_s is not None}
    routed = _routed(cluster, layout, {p.name: p for p in pools}, shares)
    return Plan(cluster, layout, load, pools, routed, tuple(_splits(cluster, shares, rates)))


def big_pool(cluster: Cluster) -> str:
    """The pool with the largest weights; without their sizes, the one with the most ranks."""
    return max(cluster.pools, key=lambda n: (cluster.pools[n].checkpoint.weights_gib or 0, cluster.pools[n].tensor_parallel))


def read_mix(cluster: Cluster, mix: str) -> dict[str, float]:
    """Shares by pool.

    Raises:
        BadMix: with what is wrong.
    """
    big = big_pool(cluster)
    try:
        if "=" not in mix:
            others = [name for name in cluster.pools if name != big]
            if len(others) != 1:
                raise BadMix(f"with {len(cluster.pools)} pools say the share of each, like {big}=0.5,...")
            shares = {big: float(mix), others[0]: 1 - float(mix)}
        else:
            pairs = [part.split("=", 1) for part in mix.split(",")]
            shares = {name.strip(): float(value) for name, value in pairs}
    except ValueError as error:
        if isinstance(error, BadMix):
            raise
        raise BadMix(f"{mix} is no mix: a share like 0.25, or one for each pool like {big}=0.25,...") from None
    strange = [name for name in shares if name not in cluster.pools]
    if strange:
        raise BadMix(f"there is no pool {strange[0]}: the pools are {', '.join(cluster.pools)}")
    if not all(0 <= share <= 1 for share in shares.values()) or abs(sum(shares.values()) - 1) > 1e-9:
        raise BadMix(f"shares are between 0 and 1 and add up to 1, not {sum(shares.values()):g}")
    return {name: shares.get(name, 0.0) for name in cluster.pools}


def _pool_plan(cluster: Cluster, layout: Layout, name: str, load: Load) -> PoolPlan:
    pool, running = cluster.pools[name], layout.of(name)
    speed, unknown = None, ""
    try:
        speed = pool_speed(cluster, name)
    except Undetermined as missing:
        unknown = str(missing)
    requests_s, source = pool.speed.saturated_requests_s, "from the file"
    if requests_s is None and speed is not None:
        places = int(number(pool, "max_num_seqs") or PLACES)
        requests_s = speed.requests_s(places, load.prompt_tokens, load.answer_tokens)
        source = f"{speed.origin}, {places} at once"
    tokens = [kv_tokens(pool, t.memory.kv) for taken in layout.taken.values() for t in taken if t.pool == name]
    known = [t for t in tokens if t is not None]
    strange = any(not cluster.node(n).unified for r in running for n in r.nodes)
    remark = SPARK_FIGURES if strange and speed is not None and speed.origin != "measured" else ""
    return PoolPlan(name, len(running), speed, unknown, requests_s, source, min(known, default=None), remark)


def shared_nodes(layout: Layout) -> tuple[str, ...]:
    """Nodes with a GPU that has more than one rank."""
    return tuple(node for node, taken in layout.taken.items() if len({t.gpu for t in taken}) < len(taken))


def _routed(cluster: Cluster, layout: Layout, pools: Mapping[str, PoolPlan], shares: Mapping[str, float]) -> Routed:
    big = big_pool(cluster)
    share, replicas = shares[big], pools[big].replicas
    alone, shared = most_replicas(cluster, big), shared_nodes(layout)
    comparable = share > 0 and alone > 0 and replicas > 0 and not shared
    ratio = against_all_big(share, replicas, alone) if comparable else None
    needs = {
        name: rate_needed(shares[name], pool.replicas, share, replicas)
        for name, pool in pools.items()
        if name != big and shares[name] > 0 and share > 0 and pool.replicas > 0 and replicas > 0
    }
    rates = {name: pool.requests_s for name, pool in pools.items() if pool.requests_s is not None}
    counts = {name: pool.replicas for name, pool in pools.items()}
    estimate = None
    if not shared and all(name in rates for name, part in shares.items() if part > 0):
        estimate = (routed_requests_s(shares, counts, rates), limiting_pool(shares, counts, rates))
    by_rates = None
    if estimate is not None and big in rates and alone > 0:
        by_rates = estimate[0] / (alone * rates[big])
    with_escalation = escalated(shares, big, ESCALATED)[big]
    return Routed(
        shares=shares,
        shared=shared,
        big=big,
        all_big_replicas=alone,
        ratio=ratio,
        needs=needs,
        estimate=estimate,
        estimate_ratio=by_rates,
        certain=all(_certain(cluster, pools[name]) for name, part in shares.items() if part > 0),
        escalated_share=ESCALATED,
        escalated_ratio=None if ratio is None else against_all_big(with_escalation, replicas, alone),
        lent_ratio=None if ratio is None or replicas < 2 else against_all_big(share, replicas - 1, alone),
    )


def _certain(cluster: Cluster, pool: PoolPlan) -> bool:
    given = cluster.pools[pool.name].speed.saturated_requests_s is not None
    return given or (pool.speed is not None and pool.speed.origin != "scaled")


def most_replicas(cluster: Cluster, name: str) -> int:
    """How many replicas of one pool the active nodes hold when it has them to itself, one rank a GPU."""
    pool = cluster.pools[name]
    gpus = sum(node.gpus for node in cluster.nodes if node.state == "active")
    for count in range(gpus // pool.tensor_parallel, 0, -1):
        if _alone_on_gpus(cluster, {name: count}):
            return count
    return 0


def _alone_on_gpus(cluster: Cluster, replicas: Mapping[str, int]) -> bool:
    """Whether so many replicas have place without sharing a GPU."""
    pools = {
        name: cluster.pools[name].model_copy(update={"replicas": count, "placement": None})
        for name, count in replicas.items()
        if count > 0
    }
    layout = lay_out(cluster.model_copy(update={"pools": pools}))
    return not layout.unplaced and not shared_nodes(layout)


def _splits(cluster: Cluster, shares: Mapping[str, float], rates: Mapping[str, float]) -> Iterator[Split]:
    """Every way to give all GPUs to two pools, the best for the mix first; none where a rate isn't known.

    Each pool keeps its `min_replicas`, those without a share of the mix, too.
    """
    used = [name for name in cluster.pools if shares[name] > 0]
    if len(used) != 2 or any(name not in rates for name in used):
        return
    first, second = used
    width = {name: pool.tensor_parallel for name, pool in cluster.pools.items()}
    least = {name: max(pool.min_replicas, name in used) for name, pool in cluster.pools.items()}
    idle = {name: count for name, count in least.items() if name not in used and count}
    gpus = sum(node.gpus for node in cluster.nodes if node.state == "active") - sum(idle[n] * width[n] for n in idle)
    found = []
    for count in range(least[first], gpus // width[first] + 1):
        replicas = {first: count, second: (gpus - count * width[first]) // width[second], **idle}
        if replicas[second] >= least[second] and _alone_on_gpus(cluster, replicas):
            total = routed_requests_s(shares, replicas, rates)
            found.append(Split(replicas, total, limiting_pool(shares, replicas, rates)))
    yield from sorted(found, key=lambda split: -split.requests_s)
