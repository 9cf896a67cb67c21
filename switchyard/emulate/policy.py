"""The policy of a gateway in front of stand-in engines: a given one with its replicas replaced, or the pools alone. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from switchyard.cluster.spec import Cluster
from switchyard.config.policy import Policy

Replicas = Mapping[str, Sequence[Mapping[str, Any]]]
"""Blocks of replicas (url, name, nodes) by pool."""


def policy_for(cluster: Cluster, replicas: Replicas, policy: Policy | None) -> dict[str, Any]:
    """A policy for the gateway in front: on loopback, without keys, with these replicas.

    Raises:
        ValueError: a pool has no replica, or the policy has a pool that the cluster has not.
    """
    for name in cluster.pools:
        if not replicas.get(name):
            raise ValueError(f"no replica of pool {name} runs: its nodes are lent or cordoned, or there is no room")
    if policy is None:
        return {"version": 1, "pools": {name: _block(cluster, name, replicas) for name in cluster.pools}}
    if missing := [name for name in policy.pools if name not in replicas]:
        raise ValueError(f"the policy has a pool {missing[0]} that the cluster has not: it has {', '.join(cluster.pools)}")
    document = policy.model_dump(mode="json", exclude_unset=True, by_alias=True)
    server = document.get("server", {})
    for key in ("host", "port", "api_keys_env", "admin_key_env"):
        server.pop(key, None)
    for name, block in document["pools"].items():
        block.update(model=cluster.pools[name].model, replicas=[dict(r) for r in replicas[name]])
        block.pop("api_key_env", None)
    return document


def _block(cluster: Cluster, name: str, replicas: Replicas) -> dict[str, Any]:
    block: dict[str, Any] = {"model": cluster.pools[name].model, "replicas": [dict(r) for r in replicas[name]]}
    places = cluster.pools[name].engine.get("max_num_seqs")
    return {**block, "limits": {"in_flight": places}} if isinstance(places, int) else block
