"""A pool and its replicas as plain data, for `/readyz`, `/admin/pools` and `switchyard pools`. Reads only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from switchyard.pools.pool import Pool
from switchyard.pools.replica import Replica

Json = dict[str, Any]


def describe_pool(pool: Pool, now_s: float) -> Json:
    """Everything about one pool; times are seconds from now."""
    return {
        "pool": pool.name,
        "model": pool.settings.model,
        "balance": pool.settings.balance,
        "taking": sum(r.healthy for r in pool.replicas),
        "queued": pool.queued,
        "queue_limit": pool.settings.limits.queue,
        "source": pool.settings.source,
        "replicas": [describe_replica(r, now_s) for r in (*pool.replicas, *pool.leaving)],
    }


def describe_readiness(pool: Pool) -> Json:
    """What somebody wants to know who asks whether the gateway is ready."""
    replicas = {
        r.label: {"state": r.state, "in_flight": r.in_flight, **({"problem": r.problem} if r.problem else {})}
        for r in pool.replicas
    }
    return {"replicas": replicas, "healthy": sum(r.healthy for r in pool.replicas), "queued": pool.queued}


def describe_replica(replica: Replica, now_s: float) -> Json:
    """Everything about one replica. `back_in_s` is when an ejected one is tried again, `limit` what it takes now."""
    evidence, load = replica.evidence, replica.engine_load
    engine = None
    if load is not None:
        engine = {"running": load.running, "waiting": load.waiting, "kv_cache": load.kv_cache}
    return {
        "replica": replica.label,
        "url": replica.url,
        "nodes": list(replica.nodes),
        "weight": replica.weight,
        "state": replica.state,
        "reason": replica.problem,
        "takes_requests": replica.healthy,
        "in_flight": replica.in_flight,
        "limit": int(replica.limit_at(now_s)),
        "tokens": replica.tokens,
        "foreign": replica.foreign,
        "engine": engine,
        "affinity": dict(replica.affinity),
        "failures": evidence.failures,
        "ejections": evidence.ejections,
        "back_in_s": round(max(0.0, evidence.back_at_s - now_s), 1) if replica.ejected else None,
        "served": replica.served,
    }


def add_up(views: Sequence[Sequence[Json]]) -> list[Json]:
    """What several workers of a gateway say about their pools, as one would say it. The first one's pools are told of.

    Load adds up, and limits, since each worker has its own. A replica takes requests when all say so; its state and reason
    are those of a worker that gives it none, if there is one.
    """
    ours, *others = views
    return [_add_pools([pool, *(p for view in others for p in view if p["pool"] == pool["pool"])]) for pool in ours]


def _add_pools(pools: Sequence[Json]) -> Json:
    def all_views_of(own: Json) -> list[Json]:
        return [r for pool in pools for r in pool["replicas"] if (r["replica"], r["url"]) == (own["replica"], own["url"])]

    replicas = [_add_replicas(all_views_of(own)) for own in pools[0]["replicas"]]
    added = {name: sum(p[name] for p in pools) for name in ("queued", "queue_limit")}
    return {**pools[0], **added, "taking": sum(r["takes_requests"] for r in replicas), "replicas": replicas}


def _add_replicas(views: Sequence[Json]) -> Json:
    shown = next((v for v in views if not v["takes_requests"]), views[0])
    in_flight = sum(v["in_flight"] for v in views)
    everything = max(v["in_flight"] + v["foreign"] for v in views)  # of which each sees the others' part as foreign
    waits_s = [v["back_in_s"] for v in views if v["back_in_s"] is not None]
    return {
        **shown,
        **{name: sum(v[name] for v in views) for name in ("in_flight", "limit", "tokens", "served")},
        **{name: max(v[name] for v in views) for name in ("failures", "ejections")},
        "foreign": max(0.0, everything - in_flight),
        "affinity": {word: sum(v["affinity"][word] for v in views) for word in shown["affinity"]},
        "back_in_s": max(waits_s, default=None),
    }
