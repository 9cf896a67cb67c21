"""What `switchyard cluster render` writes, taken at its word: a replica over two nodes runs by those command lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from integration.client import ask
from integration.gateway import Serve
from vllm_env import VllmEnv
from vllm_server import environment

from .nodes import FABRIC, Node
from .rendered import read_compose, read_units
from .replica import CONTEXT, MODEL, Rank, Replica, own_core

KEY = "sk-cluster"


def render(cluster: Path, target: str, out: Path) -> Path:
    """Run `switchyard cluster render` as a user does."""
    command = [Path(sys.executable).with_name("switchyard"), "cluster", "render", cluster, "--target", target, "--out", out]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return out


@pytest.fixture
def cluster(machines: list[Node], env: VllmEnv, tmp_path: Path) -> Path:
    """A cluster file for the first two nodes. Its flags are what a CPU and a model of 135 million parameters need."""
    nodes = [{"name": node.name, "mgmt": node.mgmt, "fabric": node.fabric} for node in machines[:2]]
    engine = {
        "max_model_len": CONTEXT, "max_num_seqs": 8, "dtype": "float32", "enforce_eager": True,
        "chat_template": str(env.chat_template),
    }  # fmt: skip
    pool = {
        "model": MODEL, "path": f"/models/{env.model_tp_dir.name}", "image": "vllm-cpu:0.32.0",
        "replicas": 1, "nodes_per_replica": 2, "engine": engine,
        "env": {"VLLM_CPU_KVCACHE_SPACE": "1", "RANK_PROBE_EVERY_S": "2", "RANK_PROBE_FAILURES": "2"},
    }  # fmt: skip
    document = {
        "version": 1,
        "fabric": {"kind": "direct"},
        "node_defaults": {"fabric_ifname": FABRIC, "arch": "amd64", "models_dir": str(env.root)},
        "nodes": nodes,
        "pools": {"smollm": pool},
    }
    file = tmp_path / "cluster.yaml"
    file.write_text(json.dumps(document, indent=1))
    return file


def test_a_rendered_replica_over_two_nodes(machines: list[Node], env: VllmEnv, cluster: Path, tmp_path: Path) -> None:
    """Its command lines start it, the rendered policy routes to it, and when its head dies the other rank ends, too."""
    compose = render(cluster, "compose", tmp_path / "compose")
    units = render(cluster, "systemd", tmp_path / "systemd")
    ranks = []
    for number, node in enumerate(machines[:2]):
        containers = read_compose(compose / node.name)
        assert containers == read_units(units / node.name), "both targets start the same"
        command, variables = containers[f"smollm-1-rank{number}"].without_container()
        ranks.append(Rank(node, command, {**image(env, number), **variables}))
    folder = tmp_path / "engines"
    folder.mkdir()
    policy = render(cluster, "pools", tmp_path / "pools") / "policy.yaml"
    with Replica("rendered", ranks, folder) as replica:
        replica.wait_ready()
        options = ("--host", "127.0.0.1", "--port", "0")
        with Serve(policy.read_text(), tmp_path, *options, environment={"SWITCHYARD_API_KEYS": KEY}) as gateway:
            gateway.wait_ready()
            answer = gateway.client(KEY).post(*ask("chat", model="smollm", max_tokens=4))
            assert (answer.status, answer.replica) == (200, "smollm-1")
            assert answer.json()["choices"][0]["message"]["content"]
        time.sleep(5)  # run_rank.py has to have seen it work
        replica.kill(rank=0)
        replica.wait_ended(rank=1, within_s=60)
    assert "this rank ends" in (folder / "rendered-rank1.log").read_text()


def image(env: VllmEnv, core: int) -> dict[str, str]:
    """What the image would set: where vLLM is, and what a CPU needs that GPUs don't."""
    return {**environment(env), "PATH": f"{env.vllm.parent}:{os.environ['PATH']}", **own_core(core)}
