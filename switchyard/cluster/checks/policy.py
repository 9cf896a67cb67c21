"""Whether the gateway's policy and the cluster mean the same pools."""

from __future__ import annotations

from collections.abc import Iterator

from switchyard.cluster.checks.finding import Finding, error, warning
from switchyard.cluster.fit import number
from switchyard.cluster.place import Layout
from switchyard.cluster.spec import Cluster
from switchyard.config.policy import Policy
from switchyard.config.problem import KeyPath


def check_policy(cluster: Cluster, layout: Layout, policy: Policy) -> Iterator[Finding]:
    """Pools that only one of them knows, limits that don't match, keys."""
    at: KeyPath = ("gateway", "policy")
    for name in policy.pools:
        if name not in cluster.pools:
            yield warning(at, f"pool {name} of the policy is not in this cluster: it stays as it is")
    used = {name for route in policy.routes.values() for name in route.pools}
    for name, pool in cluster.pools.items():
        if name not in used:
            yield warning(at, f"no route of the policy uses pool {name}", "clients can only ask for it by name")
        if name not in policy.pools:
            continue
        limits, most = policy.pools[name].limits, number(pool, "max_num_seqs")
        if "in_flight" in limits.model_fields_set and most is not None and limits.in_flight > most:
            said = f"pool {name} sends {limits.in_flight} requests at once to a replica that works on {most:g}"
            yield warning(at, said, "the others queue in the engine, where the gateway can't see them")
        if not layout.of(name) and name not in layout.unplaced:  # else that is the error
            yield error(("pools", name), "no replica runs, and the policy needs one", "return nodes, or take the pool out")
    if policy.server.api_keys_env is None:
        hint = "server.api_keys_env in the policy"
        yield error(at, "without keys the gateway listens on loopback only, and is not started for others", hint)
    if cluster.gateway.replicas > 1 and policy.server.state == "memory":
        hint = "server.state: redis://redis:6379/0 in the policy"
        yield error(("gateway", "replicas"), "several gateways need a common state, and server.state is memory", hint)
