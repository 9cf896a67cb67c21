"""Target `pools`: the gateway's policy, and the file that it can watch. What every other target builds on."""

from __future__ import annotations

from switchyard.cluster.render.policy import UrlOf, mgmt_url, policy_text, pool_blocks, pools_text, replicas_text
from switchyard.cluster.render.source import Files, Source, readme
from switchyard.cluster.render.yaml_text import comment


def pools_files(source: Source) -> Files:
    """policy.yaml, the same pools alone, and replicas.yaml."""
    cluster, url_of = source.cluster, mgmt_url(source.cluster)
    blocks = pool_blocks(cluster, source.layout, source.policy, url_of)
    return {
        "policy.yaml": gateway_policy(source, url_of),
        "pools.yaml": comment(source.header("The pools alone, for a policy that is kept elsewhere.")) + pools_text(blocks),
        "replicas.yaml": comment(source.header("The replicas of each pool.")) + replicas_text(cluster, source.layout, url_of),
        "README.md": readme(
            "The gateway's pools",
            "`policy.yaml` is complete: `switchyard check policy.yaml`, then `switchyard serve policy.yaml`. A gateway that "
            "runs already takes a changed file by itself.",
            "`pools.yaml` is its `pools:` block alone, to be pasted.",
            "`replicas.yaml` lists the replicas alone, for a policy whose pools say `replicas: file://replicas.yaml`.",
        ),
    }


def gateway_policy(source: Source, url_of: UrlOf, with_nodes: bool = True) -> str:
    """The whole policy of the gateway. Where an orchestrator picks the nodes, it doesn't name them."""
    blocks = pool_blocks(source.cluster, source.layout, source.policy, url_of, with_nodes)
    return policy_text(blocks, source.policy_source, source.cluster.gateway.port)
