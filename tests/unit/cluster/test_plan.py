"""Plans: the algebra of routing, what it rests on, and what is said where something is not known."""

import xml.etree.ElementTree as ElementTree

import pytest

from switchyard.cluster.picture import draw
from switchyard.cluster.plan import BadMix, Load, Plan, big_pool, make_plan, most_replicas, read_mix
from switchyard.cluster.throughput import (
    against_all_big,
    escalated,
    limiting_pool,
    rate_needed,
    routed_requests_s,
)
from unit.cluster.make import EXAMPLES, SPARKS, cluster_of, example


def test_three_of_four_replicas():
    """3 / (4 f): 1.5 at a half, 3.0 at a quarter; slower than without routing above three quarters."""
    assert against_all_big(0.5, 3, 4) == 1.5
    assert against_all_big(0.25, 3, 4) == 3.0
    assert against_all_big(0.75, 3, 4) == 1.0
    assert against_all_big(0.8, 3, 4) < 1


def test_the_algebra_is_that_of_saturated_pools():
    shares, replicas = {"big": 0.25, "small": 0.75}, {"big": 3, "small": 2}
    enough = {"big": 1.0, "small": rate_needed(0.75, 2, 0.25, 3)}
    assert enough["small"] == 4.5
    assert routed_requests_s(shares, replicas, enough) / (4 * 1.0) == 3.0
    assert limiting_pool(shares, replicas, {"big": 1.0, "small": 4.6}) == "big"
    assert limiting_pool(shares, replicas, {"big": 1.0, "small": 4.4}) == "small"
    assert routed_requests_s(shares, replicas, {"big": 1.0, "small": 1.0}) == pytest.approx(2 / 0.75)
    assert routed_requests_s({"big": 1.0, "small": 0.0}, replicas, {"big": 2.0}) == 6.0


def test_escalations_and_lending_cost():
    shares = escalated({"big": 0.25, "small": 0.75}, "big", 0.1)
    assert shares == {"big": 0.325, "small": 0.75}
    assert against_all_big(shares["big"], 3, 4) == pytest.approx(2.31, abs=0.005)
    assert against_all_big(0.25, 2, 4) == 2.0


def plan_of(name: str, mix: str | None = None, **how: object) -> Plan:
    return make_plan(example(name), mix, **how)  # type: ignore[arg-type]


def test_the_reference_cluster():
    routed = plan_of("cluster", "0.25").routed
    assert routed is not None
    assert (routed.big, routed.all_big_replicas) == ("qwen", 4)
    assert (routed.ratio, routed.needs) == (3.0, {"minicpm": 4.5})
    assert routed.escalated_ratio == pytest.approx(2.31, abs=0.005)
    assert routed.lent_ratio == 2.0
    assert not routed.certain  # its speeds are scaled from another model's


def rated(big: float, small: float) -> str:
    """The four nodes with rates of their own."""
    text = SPARKS.replace(
        "checkpoint: {size_gib: 126}", f"checkpoint: {{size_gib: 126}}\n    speed: {{saturated_requests_s: {big}}}"
    )
    return text.replace(
        "checkpoint: {size_gib: 5}", f"checkpoint: {{size_gib: 5}}\n    speed: {{saturated_requests_s: {small}}}"
    )


def test_rates_from_the_file_are_certain():
    plan = make_plan(cluster_of(rated(1.0, 10.0)), "0.25")
    assert plan.routed is not None
    assert plan.routed.certain
    assert plan.routed.estimate == (4.0, "big")
    assert plan.routed.ratio == plan.routed.estimate_ratio == 2.0  # one of two, at a quarter
    slow = make_plan(cluster_of(rated(1.0, 1.0)), "0.25").routed
    assert slow is not None
    assert slow.estimate == (pytest.approx(2 / 0.75), "small")
    assert slow.estimate_ratio == pytest.approx(4 / 3)


def test_the_best_split_for_a_mix():
    text = rated(1.0, 4.0)
    few = make_plan(cluster_of(text), "0.2").splits
    assert [dict(s.replicas) for s in few] == [{"big": 1, "small": 2}]  # one more big one would leave nothing for small
    eight = example("cluster")
    pools = {
        name: pool.model_copy(update={"speed": pool.speed.model_copy(update={"saturated_requests_s": rate})})
        for (name, pool), rate in zip(eight.pools.items(), (1.0, 5.0), strict=True)
    }
    splits = make_plan(eight.model_copy(update={"pools": pools}), "0.25").splits
    assert [(dict(s.replicas), s.limit) for s in splits[:2]] == [
        ({"qwen": 3, "minicpm": 2}, "qwen"), ({"qwen": 2, "minicpm": 4}, "qwen"),
    ]  # fmt: skip
    assert splits[0].requests_s == 12.0
    easy = make_plan(eight.model_copy(update={"pools": pools}), "0.02").splits[0]
    assert dict(easy.replicas) == {"qwen": 1, "minicpm": 6}


def test_no_split_takes_a_pool_below_its_minimum():
    eight = example("cluster")
    pools = {
        name: pool.model_copy(update={"min_replicas": 2, "speed": pool.speed.model_copy(update={"saturated_requests_s": 1.0})})
        for name, pool in eight.pools.items()
    }
    plan = make_plan(eight.model_copy(update={"pools": pools}), "0.02")
    assert [dict(s.replicas) for s in plan.splits] == [{"qwen": 2, "minicpm": 4}, {"qwen": 3, "minicpm": 2}]
    pools["idle"] = pools["minicpm"].model_copy(update={"placement": None, "replicas": 1})  # no share of the mix, and yet there
    plan = make_plan(eight.model_copy(update={"pools": pools}), "qwen=0.02,minicpm=0.98,idle=0")
    assert [dict(s.replicas) for s in plan.splits] == [{"qwen": 2, "minicpm": 2, "idle": 2}]


def test_replicas_that_share_gpus_are_not_compared():
    routed = plan_of("spark-1", "0.25").routed
    assert routed is not None
    assert routed.shared == ("s1",)
    assert routed.ratio is None
    assert routed.estimate is None


def test_a_speed_that_is_not_known_is_said_and_nothing_is_made_up():
    plan = plan_of("spark-8-ring", "0.25")
    big = next(p for p in plan.pools if p.name == "big")
    assert big.speed is None
    assert "prefill of glm-5.3-nvfp4 was not published" in big.unknown
    assert big.requests_s is None
    assert plan.splits == ()


def test_spark_figures_on_other_machines_are_marked():
    assert all("shipped figures are of DGX Spark" in p.remark for p in plan_of("gpu-box").pools)
    assert all(p.remark == "" for p in plan_of("cluster").pools)


def test_published_figures_for_the_published_model():
    (big, _) = plan_of("spark-4-ring").pools
    assert big.speed is not None
    assert big.speed.origin == "fitted"
    assert big.speed.decode_tokens_s() == pytest.approx(32.82, rel=0.02)
    assert big.speed.prefill_tokens_s == pytest.approx(4446, rel=0.01)


def test_longer_requests_are_slower():
    short, long = (plan_of("cluster", load=Load(prompt, 256)).pools[0].requests_s for prompt in (1000, 50_000))
    assert short is not None
    assert long is not None
    assert long < short


def test_solve_all_forgets_the_file():
    plan = make_plan(
        cluster_of(SPARKS.replace("[[s1, s2]]", "[[s2, s3]]").replace("[[s3], [s4]]", "[[s1], [s4]]")), solve_all=True
    )
    assert [r.nodes for r in plan.layout.of("big")] == [("s1", "s2")]


def test_mixes():
    cluster = example("cluster")
    assert big_pool(cluster) == "qwen"
    assert most_replicas(cluster, "qwen") == 4
    assert most_replicas(cluster, "minicpm") == 8
    assert most_replicas(example("spark-4-ring"), "big") == 1
    assert read_mix(cluster, "0.25") == {"qwen": 0.25, "minicpm": 0.75}
    assert read_mix(cluster, "minicpm=1") == {"qwen": 0.0, "minicpm": 1.0}


@pytest.mark.parametrize(
    ("mix", "why"),
    [
        ("much", "much is no mix: a share like 0.25, or one for each pool like qwen=0.25"),
        ("qwen=a,minicpm=b", "is no mix"),
        ("1.5", "shares are between 0 and 1 and add up to 1"),
        ("qwen=0.5,minicpm=0.6", "add up to 1, not 1.1"),
        ("qwen=0.5,llama=0.5", "there is no pool llama: the pools are qwen, minicpm"),
    ],
)
def test_mixes_that_make_no_sense(mix, why):
    with pytest.raises(BadMix, match=why.replace("(", r"\(")):
        read_mix(example("cluster"), mix)


def test_a_mix_of_one_pool_needs_names():
    alone = cluster_of(SPARKS.split("  small:")[0])
    with pytest.raises(BadMix, match=r"with 1 pools say the share of each, like big=0\.5"):
        read_mix(alone, "0.25")
    routed = make_plan(alone, "big=1").routed
    assert routed is not None
    assert routed.ratio == 0.5  # one of the two that would have place


def test_no_requests_for_the_big_pool_are_no_comparison():
    routed = plan_of("cluster", "0").routed
    assert routed is not None
    assert (routed.ratio, routed.escalated_ratio, routed.needs) == (None, None, {})


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_picture_has_every_node_and_every_rank(name):
    plan = plan_of(name, "0.25")
    root = ElementTree.fromstring(draw(plan))
    words = " ".join("".join(element.itertext()) for element in root.iter())
    for node in plan.cluster.nodes:
        assert node.name in words
        for taken in plan.layout.taken[node.name]:
            assert taken.replica in words
    assert draw(plan) == draw(plan_of(name, "0.25"))
