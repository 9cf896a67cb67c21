"""Which figures a pool gets: its owner's, published ones, or scaled ones; and what it takes to have any."""

from __future__ import annotations

import json
from typing import Any

import pytest

from switchyard.cluster.fitting import Undetermined
from switchyard.cluster.pool_speed import link_of, pool_speed
from switchyard.cluster.spec import Cluster, Fabric, parse_cluster
from switchyard.cluster.speed import DenseModel, ExpertModel

Json = dict[str, Any]


def cluster(nodes: int = 1, fabric: str = "switch", **pool: Any) -> Cluster:
    block = {"model": "acme/model", "image": "vllm/vllm-openai:v0.33.0", "replicas": 1, "nodes_per_replica": nodes, **pool}
    text = {
        "version": 1,
        "fabric": {"kind": fabric},
        "nodes": [{"name": f"s{i}", "mgmt": f"10.0.0.{i}"} for i in range(1, 9)],
        "pools": {"big": block},
    }
    return parse_cluster(json.dumps(text).encode()).value


def test_links() -> None:
    assert link_of(Fabric(kind="ring"), 1) == "none"
    assert link_of(Fabric(kind="ring"), 4) == "ring"
    assert link_of(Fabric(kind="switch"), 2) == "switch"
    assert link_of(Fabric(kind="switch", collectives="rocenante"), 8) == "switch+rocenante"
    with pytest.raises(Undetermined, match="fabric"):
        link_of(Fabric(), 2)


def test_own_measurements_win() -> None:
    measured = [
        {"nodes": 2, "concurrency": 1, "decode_tok_s": 20, "prefill_tok_s": 3000},
        {"nodes": 2, "concurrency": 8, "decode_tok_s": 80},
        {"nodes": 1, "concurrency": 1, "decode_tok_s": 999, "prefill_tok_s": 9999},
    ]
    speed = pool_speed(cluster(2, speed={"measured": measured, "like": "qwen3.8-27b-nvfp4"}), "big")
    assert speed.origin == "measured"
    assert speed.decode_tokens_s(1) == pytest.approx(20)
    assert speed.decode_tokens_s(8) == pytest.approx(80)
    assert speed.prefill_tokens_s == 3000


def test_what_was_not_measured_is_filled_and_said() -> None:
    only_decode = [{"nodes": 2, "decode_tok_s": 20}]
    speed = pool_speed(cluster(2, speed={"measured": only_decode, "like": "qwen3.8-27b-nvfp4"}), "big")
    assert speed.origin == "fitted"
    assert speed.decode_tokens_s() == pytest.approx(20)
    assert speed.prefill_tokens_s == pytest.approx(DenseModel().speed(2, "direct").prefill_tokens_s)
    assert speed.note.startswith("decode measured by you; prefill fitted")
    only_prefill = [{"nodes": 2, "prefill_tok_s": 1234}]
    speed = pool_speed(cluster(2, speed={"measured": only_prefill, "like": "qwen3.8-27b-nvfp4"}), "big")
    assert speed.prefill_tokens_s == 1234
    assert speed.note.startswith("prefill measured by you; decode fitted")


def test_shipped_figures_and_scale() -> None:
    speed = pool_speed(cluster(2, speed={"like": "qwen3.8-27b-nvfp4"}), "big")
    assert speed.decode_tokens_s() == pytest.approx(21.71, rel=0.03)  # measured over a cable, without a switch
    twice = pool_speed(cluster(2, speed={"like": "qwen3.8-27b-nvfp4", "scale": 2}), "big")
    assert twice.origin == "scaled"
    assert twice.decode_tokens_s() == pytest.approx(2 * speed.decode_tokens_s())
    assert twice.prefill_tokens_s == pytest.approx(2 * speed.prefill_tokens_s)


def test_glm_needs_eight_nodes_and_a_prefill() -> None:
    like = {"like": "glm-5.3-nvfp4"}
    with pytest.raises(Undetermined, match="8 nodes only"):
        pool_speed(cluster(4, speed=like), "big")
    with pytest.raises(Undetermined, match="prefill_tok_s of yours"):
        pool_speed(cluster(8, speed=like), "big")
    speed = pool_speed(cluster(8, speed=like | {"measured": [{"nodes": 8, "prefill_tok_s": 900}]}), "big")
    assert speed.decode_tokens_s(4) == pytest.approx(ExpertModel().total_tokens_s(4))
    assert speed.prefill_tokens_s == 900


def test_scaled_by_its_size() -> None:
    by_size = pool_speed(cluster(checkpoint={"size_gib": 2.22}), "big")
    assert by_size.origin == "scaled"
    assert by_size.decode_tokens_s() > 3 * 11.86
    by_parameters = pool_speed(cluster(checkpoint={"parameters_b": 2.0, "format": "bf16"}), "big")
    by_gib = pool_speed(cluster(checkpoint={"size_gib": 2e9 * 2 / 2**30}), "big")
    assert by_parameters == by_gib
    active = pool_speed(cluster(checkpoint={"size_gib": 126, "active_gib": 10}), "big")
    assert active.decode_tokens_s() > by_size.decode_tokens_s() / 5


def test_nothing_known_and_unknown_name() -> None:
    with pytest.raises(Undetermined, match=r"pools\.big: nothing tells its speed"):
        pool_speed(cluster(), "big")
    with pytest.raises(Undetermined, match=r"known: qwen3\.8-27b-nvfp4"):
        pool_speed(cluster(speed={"like": "qwen"}), "big")
