"""Target `sparkrun`: a recipe for each pool, for those who start engines on DGX Spark with sparkrun."""

from __future__ import annotations

import shlex
from typing import Any

from switchyard.cluster.launch import engine_flags, pool_environment
from switchyard.cluster.render.policy import mgmt_url
from switchyard.cluster.render.pools import gateway_policy
from switchyard.cluster.render.source import Files, Source, readme
from switchyard.cluster.render.yaml_text import comment, to_yaml
from switchyard.cluster.spec import Pool

OURS = ("HF_HUB_CACHE", "HF_HUB_OFFLINE")
"""sparkrun puts checkpoints onto the nodes itself."""


def sparkrun_files(source: Source) -> Files:
    """Recipes, the gateway's policy, and the commands that start them."""
    files = {"policy.yaml": gateway_policy(source, mgmt_url(source.cluster)), "README.md": _readme(source)}
    for name, pool in source.cluster.pools.items():
        if source.layout.of(name):
            files[f"{name}.yaml"] = recipe(source, name, pool)
    return files


def recipe(source: Source, name: str, pool: Pool) -> str:
    """One pool's recipe. sparkrun adds the ranks' places, addresses and interfaces to the command by itself."""
    first = next(x for x in source.launches if x.replica.pool == name)
    local = pool.path is not None and pool.path.startswith("/")
    flags = list(engine_flags(pool, first.node))
    if local:
        flags = ["--served-model-name", pool.model, *flags]
    width = ["--tensor-parallel-size {tensor_parallel}"] if pool.tensor_parallel > 1 else []
    lines = ["vllm serve {model}", "--host {host}", "--port {port}", *width, *_pairs(flags)]
    env = {k: v for k, v in pool_environment(source.cluster, pool).items() if k not in OURS}
    of, metadata = pool.checkpoint, {"description": f"pool {name} of a Switchyard cluster"}
    facts = {"num_layers": of.layers, "num_kv_heads": of.kv_heads, "head_dim": of.head_dim, "model_vram": of.weights_gib}
    document: dict[str, Any] = {
        "recipe_version": "2",
        "model": pool.path if local else pool.model,
        "runtime": "vllm-distributed",
        "container": first.image,
        "#nodes": "one replica; tensor parallelism is nodes times GPUs",
        "min_nodes": pool.nodes_per_replica,
        "max_nodes": pool.nodes_per_replica,
        "defaults": {"host": "0.0.0.0", "port": pool.port, "tensor_parallel": pool.tensor_parallel},
        "env": env,
        "metadata": metadata | {k: round(v, 2) for k, v in facts.items() if v is not None},
        "#command": "sparkrun adds --nnodes, --node-rank, --master-addr and --headless",
        "command": " \\\n    ".join(lines) + "\n",
    }
    return comment(source.header(f"A sparkrun recipe for pool {name}.")) + to_yaml(document)


def _pairs(flags: list[str]) -> list[str]:
    """Flags with their values, one a line."""
    lines: list[str] = []
    for word in flags:
        if word.startswith("--") or not lines:
            lines.append(shlex.quote(word))
        else:
            lines[-1] += f" {shlex.quote(word)}"
    return lines


def _readme(source: Source) -> str:
    runs = []
    for name in source.cluster.pools:
        for replica in source.layout.of(name):
            hosts = ",".join(source.cluster.node(n).mgmt for n in replica.nodes)
            own = f" --port {source.cluster.pools[name].port + replica.shift}" if replica.shift else ""
            runs.append(f"`sparkrun run ./{name}.yaml -H {hosts}{own}` ({replica.name})")
    keys = [f"VLLM_API_KEY (the value of {p.api_key_env}) for {n}" for n, p in source.cluster.pools.items() if p.api_key_env]
    secrets = (
        [f"Put {' and '.join(keys)} into an `env_file` of your sparkrun cluster; recipes hold no secrets."] if keys else []
    )
    uneven = [f"Beware: nodes of {n} differ, and its recipe is that of its first rank: adapt a copy." for n in source.uneven()]
    port = source.cluster.gateway.port
    return readme(
        "sparkrun recipes",
        *secrets,
        *uneven,
        "Start each replica: " + "; ".join(runs) + ".",
        f"`switchyard serve policy.yaml --host 0.0.0.0 --port {port}` on any machine that reaches the heads. sparkrun's own "
        "proxy is not needed.",
    )
