"""What may be lent, what the borrower is told, and what comes back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from switchyard.cluster.lease import coming_back, leaving, torchrun_ranks, why_not_lend, why_not_return, with_state
from switchyard.cluster.spec import Cluster, parse_cluster


def cluster(**changes: Any) -> Cluster:
    nodes = [{"name": f"s{i}", "mgmt": f"10.0.0.{i}", "fabric": f"192.168.100.{i}"} for i in range(1, 9)]
    nodes[5] |= {"fabric_ifname": "enp9", "hca": ["rocep9"]}
    image = {"image": "vllm/vllm-openai:v0.33.0"}
    text = {
        "version": 1, "fabric": {"kind": "switch"}, "nodes": nodes,
        "node_defaults": {"fabric_ifname": "enp1", "hca": ["rocep1"]},
        "pools": {
            "qwen": {"model": "q", **image, "replicas": 3, "nodes_per_replica": 2,
                     "placement": [["s1", "s2"], ["s3", "s4"], ["s5", "s6"]], **changes},
            "minicpm": {"model": "m", **image, "replicas": 2, "placement": [["s7"], ["s8"]]},
        },
        "gateway": {"node": "s8"},
    }  # fmt: skip
    return parse_cluster(json.dumps(text).encode()).value


def test_a_whole_replica_may_go() -> None:
    made = cluster()
    assert why_not_lend(made, ["s5", "s6"]) == []
    assert [r.name for r in leaving(made, ["s5", "s6"])] == ["qwen-3"]
    lent = with_state(made, ["s5", "s6"], "lent")
    assert leaving(lent, ["s5", "s6"]) == ()
    assert [r.name for r in coming_back(with_state(lent, ["s5", "s6"], "active"), ["s5", "s6"])] == ["qwen-3"]


@pytest.mark.parametrize(
    ("nodes", "changes", "why"),
    [
        (["s5"], {}, "qwen-3 runs on s5, s6: lend s6 as well"),
        (["s8"], {}, "the gateway runs on s8"),
        (["s7", "s8"], {}, "pool minicpm would keep 0 of 2 replicas, and min_replicas is 1"),
        (["s5", "s6"], {"min_replicas": 3}, "pool qwen would keep 2 of 3 replicas"),
        (["s5", "s6"], {"placement": None}, "pool qwen has no placement"),
    ],
)
def test_what_may_not_go(nodes: list[str], changes: dict[str, Any], why: str) -> None:
    assert any(why in problem for problem in why_not_lend(cluster(**changes), nodes))


def test_leases() -> None:
    lent = with_state(cluster(), ["s5", "s6"], "lent")
    assert "is lent to" in why_not_lend(lent, ["s5", "s6"])[0]
    assert why_not_return(lent, ["s5", "s6"]) == []
    assert why_not_return(lent, ["s5", "s7"]) == ["s7 is not lent: it is active"]


def test_a_pool_that_is_short_already_does_not_forbid_others() -> None:
    """Two of qwen's three are gone; minicpm may still lend one, as far as qwen is asked."""
    short = with_state(cluster(min_replicas=2), ["s1", "s2", "s3", "s4"], "cordoned")
    assert why_not_lend(short, ["s7"]) == []


def test_torchrun_knows_master_ranks_and_cards_of_each_node() -> None:
    first, second = torchrun_ranks(cluster(), ["s5", "s6"])
    assert first.env["MASTER_ADDR"] == second.env["MASTER_ADDR"] == "192.168.100.5"
    assert [r.env["NODE_RANK"] for r in (first, second)] == ["0", "1"]
    assert first.env["NNODES"] == "2"
    assert (first.env["NCCL_SOCKET_IFNAME"], second.env["NCCL_SOCKET_IFNAME"]) == ("enp1", "enp9")
    assert second.env["NCCL_IB_HCA"] == "rocep9"
    assert first.env["NCCL_NET"] == "IB"
    assert not any(name.startswith("VLLM") for name in first.env)
    assert "--nproc-per-node 1" in first.command


def test_one_node_needs_no_network() -> None:
    (only,) = torchrun_ranks(cluster(), ["s7"])
    assert set(only.env) == {"MASTER_ADDR", "MASTER_PORT", "NNODES", "NODE_RANK"}
