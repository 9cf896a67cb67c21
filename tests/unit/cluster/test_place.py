"""Placements: read as given, solved where left out, and never more on a GPU than it may take."""

import pytest
from hypothesis import given, settings

from switchyard.cluster.place import SLACK_GIB, Layout, direct_pairs, fabric_groups, lay_out
from switchyard.cluster.spec import Cluster, Fabric
from unit.cluster.make import EXAMPLES, SPARKS, cluster_of, clusters, example


def where(layout: Layout, pool: str) -> list[str]:
    return ["+".join(r.nodes) for r in layout.of(pool)]


def solved(was: str = "", now: str = "") -> Layout:
    text = SPARKS.replace("    placement: [[s1, s2]]\n", "").replace("    placement: [[s3], [s4]]\n", "")
    assert was in text
    return lay_out(cluster_of(text.replace(was, now, 1)))


def test_as_given():
    layout = lay_out(cluster_of(SPARKS))
    assert (where(layout, "big"), where(layout, "small")) == (["s1+s2"], ["s3", "s4"])
    assert layout.solved == ()
    assert [round(layout.gpu_gib(n)[0]) for n in cluster_of(SPARKS).nodes] == [89, 89, 21, 21]


def test_solved_fills_empty_nodes_in_the_order_of_the_file():
    layout = solved()
    assert (where(layout, "big"), where(layout, "small")) == (["s1+s2"], ["s3", "s4"])
    assert set(layout.solved) == {"big", "small"}


def test_solved_around_what_is_given():
    text = SPARKS.replace("    placement: [[s1, s2]]\n", "").replace("[[s3], [s4]]", "[[s1], [s4]]")
    layout = lay_out(cluster_of(text))
    assert (where(layout, "big"), where(layout, "small")) == (["s2+s3"], ["s1", "s4"])
    assert where(lay_out(cluster_of(text), solve_all=True), "small") == ["s3", "s4"]


@pytest.mark.parametrize(
    ("was", "now", "big", "small"),
    [
        ("192.168.0.1}", "192.168.0.1, state: cordoned}", ["s2+s3"], ["s4", "s4"]),  # 89 + 21 is too much for s2
        ("192.168.0.1}", "192.168.0.1, memory_gb: 64}", ["s2+s3"], ["s1", "s4"]),
        ("192.168.0.1}", "192.168.0.1, arch: amd64}", ["s2+s3"], ["s1", "s4"]),
        ("kind: switch", "kind: direct, pairs: [[s1, s3], [s2, s4]]", ["s1+s3"], ["s2", "s4"]),
        ("kind: switch", "kind: direct", ["s1+s2"], ["s3", "s4"]),
    ],
)
def test_solved_with_obstacles(was, now, big, small):
    layout = solved(was, now)
    assert (where(layout, "big"), where(layout, "small")) == (big, small)


@pytest.mark.parametrize(
    ("was", "now", "reason"),
    [
        ("size_gib: 126", "size_gib: 300", "big needs 1 x 2 nodes; 0 of 4 active nodes have room for a rank of 176.0 GiB"),
        ("kind: switch", "kind: none", "the fabric (none) has no groups for 1 x 2 nodes"),
        ("kind: switch", "kind: ring", "the fabric (ring) has no groups for 1 x 2 nodes"),
        ("replicas: 2", "replicas: 9", "8 of 9 replicas of small have a place, beside big"),
    ],
)
def test_no_place_and_why(was, now, reason):
    layout = solved(was, now)
    assert reason in set(layout.unplaced.values())
    assert layout.of("big") == layout.of("small") == ()


def test_only_the_pool_that_is_stuck_says_what_it_lacks():
    layout = solved("size_gib: 126", "size_gib: 300")
    assert layout.unplaced["small"] == "pools are placed together, and big has none"
    layout = solved("replicas: 2", "replicas: 1\n    nodes_per_replica: 4")  # 17 GiB of every node
    assert layout.unplaced == {
        "small": "pools are placed together, and big has none",
        "big": "big needs 1 x 2 nodes with 89.0 GiB free, and small can't be placed so that they are left",
    }


def test_small_ranks_share_a_node_only_when_they_must():
    layout = solved("replicas: 2", "replicas: 6")
    assert where(layout, "small") == ["s3", "s4", "s3", "s4", "s3", "s4"]
    assert round(layout.gpu_gib(cluster_of(SPARKS).node("s3"))[0]) == 63


def test_a_rank_of_unknown_size_has_its_gpu_for_itself():
    layout = solved("    checkpoint: {size_gib: 5}\n", "")
    assert where(layout, "small") == ["s3", "s4"]
    layout = solved("checkpoint: {size_gib: 5}", "port: 8001\n    checkpoint: {layers: 1}")
    assert not solved("replicas: 2", "replicas: 2").unplaced
    assert where(layout, "small") == ["s3", "s4"]


def test_gpus_of_one_node_fill_up_one_by_one():
    cluster = example("gpu-box")
    layout = lay_out(cluster)
    assert layout.of("big")[0].gpus == ((0, 1),)
    one_gpu = cluster.model_copy(
        update={"pools": {"small": cluster.pools["small"].model_copy(update={"replicas": 3, "placement": None})}}
    )
    assert [(r.head, r.gpus) for r in lay_out(one_gpu).replicas] == [
        ("large", ((0,),)), ("small", ((0,),)), ("large", ((1,),)),
    ]  # fmt: skip


def test_a_replica_with_a_node_that_is_away_takes_nothing():
    layout = lay_out(cluster_of(SPARKS.replace("192.168.0.2}", "192.168.0.2, state: cordoned}")))
    (big,) = layout.of("big", running=False)
    assert not big.running
    assert layout.of("big") == ()
    assert all(not taken for node, taken in layout.taken.items() if node in {"s1", "s2"})


def test_groups_of_the_fabric():
    assert fabric_groups(cluster_of(SPARKS)) is None
    assert direct_pairs(Fabric(kind="direct"), ("a", "b", "c", "d", "e")) == (("a", "b"), ("c", "d"))
    assert direct_pairs(Fabric(kind="direct", pairs=(("a", "c"),)), ("a", "b", "c")) == (("a", "c"),)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_can_be_solved(name):
    cluster = example(name)
    layout = lay_out(cluster, solve_all=True)
    assert layout.unplaced == {}
    assert_sound(cluster, layout)


@given(clusters())
@settings(max_examples=150)
def test_no_plan_is_unsound(cluster: Cluster):
    layout = lay_out(cluster)
    assert_sound(cluster, layout)
    assert lay_out(cluster) == layout  # the same file gives the same plan


def assert_sound(cluster: Cluster, layout: Layout) -> None:
    groups = fabric_groups(cluster)
    for name, pool in cluster.pools.items():
        replicas = layout.of(name)
        assert len(replicas) == (0 if name in layout.unplaced else pool.replicas)
        for replica in replicas:
            assert len(set(replica.nodes)) == len(replica.nodes) == pool.nodes_per_replica
            nodes = [cluster.node(n) for n in replica.nodes]
            assert all(node.state == "active" for node in nodes)
            assert len({(node.arch, node.image) for node in nodes}) == 1
            assert len(nodes) == 1 or groups is None or replica.nodes in groups
            for node, gpus in zip(nodes, replica.gpus, strict=True):
                assert len(set(gpus)) == pool.gpus_per_node
                assert all(gpu < node.gpus for gpu in gpus)
    for node in cluster.nodes:
        assert all(gib <= node.usable_gib + SLACK_GIB for gib in layout.gpu_gib(node))
