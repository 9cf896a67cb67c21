"""Flags, environment and heads: what an engine would refuse at its start, minutes later."""

from __future__ import annotations

import re
from collections.abc import Iterator

from switchyard.cluster.checks.finding import Finding, error, warning
from switchyard.cluster.fit import number
from switchyard.cluster.flags import KNOWN, OWNED
from switchyard.cluster.spec import Cluster
from switchyard.config.problem import KeyPath
from switchyard.config.references import nearest

_SECRET = re.compile(r"(^|_)(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(_|$)")


def check_engines(cluster: Cluster) -> Iterator[Finding]:
    """Flags that are ours or unknown, secrets in the environment, a context longer than the model's."""
    for name, pool in cluster.pools.items():
        at: KeyPath = ("pools", name, "engine")
        for flag in pool.engine:
            if flag in OWNED:
                yield error((*at, flag), f"{flag} is set by Switchyard", f"it follows from {OWNED[flag]}")
            elif flag not in KNOWN and flag.removeprefix("no_") not in KNOWN:
                yield warning((*at, flag), f"no flag that we know: it is passed on as --{flag.replace('_', '-')}", _near(flag))
        for variable in pool.env:
            if _SECRET.search(variable.upper()):
                hint = "keys of engines: api_key_env; others: your orchestrator's secrets"
                yield error(("pools", name, "env", variable), "a secret? env is written into plain files", hint)
        if "kv_cache_memory_gb" in pool.engine and number(pool, "kv_cache_memory_gb") is None:
            yield error((*at, "kv_cache_memory_gb"), "a number of GiB is expected")
        share = number(pool, "gpu_memory_utilization")
        if share is not None and "kv_cache_memory_gb" in pool.engine:
            said = "beside kv_cache_memory_gb it only says how much has to be free at the start"
            yield warning((*at, "gpu_memory_utilization"), said, "leave it out: it follows from the sum")
        elif share is not None and any(n.unified for n in cluster.nodes):
            hint = "kv_cache_memory_gb says exactly what is taken"
            yield warning((*at, "gpu_memory_utilization"), "no hard cap on memory that the CPU shares: machines froze", hint)
        length, context = number(pool, "max_model_len"), pool.checkpoint.context_tokens
        if length is not None and context is not None and length > context:
            yield error((*at, "max_model_len"), f"{length:g} is more than the model's context of {context}")


def _near(flag: str) -> str:
    hint = nearest(flag, sorted(KNOWN))
    return hint if hint.startswith("did") else ""


def check_heads(cluster: Cluster) -> Iterator[Finding]:
    """Whether attention heads and KV heads can be split over the ranks."""
    for name, pool in cluster.pools.items():
        of, ranks = pool.checkpoint, pool.tensor_parallel
        at: KeyPath = ("pools", name, "nodes_per_replica")
        if of.heads is not None and of.heads % ranks:
            yield error(at, f"{of.heads} attention heads can't be split over {ranks} ranks", f"ranks must divide {of.heads}")
        if of.attention == "mla" or of.kv_heads is None:
            continue
        if of.kv_heads % ranks and ranks % of.kv_heads:
            yield error(at, f"{of.kv_heads} KV heads can't be split over {ranks} ranks", "one must divide the other")
        elif of.kv_heads < ranks:
            copies = ranks // of.kv_heads
            yield warning(
                at,
                f"{of.kv_heads} KV heads on {ranks} ranks: each is kept {copies} times, so the KV cache holds "
                f"{1 / copies:.0%} of what {ranks} ranks could hold",
            )
