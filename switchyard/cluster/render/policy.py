"""The gateway's policy with the pools of a cluster: their `model` and `replicas` from here, all else as it stands.

The text of the policy is kept, comments included, except for its `pools:` block, which is written anew: the cluster file
says where a model runs, the policy says how it is used, so that deploying and routing can't differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from switchyard.cluster.fit import number
from switchyard.cluster.place import Layout, Replica
from switchyard.cluster.render.yaml_text import flow
from switchyard.cluster.spec import Cluster
from switchyard.config.edit import block_lines
from switchyard.config.policy import Policy
from switchyard.config.pool import Pool as PolicyPool

UrlOf = Callable[[Replica], str]
"""Where the gateway reaches the head of a replica."""


NOTE = "# Model and replicas are written by `switchyard cluster render`; all else is the policy's."
API_KEYS_ENV = "SWITCHYARD_API_KEYS"


def mgmt_url(cluster: Cluster) -> UrlOf:
    """By the head's management address."""

    def url(replica: Replica) -> str:
        return f"http://{host(cluster.node(replica.head).mgmt)}:{cluster.pools[replica.pool].port + replica.shift}"

    return url


def host(address: str) -> str:
    """An address as it stands in a URL: IPv6 in brackets."""
    return f"[{address}]" if ":" in address else address


def pool_blocks(
    cluster: Cluster, layout: Layout, policy: Policy | None, url_of: UrlOf, with_nodes: bool = True
) -> dict[str, dict[str, Any]]:
    """The pools as a policy has them; those of the policy that are not in the cluster come last, as they are."""
    known = policy.pools if policy is not None else {}
    blocks: dict[str, dict[str, Any]] = {}
    for name, pool in cluster.pools.items():
        own = _kept(known[name]) if name in known else {}
        limits = {} if number(pool, "max_num_seqs") is None else {"in_flight": int(number(pool, "max_num_seqs") or 0)}
        if limits and "in_flight" not in own.get("limits", {}):
            own["limits"] = {**limits, **own.get("limits", {})}
        if pool.api_key_env is not None:
            own["api_key_env"] = pool.api_key_env
        replicas = [replica_block(r, url_of, with_nodes) for r in layout.of(name)]
        blocks[name] = {"model": pool.model, "replicas": replicas, **own}
    for name, other in known.items():
        if name not in blocks:
            blocks[name] = other.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return blocks


def _kept(pool: PolicyPool) -> dict[str, Any]:
    dumped = pool.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return {key: value for key, value in dumped.items() if key not in {"model", "replicas"}}


def replica_block(replica: Replica, url_of: UrlOf, with_nodes: bool = True) -> dict[str, Any]:
    """A replica as a policy lists it."""
    nodes = {"nodes": list(replica.nodes)} if with_nodes else {}
    return {"url": url_of(replica), "name": replica.name, **nodes}


def pools_text(blocks: Mapping[str, dict[str, Any]]) -> str:
    """A `pools:` block, in the style of the shipped policies."""
    lines = [NOTE, "pools:"]
    for name, block in blocks.items():
        lines.append(f"  {name}:")
        for key, value in block.items():
            if key == "replicas" and isinstance(value, list):
                lines += ["    replicas:", *(f"      - {flow(r)}" for r in value)]
            else:
                lines.append(f"    {key}: {flow(value)}")
    return "\n".join(lines) + "\n"


def policy_text(blocks: Mapping[str, dict[str, Any]], source: str | None, port: int) -> str:
    """A whole policy.

    Args:
        blocks: its pools.
        source: text of the policy to take everything else from; None for one with the pools alone.
        port: of the gateway, where there is no source.

    Raises:
        CannotEdit: the pools of the source can't be told from the rest of its text.
    """
    if source is not None:
        return _replace_block(source, pools_text(blocks))
    server = f"""\
# The cluster file names no gateway.policy: clients ask for pools by name. Add routes here, keep this file, and name it there.
version: 1

server:
  host: 0.0.0.0                            # the whole network may call: that needs keys
  port: {port}
  api_keys_env: {API_KEYS_ENV}        # a variable with comma-separated keys

"""
    return server + pools_text(blocks)


def _replace_block(source: str, pools: str) -> str:
    """The text with its top-level `pools:` exchanged.

    Comments right above the next block stay with that. The line that tells editors where the schema is goes: its path is
    relative to where the policy was.
    """
    lines = source.splitlines(keepends=True)
    start, end = block_lines(source, "pools")
    while end > start + 1 and (not lines[end - 1].strip() or lines[end - 1].startswith("#")):
        end -= 1
    kept = [line for line in lines[:start] if not line.startswith(("# yaml-language-server:", NOTE))]
    while kept and kept[0].strip() in {"", "#"}:
        kept = kept[1:]
    return "".join(kept) + pools + "".join(lines[end:])


def replicas_text(cluster: Cluster, layout: Layout, url_of: UrlOf) -> str:
    """The replicas of each pool, for policies that say `replicas: file://...` and gateways that watch that file."""
    pools = {name: [replica_block(r, url_of) for r in layout.of(name)] for name in cluster.pools if layout.of(name)}
    return "".join(f"{name}:\n" + "".join(f"  - {flow(block)}\n" for block in blocks) for name, blocks in pools.items())
