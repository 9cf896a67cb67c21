"""Agents on a simulated prefix cache: `prefix` keeps nearly all hits of perfect stickiness, with an even spread of load."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def simulation() -> ModuleType:
    path = Path(__file__).parents[3] / "benchmarks" / "prefix_cache.py"
    spec = importlib.util.spec_from_file_location("prefix_cache", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["prefix_cache"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "how", [{}, {"seed": 2, "replicas": 4}, {"seed": 3, "sessions": 40, "arrival_s": 6.0}, {"seed": 4, "replicas": 2}]
)
def test_agents_keep_their_caches_and_the_load_is_even(simulation, how):
    traffic = simulation.Traffic(**how)
    best, ours = simulation.simulate("perfect stickiness", traffic), simulation.simulate("prefix", traffic)
    assert best.hit_rate > 0.9, "else there is nothing to keep"
    assert ours.hit_rate >= 0.95 * best.hit_rate
    assert max(ours.requests_spread, ours.work_spread, ours.in_flight_spread) <= 1.25


def test_without_affinity_agents_lose_their_caches(simulation):
    """That the simulation can tell."""
    traffic = simulation.Traffic()
    best = simulation.simulate("perfect stickiness", traffic)
    for way in ("round_robin", "least_tokens"):
        assert simulation.simulate(way, traffic).hit_rate < 0.9 * best.hit_rate
