"""The memory arithmetic: the formulas, and verdicts on models that people ask about."""

import pytest

from switchyard.cluster.check import check
from switchyard.cluster.fields import BYTES_A_PARAMETER
from switchyard.cluster.fit import OVERHEAD_GIB, kv_bytes_a_token, kv_tokens, rank_memory, ranks_that_fit
from switchyard.cluster.place import lay_out
from switchyard.cluster.spec import Checkpoint, Cluster, Node, Pool
from unit.cluster.make import NOW

FLASH_NEXT = {
    "size_gib": 126,
    "attention": "hybrid",
    "layers": 48,
    "full_layers": 12,
    "heads": 24,
    "kv_heads": 2,
    "head_dim": 256,
}
GLM = {"size_gib": 470e9 / 2**30, "attention": "mla", "layers": 78, "heads": 64}


def pool(checkpoint: dict[str, object] | None = None, **how: object) -> Pool:
    return Pool.model_validate({"model": "m", "image": "i", "replicas": 1, "checkpoint": checkpoint or {}, **how})


def node(memory_gb: float = 128, **how: object) -> Node:
    return Node.model_validate({"name": "s1", "mgmt": "10.0.0.1", "memory_gb": memory_gb, **how})


def cluster(checkpoint: dict[str, object], nodes: int, memory_gb: float, kv_gib: float, each: int) -> Cluster:
    return Cluster.model_validate(
        {
            "version": 1,
            "fabric": {"kind": "switch"},
            "node_defaults": {"memory_gb": memory_gb, "fabric_ifname": "e", "hca": ["a", "b"]},
            "nodes": [{"name": f"s{i}", "mgmt": f"10.0.0.{i}", "fabric": f"192.168.0.{i}"} for i in range(1, nodes + 1)],
            "pools": {
                "big": {
                    "model": "m",
                    "image": "i@sha256:1",
                    "replicas": 1,
                    "nodes_per_replica": each,
                    "engine": {"kv_cache_memory_gb": kv_gib},
                    "checkpoint": checkpoint,
                }
            },
        }
    )


@pytest.mark.parametrize(
    ("model", "nodes", "memory_gb", "kv_gib", "fits", "words"),
    [
        ("flash-next", 2, 128, 20, True, "126.0 GiB / 2 + 20.0 GiB KV + 6 GiB = 89.0 GiB a GPU; 0.80 x 121.7 GiB = 97.4 GiB"),
        (
            "flash-next",
            2,
            64,
            1,
            False,
            "does not fit, 24.7 GiB short; a replica would need 4 such nodes, with its 1.0 GiB of KV cache",
        ),
        ("flash-next", 4, 64, 7, True, "126.0 GiB / 4 + 7.0 GiB KV + 6 GiB = 44.5 GiB a GPU; 0.80 x 56.6 GiB = 45.3 GiB"),
        ("flash-next", 4, 64, 9, False, "does not fit, 1.2 GiB short; with at most 7.8 GiB of KV cache it fits"),
        ("glm", 8, 128, 20, True, "437.7 GiB / 8 + 20.0 GiB KV + 6 GiB = 80.7 GiB a GPU; 0.80 x 121.7 GiB = 97.4 GiB"),
        ("glm", 4, 128, 1, False, "437.7 GiB / 4 + 1.0 GiB KV + 6 GiB = 116.4 GiB a GPU"),
    ],
)
def test_verdicts_with_their_kv_cache(model, nodes, memory_gb, kv_gib, fits, words):
    report = check(cluster({"flash-next": FLASH_NEXT, "glm": GLM}[model], nodes, memory_gb, kv_gib, nodes), NOW)
    (verdict,) = report.verdicts
    assert verdict.fits is fits
    assert words in verdict.words
    assert f"{kv_gib:.1f} GiB KV" in verdict.words
    assert (not report.errors) is fits
    assert (lay_out(cluster(GLM if model == "glm" else FLASH_NEXT, nodes, memory_gb, kv_gib, nodes)).unplaced == {}) is fits


def test_glm_on_four_nodes_says_what_would_do():
    (verdict,) = check(cluster(GLM, 4, 128, 1, 4), NOW).verdicts
    assert "does not fit, 19.1 GiB short; a replica would need 8 such nodes, with its 1.0 GiB of KV cache" in verdict.words
    assert ranks_that_fit(pool(GLM), node(), 8) == (8, pytest.approx(97.36 - 6 - 437.7 / 8, abs=0.05))
    assert ranks_that_fit(pool(GLM), node(), 4) is None
    assert ranks_that_fit(pool(), node(), 8) is None  # of unknown size


def test_what_would_do_is_said_where_the_nodes_are_there():
    (verdict,) = check(cluster(FLASH_NEXT, 4, 64, 9, 2), NOW).verdicts
    assert "on 4 nodes a replica it fits, with at most 7.8 GiB of KV cache" in verdict.words
    (verdict,) = check(cluster({"size_gib": 9000}, 2, 64, 9, 2), NOW).verdicts
    assert "its weights don't fit 16 such nodes in any way" in verdict.words


def test_bytes_of_a_token():
    gqa = {"layers": 10, "kv_heads": 4, "head_dim": 128}
    assert kv_bytes_a_token(pool(gqa)) == 2 * 10 * 4 * 128 * 2
    assert kv_bytes_a_token(pool(gqa, nodes_per_replica=2)) == 2 * 10 * 2 * 128 * 2
    assert kv_bytes_a_token(pool(gqa, nodes_per_replica=8)) == 2 * 10 * 1 * 128 * 2  # at least one head a rank
    assert kv_bytes_a_token(pool(gqa, engine={"kv_cache_dtype": "fp8"})) == 2 * 10 * 4 * 128
    assert kv_bytes_a_token(pool({**gqa, "attention": "hybrid", "full_layers": 2})) == 2 * 2 * 4 * 128 * 2
    assert kv_bytes_a_token(pool(GLM, nodes_per_replica=8)) == 78 * (512 + 64) * 2  # not divided
    assert kv_bytes_a_token(pool({"layers": 10})) is None
    assert kv_bytes_a_token(pool()) is None


def test_tokens_are_planned_with_a_margin():
    of = pool({"layers": 1, "kv_heads": 1, "head_dim": 256})  # 1,024 bytes a token
    assert kv_tokens(of, 1) == int(0.55 * 2**20)
    assert kv_tokens(pool(), 1) is None


def test_where_the_kv_cache_comes_from():
    weights = {"size_gib": 40}
    assert rank_memory(pool(weights, engine={"kv_cache_memory_gb": 7.5}), node()).kv == 7.5
    assert rank_memory(pool(weights, engine={"gpu_memory_utilization": 0.5}), node()).kv == pytest.approx(0.5 * 121.7 - 46)
    assert rank_memory(pool(weights), node()).kv == pytest.approx(0.8 * 121.7 - 46)  # all that is left
    assert rank_memory(pool({"size_gib": 200}), node()).kv == 0
    assert rank_memory(pool(), node()).weights is None
    assert rank_memory(pool(weights, nodes_per_replica=2), node()).weights == 20
    assert rank_memory(pool(weights), node()).total == pytest.approx(0.8 * 121.7)
    assert rank_memory(pool(engine={"kv_cache_memory_gb": 1}), node()).total == 1 + OVERHEAD_GIB


@pytest.mark.parametrize(("kind", "width"), BYTES_A_PARAMETER.items())
def test_weights_without_a_size_follow_from_parameters(kind, width):
    of = Checkpoint.model_validate({"parameters_b": 753, "format": kind})
    assert of.weights_gib == pytest.approx(753e9 * width / 2**30)


def test_the_real_size_wins():
    assert Checkpoint.model_validate({"size_gib": 437.7, "parameters_b": 753, "format": "nvfp4"}).weights_gib == 437.7
