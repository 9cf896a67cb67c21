"""The decision as tables: header, rules and capability settle it, or the score does; sessions only go up."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.config.route import Route
from switchyard.errors import InvalidRequest
from switchyard.routing.decision import Decision, Outcome
from switchyard.routing.policy import (
    Candidates,
    decide_by_facts,
    decide_by_score,
    hold,
    keep_session,
    larger,
    nearest_capable,
)

from ..build import MINIMAL, chat, policy_of, signals_of

THREE = MINIMAL + "  middle:\n    model: m\n    replicas: [http://127.0.0.1:8003]\n"


def route_of(block: str) -> Route:
    return policy_of(THREE + f"routes:\n  auto: {block}\n").routes["auto"]


TWO_STEPS = route_of("{choose: [{p_at_least: 0.6, use: small}, {use: big}]}")
THREE_STEPS = route_of("{choose: [{p_at_least: 0.8, use: small}, {p_at_least: 0.4, use: middle}, {use: big}]}")
ALL = Candidates(("small", "middle", "big"))
UP = Candidates(("small", "big"))


def scored(p: float, by: str = "embedded") -> Outcome:
    return Outcome(by, p, "surface features")


# route, candidates, p, pool, fallbacks, start of the reason
SCORES = [
    (TWO_STEPS, UP, 0.9, "small", ("big",), "p 0.90 >= 0.6 by embedded"),
    (TWO_STEPS, UP, 0.6, "small", ("big",), "p 0.60 >= 0.6"),
    (TWO_STEPS, UP, 0.59, "big", (), "p 0.59 < 0.6 by embedded"),
    (TWO_STEPS, UP, 0.0, "big", (), "p 0.00 < 0.6"),
    (TWO_STEPS, UP, 0.5999, "big", (), "p 0.5999 < 0.6"),  # not "0.60 < 0.6"
    (TWO_STEPS, UP, math.nextafter(0.6, 0), "big", (), "p 0.5999999999999999 < 0.6"),
    (TWO_STEPS, UP, 0.6001, "small", ("big",), "p 0.60 >= 0.6"),
    (TWO_STEPS, Candidates(("big",)), 0.9, "big", (), "p 0.90"),
    (TWO_STEPS, Candidates(("small",)), 0.1, "small", (), "otherwise: p 0.10 by embedded reaches no threshold"),
    (THREE_STEPS, ALL, 0.9, "small", ("middle", "big"), "p 0.90 >= 0.8"),
    (THREE_STEPS, ALL, 0.5, "middle", ("big",), "p 0.50 >= 0.4"),
    (THREE_STEPS, ALL, 0.1, "big", (), "p 0.10 < 0.4"),
    (THREE_STEPS, UP, 0.5, "big", (), "p 0.50 < 0.8"),
    (THREE_STEPS, Candidates(("middle", "big")), 0.9, "middle", ("big",), "p 0.90 >= 0.4"),
    (route_of("{choose: [{p_at_least: 0.6, use: small}], otherwise: big}"), UP, 0.1, "big", (), "otherwise: p 0.10"),
]  # fmt: skip


@pytest.mark.parametrize(("route", "candidates", "p", "pool", "fallbacks", "reason"), SCORES, ids=range(len(SCORES)))
def test_the_score_chooses_by_thresholds(route, candidates, p, pool, fallbacks, reason):
    decision = decide_by_score("auto", route, candidates, [scored(p)])
    assert (decision.pool, decision.fallbacks, decision.p, decision.classifier) == (pool, fallbacks, p, "embedded")
    assert decision.reasons[0].startswith(reason)
    assert decision.kind == ("otherwise" if reason.startswith("otherwise") else "score")
    assert not decision.degraded


UNSURE, BROKEN = Outcome("embedded", why="no text"), Outcome("model small", why="late", failed=True)
OTHERWISE_SMALL = route_of("{choose: [{p_at_least: 0.6, use: small}, {use: big}], otherwise: small}")
# outcomes, pool, kind, degraded, reasons
ABSTAIN = [
    ([], "big", "otherwise", False, ("otherwise: the route has no classifier",)),
    ([UNSURE], "big", "otherwise", False, ("otherwise: embedded: no text",)),
    ([BROKEN], "big", "otherwise", True, ("otherwise: model small: late",)),
    ([UNSURE, BROKEN], "big", "otherwise", True, ("otherwise: embedded: no text", "model small: late")),
    ([BROKEN, scored(0.9)], "small", "score", True, ("p 0.90 >= 0.6 by embedded", "model small: late")),
    ([UNSURE, scored(0.9)], "small", "score", False, ("p 0.90 >= 0.6 by embedded", "embedded: no text")),
]


@pytest.mark.parametrize(("outcomes", "pool", "kind", "degraded", "reasons"), ABSTAIN, ids=range(len(ABSTAIN)))
def test_a_classifier_that_abstains_or_fails_is_told_and_never_an_error(outcomes, pool, kind, degraded, reasons):
    decision = decide_by_score("auto", TWO_STEPS, UP, outcomes)
    assert (decision.pool, decision.kind, decision.degraded, decision.reasons) == (pool, kind, degraded, reasons)


def test_otherwise_names_the_pool_for_when_nothing_is_known():
    decision = decide_by_score("auto", OTHERWISE_SMALL, UP, [UNSURE])
    assert (decision.pool, decision.fallbacks) == ("small", ("big",))
    decision = decide_by_score("auto", OTHERWISE_SMALL, Candidates(("big",)), [UNSURE])
    assert decision.pool == "big"


RULES = route_of(
    "{rules: [{when: {tools: {at_least: 1}}, use: small, why: tools are easy, for: 3 turns},"
    " {when: {stream: true}, use: middle}, {when: {header.x-team: red}, use: small}], otherwise: big}"
)
TOOLS = [{"type": "function", "function": {"name": "f"}}]
# headers, fields, candidates, (pool, kind, hold_turns) or None when it stays open, reason
FACTS = [
    ({}, {}, ALL, None, ""),
    ({}, {"tools": TOOLS}, ALL, ("small", "rule", 3), "rule: tools are easy"),
    ({}, {"tools": TOOLS, "stream": True}, ALL, ("small", "rule", 3), "rule: tools are easy"),  # the first that matches
    ({}, {"stream": True}, ALL, ("middle", "rule", 0), "rule: stream is true"),
    ({"x-team": "red"}, {}, ALL, ("small", "rule", 0), "rule: header.x-team is red"),
    ({"x-team": "blue"}, {}, ALL, None, ""),
    # a rule whose pool can't serve the request is passed over
    ({}, {"tools": TOOLS, "stream": True}, Candidates(("middle", "big")), ("middle", "rule", 0), "rule: stream is true"),
    ({}, {"tools": TOOLS}, Candidates(("middle", "big")), None, ""),
    # one pool left
    ({}, {}, Candidates(("big",), ("a is blind", "b too")), ("big", "only", 0), "only this pool can: a is blind; b too"),
    ({}, {"tools": TOOLS}, Candidates(("small",), ()), ("small", "rule", 3), "rule: tools are easy"),
    # the client may ask for a pool; this beats every rule
    ({"x-switchyard-pool": "big"}, {"tools": TOOLS}, ALL, ("big", "asked", 0), "the client asks for this pool"),
    ({"x-switchyard-pool": "small"}, {}, ALL, ("small", "asked", 0), "the client asks for this pool"),
]  # fmt: skip


@pytest.mark.parametrize(("headers", "fields", "candidates", "found", "reason"), FACTS, ids=range(len(FACTS)))
def test_facts_settle_it_in_their_order(headers, fields, candidates, found, reason):
    decision = decide_by_facts("auto", RULES, candidates, signals_of(chat(("user", "x"), **fields), headers=headers))
    assert (decision and (decision.pool, decision.kind, decision.hold_turns)) == found
    assert decision is None or decision.reasons[0].startswith(reason)


@pytest.mark.parametrize("asked", ["huge", "SMALL", "../small", "x" * 10_000])
def test_asking_for_a_pool_that_is_not_there_is_refused(asked):
    with pytest.raises(InvalidRequest) as caught:
        decide_by_facts("auto", RULES, UP, signals_of(chat(), headers={"x-switchyard-pool": asked}))
    assert "for this request route auto can use small, big" in caught.value.message
    assert len(caught.value.message) < 300


def test_a_route_with_use_decides_nothing():
    decision = decide_by_facts("big1", Route(use="big"), Candidates(("big",)), signals_of(chat(tools=TOOLS)))
    assert (decision.pool, decision.kind, decision.fallbacks) == ("big", "named", ())
    assert "big1 always uses big" in decision.reasons[0]


@pytest.mark.parametrize(("name", "who"), [("big1", "route big1"), ("", "this model")])
def test_the_client_can_ask_for_what_it_gets_anyway_and_for_nothing_else(name, who):
    def decide(asked: str) -> Decision | None:
        signals = signals_of(chat(), headers={"x-switchyard-pool": asked})
        return decide_by_facts(name, Route(use="big"), Candidates(("big",)), signals)

    assert decide("big").kind == "named"
    with pytest.raises(InvalidRequest, match=f"asks for small; for this request {who} can use big"):
        decide("small")


def decision(pool: str, kind: str = "score") -> Decision:
    return Decision("auto", pool, larger(pool, ALL.pools), kind, ("because",), 0.5)


# decided, kind, held before, candidates, pool, kind of the result
SESSIONS = [
    ("small", "score", None, ALL, "small", "score"),
    ("small", "score", "small", ALL, "small", "score"),
    ("small", "score", "middle", ALL, "middle", "held"),
    ("small", "otherwise", "big", ALL, "big", "held"),
    ("middle", "score", "big", ALL, "big", "held"),
    ("middle", "score", "small", ALL, "middle", "score"),  # up it may go
    ("big", "score", "small", ALL, "big", "score"),
    ("small", "rule", "big", ALL, "small", "rule"),  # rules, wishes and facts may go down
    ("small", "asked", "big", ALL, "small", "asked"),
    ("small", "only", "big", ALL, "small", "only"),
    ("small", "score", "big", UP, "big", "held"),
    ("small", "score", "middle", UP, "small", "score"),  # what it had can't serve this request
    ("small", "score", "gone", ALL, "small", "score"),  # a pool of an older policy
]


@pytest.mark.parametrize(("pool", "kind", "held", "candidates", "result", "result_kind"), SESSIONS, ids=range(len(SESSIONS)))
def test_within_a_session_the_pool_only_goes_up(pool, kind, held, candidates, result, result_kind):
    found = keep_session(decision(pool, kind), held, candidates)
    assert (found.pool, found.kind) == (result, result_kind)
    assert found.reasons[-1] == "because"
    if result_kind == "held":
        assert found.reasons[0] == f"the session is on {held} and only goes up"
        assert found.fallbacks == larger(held, candidates.pools)
        assert found.p == 0.5


@given(st.floats(0, 1) | st.none(), st.sets(st.sampled_from(ALL.pools), min_size=1), st.sampled_from([*ALL.pools, None]))
def test_whatever_is_decided_the_pool_can_serve_it_and_fallbacks_are_larger(p, left, held):
    candidates = Candidates(tuple(n for n in ALL.pools if n in left))
    outcomes = [Outcome("embedded", p, "x")]
    for found in (
        decide_by_score("auto", THREE_STEPS, candidates, outcomes),
        keep_session(decide_by_score("auto", THREE_STEPS, candidates, outcomes), held, candidates),
        hold("auto", THREE_STEPS, nearest_capable(held or "small", THREE_STEPS, candidates), "held", candidates),
    ):
        assert found.pool in candidates.pools
        assert set(found.fallbacks) <= set(candidates.pools)
        size = ALL.pools.index
        assert all(size(f) > size(found.pool) for f in found.fallbacks)
        assert list(found.fallbacks) == sorted(found.fallbacks, key=size)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=2))
def test_a_lower_score_never_gives_a_smaller_pool(ps):
    low, high = sorted(ps)
    sizes = [ALL.pools.index(decide_by_score("auto", THREE_STEPS, ALL, [scored(p)]).pool) for p in (low, high)]
    assert sizes[0] >= sizes[1]


@pytest.mark.parametrize(
    ("wanted", "left", "pool"),
    [
        ("small", ("small", "middle", "big"), "small"),
        ("small", ("middle", "big"), "middle"),
        ("middle", ("small", "big"), "big"),
        ("big", ("small", "middle"), "middle"),  # nothing larger: the largest that can
        ("big", ("small",), "small"),
    ],
)
def test_the_nearest_pool_that_can(wanted, left, pool):
    assert nearest_capable(wanted, THREE_STEPS, Candidates(left)) == pool


def test_larger_of_an_unknown_pool_is_nothing():
    assert larger("gone", ("small", "big")) == ()
    assert larger("big", ("small", "big")) == ()


def test_a_pool_that_only_a_rule_names_never_falls_back_to_a_smaller_one():
    route = route_of("{rules: [{when: {stream: true}, use: big}], otherwise: small}")
    decision = decide_by_facts("auto", route, Candidates(route.pools), signals_of(chat(("user", "x"), stream=True)))
    assert (decision.pool, decision.fallbacks) == ("big", ())


def test_a_decision_is_recorded_whole():
    record = decision("small").as_record()
    assert record == {
        "route": "auto", "pool": "small", "fallbacks": ("middle", "big"), "kind": "score", "reasons": ("because",), "p": 0.5,
        "raw_p": None, "classifier": "", "degraded": False,
    }  # fmt: skip
