"""The policy of a gateway in front of stand-in engines: a given one with its replicas replaced, or the pools alone. Pure."""

from __future__ import annotations

from typing import Any

from switchyard.cluster.place import Layout
from switchyard.cluster.render.policy import UrlOf, pool_blocks
from switchyard.cluster.spec import Cluster
from switchyard.config.policy import Policy


def policy_for(cluster: Cluster, layout: Layout, policy: Policy | None, url_of: UrlOf) -> dict[str, Any]:
    """A policy for the gateway in front: on loopback, without keys, with the replicas that run.

    Raises:
        ValueError: a pool has no replica, or the policy has a pool that the cluster has not.
    """
    for name in cluster.pools:
        if not layout.of(name):
            raise ValueError(f"no replica of pool {name} runs: its nodes are lent or cordoned, or there is no room")
    document: dict[str, Any] = {"version": 1}
    if policy is not None:
        if missing := [name for name in policy.pools if name not in cluster.pools]:
            raise ValueError(f"the policy has a pool {missing[0]} that the cluster has not: it has {', '.join(cluster.pools)}")
        document = policy.model_dump(mode="json", exclude_unset=True, by_alias=True)
        for key in ("host", "port", "api_keys_env", "admin_key_env"):
            document.get("server", {}).pop(key, None)
    document["pools"] = pool_blocks(cluster, layout, policy, url_of)
    for block in document["pools"].values():
        block.pop("api_key_env", None)
    return document
