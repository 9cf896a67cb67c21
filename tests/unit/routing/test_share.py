"""Holding a pool's share of the scored decisions, and moving borderline requests away from a queue."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.config.route import Pressure, Share, Threshold
from switchyard.routing.decision import Decision
from switchyard.routing.policy import larger
from switchyard.routing.pressure import PressureRelief
from switchyard.routing.share import MOST_DEBT, ShareControl

ORDER = ("small", "middle", "big")
CHOOSE = [Threshold(p_at_least=0.8, use="small"), Threshold(p_at_least=0.4, use="middle"), Threshold(use="big")]


def scored(p: float | None, pool: str | None = None, kind: str = "score") -> Decision:
    """What the thresholds alone give for this score."""
    if pool is None:
        pool = next(s.use for s in CHOOSE if s.p_at_least is None or (p or 0) >= s.p_at_least)
    return Decision("auto", pool, larger(pool, ORDER), kind, ("because",), p, "embedded")


def uniform(n: int = 3000, low: float = 0.0, high: float = 1.0) -> list[float]:
    random = Random(7)
    return [random.uniform(low, high) for _ in range(n)]


def run(control: ShareControl, scores: list[float]) -> list[Decision]:
    return [control.apply(scored(p), ORDER) for p in scores]


def share_of(pool: str, decisions: list[Decision]) -> float:
    return sum(d.pool == pool for d in decisions) / len(decisions)


@pytest.mark.parametrize("target", [0.0, 0.1, 0.25, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("pool", ["big", "small"])
def test_hold_keeps_the_share_from_both_sides(pool, target):
    decisions = run(ShareControl(Share(pool=pool, hold=target), ORDER), uniform())
    assert share_of(pool, decisions) == pytest.approx(target, abs=0.02)


@pytest.mark.parametrize("target", [0.1, 0.25, 0.4, 0.9, 1.0])
def test_at_most_only_tightens(target):
    scores = uniform()
    decisions = run(ShareControl(Share(pool="big", at_most=target), ORDER), scores)
    untouched = share_of("big", [scored(p) for p in scores])
    assert share_of("big", decisions) == pytest.approx(min(target, untouched), abs=0.02)
    assert not any(d.pool == "big" and d.kind == "share" for d in decisions)


def test_the_pool_gets_the_requests_that_need_it_most():
    scores = uniform()
    decisions = run(ShareControl(Share(pool="big", hold=0.2), ORDER), scores)[500:]
    hardest = sorted(scores[500:])[: len(decisions) // 5]
    got = [p for p, d in zip(scores[500:], decisions, strict=True) if d.pool == "big"]
    assert sum(p <= hardest[-1] for p in got) > 0.85 * len(got)


def test_the_share_is_kept_when_traffic_changes():
    scores = uniform(1500, 0.5, 1.0) + uniform(1500, 0.0, 0.5)
    decisions = run(ShareControl(Share(pool="big", hold=0.25), ORDER), scores)
    for part in (decisions[:1500], decisions[1500:]):
        assert share_of("big", part) == pytest.approx(0.25, abs=0.03)


def test_equal_scores_are_shared_out():
    decisions = run(ShareControl(Share(pool="big", hold=0.3), ORDER), [0.5] * 2000)
    assert share_of("big", decisions) == pytest.approx(0.3, abs=0.02)


WORDS, ENDS = st.sampled_from(["hold", "at_most"]), st.sampled_from(["big", "small"])


@given(st.lists(st.floats(0, 1), max_size=150), st.floats(0, 1), WORDS, ENDS)
def test_the_account_is_never_far_off_and_a_move_is_told(scores, target, word, pool):
    control = ShareControl(Share(pool=pool, **{word: target}), ORDER)
    for decision in run(control, scores):
        assert decision.pool in ORDER
        assert decision.fallbacks == larger(decision.pool, ORDER)
        assert (decision.kind == "share") == decision.reasons[0].startswith(f"share: {pool} has ")
        assert decision.reasons[-1] == "because"
    if word == "hold" and scores:
        assert abs(control.share - target) * len(scores) <= MOST_DEBT + 1


@pytest.mark.parametrize(
    ("decision", "candidates"),
    [(scored(None, "big", "otherwise"), ORDER), (scored(0.9), ("small", "middle")), (scored(0.1), ("big",))],
)
def test_what_is_settled_is_not_touched_and_not_counted(decision, candidates):
    control = ShareControl(Share(pool="big", hold=0.5), ORDER)
    assert control.apply(decision, candidates) is decision
    assert control.share == 0.0


QUEUES_BIG = {"big"}.__contains__
# p, pools that queue, candidates, where it goes
MOVES = [
    (0.39, {"big"}, ORDER, "middle"),  # just missed the smaller pool
    (0.41, {"middle"}, ORDER, "big"),  # just made it
    (0.78, {"middle"}, ORDER, "small"),
    (0.82, {"small"}, ORDER, "middle"),
    (0.39, set(), ORDER, "big"),
    (0.39, {"small"}, ORDER, "big"),
    (0.30, {"big"}, ORDER, "big"),  # not borderline
    (0.39, {"big", "middle"}, ORDER, "big"),  # the neighbour queues too
    (0.39, {"big"}, ("big",), "big"),
    (0.39, {"big"}, ("small", "big"), "small"),
]


@pytest.mark.parametrize(("p", "queueing", "candidates", "pool"), MOVES, ids=range(len(MOVES)))
def test_a_borderline_request_leaves_a_pool_that_queues(p, queueing, candidates, pool):
    before = scored(p)
    after = PressureRelief(Pressure(band=0.05), CHOOSE).apply(before, candidates, queueing.__contains__)
    assert after.pool == pool
    if pool == before.pool:
        assert after is before
    else:
        assert (after.kind, after.reasons[-1], after.fallbacks) == ("pressure", "because", larger(pool, candidates))
        assert after.reasons[0].startswith(f"pressure: {before.pool} queues")


@pytest.mark.parametrize("at_most", [0.05, 0.1, 0.5])
def test_pressure_has_a_budget(at_most):
    relief = PressureRelief(Pressure(band=0.05, at_most=at_most), CHOOSE)
    moved = sum(relief.apply(scored(0.39), ORDER, QUEUES_BIG).kind == "pressure" for _ in range(800))
    assert moved <= at_most * 800 + 1
    assert moved == pytest.approx(at_most * 800, rel=0.35)


def test_without_a_score_nothing_moves():
    decision = scored(None, "big", "otherwise")
    assert PressureRelief(Pressure(), CHOOSE).apply(decision, ORDER, QUEUES_BIG) is decision
