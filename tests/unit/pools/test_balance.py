"""Which of several replicas: five pure functions, and the properties that make them worth having."""

import math
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.pools.balance import (
    BOUND,
    SLACK,
    Balancer,
    least_tokens,
    p2c,
    pick_random,
    prefix,
    rendezvous_order,
    round_robin,
)

WAYS = ["prefix", "least_tokens", "p2c", "round_robin", "random"]


@dataclass
class Load:
    label: str
    weight: float = 1.0
    busy: float = 0
    busy_tokens: float = 0
    work: float = 0


def named(*labels: str, **how) -> list[Load]:
    return [Load(label, **how) for label in labels]


LOADS = st.lists(
    st.builds(Load, st.text("abcd", min_size=1, max_size=3), st.floats(0.01, 1000), st.integers(0, 500), st.integers(0, 10**7)),
    min_size=1,
    max_size=8,
    unique_by=lambda load: load.label,
)
KEYS = [f"session-{n}" for n in range(2000)]


@given(LOADS, st.sampled_from(WAYS), st.text(max_size=20), st.floats(0, 1000), st.integers(0, 2**32))
def test_every_way_gives_one_of_those_given(replicas, way, key, mean, seed):
    balancer = Balancer(way, Random(seed))
    for _ in range(3):
        assert id(balancer.choose(replicas, key, mean)) in set(map(id, replicas))


@given(LOADS, st.text(max_size=20))
def test_the_keys_order_has_every_replica_once_and_is_the_same_for_every_gateway(replicas, key):
    order = rendezvous_order(replicas, key)
    assert sorted(r.label for r in order) == sorted(r.label for r in replicas)
    assert rendezvous_order(list(reversed(replicas)), key) == order
    busy = [Load(r.label, r.weight, 99, 99) for r in replicas]
    assert [r.label for r in rendezvous_order(busy, key)] == [r.label for r in order]


@given(LOADS, st.text(max_size=20), st.data())
def test_when_a_replica_leaves_the_order_of_the_others_stays(replicas, key, data):
    gone = data.draw(st.sampled_from(replicas))
    left = [r for r in replicas if r is not gone]
    assert rendezvous_order(left, key) == [r for r in rendezvous_order(replicas, key) if r is not gone]


def test_only_the_keys_of_a_lost_replica_move_and_they_spread():
    replicas = named("a", "b", "c", "d")
    home = {key: prefix(replicas, key, 1).label for key in KEYS}
    left = replicas[:3]
    moved = {key: prefix(left, key, 1).label for key in KEYS}
    assert all(moved[key] == home[key] for key in KEYS if home[key] != "d")
    orphans = Counter(moved[key] for key in KEYS if home[key] == "d")
    assert set(orphans) == {"a", "b", "c"}
    assert max(orphans.values()) < 2 * min(orphans.values())


def test_homes_are_spread_by_weight():
    replicas = [Load("a", 1), Load("b", 1), Load("c", 2)]
    homes = Counter(prefix(replicas, key, 1).label for key in KEYS)
    assert homes["a"] == pytest.approx(500, abs=75)
    assert homes["b"] == pytest.approx(500, abs=75)
    assert homes["c"] == pytest.approx(1000, abs=100)


def bound(replica: Load, mean: float) -> int:
    return math.ceil(BOUND * mean * replica.weight)


@given(LOADS, st.text(max_size=20))
def test_prefix_goes_home_unless_home_is_too_busy(replicas, key):
    mean = (sum(r.busy for r in replicas) + 1) / sum(r.weight for r in replicas)
    chosen = prefix(replicas, key, mean)
    assert chosen.busy + 1 <= bound(chosen, mean)
    for replica in rendezvous_order(replicas, key):
        if replica is chosen:
            break
        assert replica.busy + 1 > bound(replica, mean)  # passed over for a reason


@given(
    st.lists(st.sampled_from(["hot", "warm", "cold"]), min_size=1, max_size=120),
    st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=1, max_size=5),
)
def test_load_stays_bounded_however_hot_a_key_is(keys, weights):
    replicas = [Load(f"r{n}", weight) for n, weight in enumerate(weights)]
    for done, key in enumerate(keys):
        mean = (done + 1) / sum(weights)
        chosen = prefix(replicas, key, mean)
        chosen.busy += 1
        assert chosen.busy <= bound(chosen, mean)


def test_a_known_key_stays_where_it_was_unless_that_is_too_busy():
    replicas = named("a", "b", "c")
    for key in KEYS[:50]:
        for last in replicas:
            assert prefix(replicas, key, 1, last.label) is last
    replicas[0].busy = 7
    assert prefix(replicas, "s", 5, "a").label == "a", "a warm cache is worth a little more than an even spread"
    replicas[0].busy = 8
    assert prefix(replicas, "s", 5, "a").label != "a"
    assert prefix(replicas, "s", 1, "gone") is prefix(replicas, "s", 1)


def test_below_the_slack_a_warm_cache_wins_over_an_even_spread():
    replicas = named("a", "b", "c")
    first = prefix(replicas, "s", 1)
    for n in range(SLACK):
        assert first.busy == n
        prefix(replicas, "s", (n + 1) / 3, first.label).busy += 1
    assert prefix(replicas, "s", (SLACK + 1) / 3, first.label) is not first


def test_new_keys_go_where_less_lives_also_while_it_is_silent():
    """Few agents on few replicas: a hash alone puts four on one and none on the next."""
    replicas = named("a", "b", "c")
    for n, key in enumerate(KEYS[:9]):
        prefix(replicas, key, 1, tokens=1000).work += 1000
        assert max(r.work for r in replicas) <= 1000 * (n // 3 + 1)
    heavy = [Load("a", 1), Load("b", 2)]
    for key in KEYS[:90]:
        prefix(heavy, key, 1).work += 1000
    assert heavy[1].work == pytest.approx(2 * heavy[0].work, rel=0.3)


@given(st.integers(1, 7), st.integers(0, 10_000))
def test_round_robin_with_equal_weights_is_exact(n, start):
    replicas = named(*"abcdefg"[:n], weight=2.5)
    turns = Counter(round_robin(replicas, start + i).label for i in range(12 * n))
    assert set(turns.values()) == {12}
    assert all(round_robin(replicas, start + i) is not round_robin(replicas, start + i + 1) for i in range(n)) or n == 1


@given(st.lists(st.sampled_from([1.0, 2.0, 3.0, 5.0]), min_size=1, max_size=5), st.integers(0, 10_000))
def test_round_robin_honours_weights_closely_at_every_moment(weights, start):
    replicas = [Load(f"r{n}", weight) for n, weight in enumerate(weights)]
    turns: Counter[str] = Counter()
    for i in range(200):
        turns[round_robin(replicas, start + i).label] += 1
        for replica in replicas:
            assert abs(turns[replica.label] - (i + 1) * replica.weight / sum(weights)) < 5


def test_random_honours_weights():
    replicas = [Load("a", 1), Load("b", 3), Load("c", 6)]
    random = Random(1)
    drawn = Counter(pick_random(replicas, random).label for _ in range(10_000))
    assert [round(drawn[label] / 1000) for label in "abc"] == [1, 3, 6]


def test_p2c_takes_the_less_busy_of_two_for_its_weight():
    random = Random(2)
    assert all(p2c([Load("a", 1, 5), Load("b", 1, 4)], random).label == "b" for _ in range(50))
    assert all(p2c([Load("a", 1, 5), Load("b", 2, 9)], random).label == "b" for _ in range(50))
    replicas = [Load("a", busy=0), Load("b", busy=1), Load("c", busy=2)]
    drawn = Counter(p2c(replicas, random).label for _ in range(3000))
    assert drawn["c"] == 0  # the busiest of all never wins
    assert drawn["a"] == pytest.approx(2000, abs=150)
    only = Load("only")
    assert p2c([only], random) is only


@pytest.mark.parametrize(
    ("loads", "label"),
    [
        ([("a", 1, 0, 500), ("b", 1, 9, 400)], "b"),
        ([("a", 1, 0, 500), ("b", 2, 9, 900)], "b"),
        ([("a", 1, 3, 500), ("b", 1, 2, 500)], "b"),
        ([("a", 1, 2, 0), ("b", 1, 2, 0), ("c", 1, 1, 0)], "c"),
    ],
)
def test_least_tokens(loads, label):
    assert least_tokens([Load(*load) for load in loads], Random(3)).label == label


def test_least_tokens_leaves_ties_to_chance():
    drawn = Counter(least_tokens(named("a", "b", "c"), random).label for random in [Random(4)] for _ in range(3000))
    assert all(count == pytest.approx(1000, abs=150) for count in drawn.values())


def test_a_balancer_takes_turns_and_does_not_begin_where_others_do():
    replicas = named("a", "b", "c")
    balancer = Balancer("round_robin", Random(5))
    turns = [balancer.choose(replicas, "", 0).label for _ in range(9)]
    assert Counter(turns) == {"a": 3, "b": 3, "c": 3}
    assert all(first != second for first, second in pairwise(turns))
    starts = {Balancer("round_robin", Random(seed)).choose(replicas, "", 0).label for seed in range(20)}
    assert starts == {"a", "b", "c"}
