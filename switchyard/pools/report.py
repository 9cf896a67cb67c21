"""A pool and its replicas as plain data, for `/readyz`, `/admin/pools` and `switchyard pools`. Reads only."""

from __future__ import annotations

from typing import Any

from switchyard.pools.pool import Pool
from switchyard.pools.replica import Replica


def describe_pool(pool: Pool, now_s: float) -> dict[str, Any]:
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


def describe_readiness(pool: Pool) -> dict[str, Any]:
    """What somebody wants to know who asks whether the gateway is ready."""
    replicas = {
        r.label: {"state": r.state, "in_flight": r.in_flight, **({"problem": r.problem} if r.problem else {})}
        for r in pool.replicas
    }
    return {"replicas": replicas, "healthy": sum(r.healthy for r in pool.replicas), "queued": pool.queued}


def describe_replica(replica: Replica, now_s: float) -> dict[str, Any]:
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
