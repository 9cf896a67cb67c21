"""A small cluster for the tests: three nodes, on which vLLM serves one model twice, over two nodes and on one.

Where nodes can't be had, the tests are skipped and say why; with CI set they fail instead, since a skip would hide it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from agents.network import NoNetwork, loopback_only
from vllm_env import VllmEnv, ensure

from .nodes import Node, NoNodes, nodes
from .replica import Replica, one_node_ranks, two_node_ranks

LIMIT_S = 900  # the first test also builds what is missing and starts the engines


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give these tests the time that engines need to start."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.timeout(LIMIT_S))


@pytest.fixture(scope="session")
def _nodes_are_possible() -> None:
    """Found out at once, before gigabytes are fetched in vain."""
    try:
        with loopback_only(), nodes(1):
            pass
    except (NoNetwork, NoNodes) as error:
        if os.environ.get("CI"):
            pytest.fail(f"the cluster's tests can't run: {error}", pytrace=False)
        pytest.skip(f"THE CLUSTER'S TESTS DID NOT RUN: {error}")


@pytest.fixture(scope="session")
def env() -> VllmEnv:
    """vLLM itself; built while the network is still there."""
    return ensure()


@pytest.fixture(scope="session")
def machines(_nodes_are_possible: None, env: VllmEnv) -> Iterator[list[Node]]:
    """Three nodes, a cable between the first two; the tests run where the gateway does, on a network of their own."""
    with loopback_only(), nodes(3) as made:
        made[0].cable_to(made[1])
        yield made


@pytest.fixture(scope="module")
def replicas(machines: list[Node], env: VllmEnv, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Replica, Replica]]:
    """The pair over two nodes and the single one, started side by side."""
    folder = tmp_path_factory.mktemp("engines")
    first, second, third = machines
    with (
        Replica("pair", two_node_ranks(env, first, second), folder) as pair,
        Replica("single", one_node_ranks(env, third), folder) as single,
    ):
        for replica in (pair, single):
            replica.wait_ready()
        yield pair, single


@pytest.fixture
def pair(replicas: tuple[Replica, Replica]) -> Replica:
    """One replica over two nodes; it works, whatever the test before did to it."""
    if not replicas[0].works():
        replicas[0].restart()
    return replicas[0]


@pytest.fixture
def single(replicas: tuple[Replica, Replica]) -> Replica:
    """One replica on one node."""
    return replicas[1]
