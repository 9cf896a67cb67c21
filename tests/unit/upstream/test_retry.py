"""The budget for retries: a share of recent requests, a few in any case, and the past is forgotten."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.upstream.retry import AT_LEAST, BUSY_S, HALF_LIFE_S, SHARE, RetryBudget, retry_after_s


def taken(budget: RetryBudget, now_s: float, tries: int = 10_000) -> int:
    return sum(budget.take(now_s) for _ in range(tries))


def test_with_few_requests_some_retries_are_free():
    assert taken(RetryBudget(), 100.0) == AT_LEAST


def test_with_many_requests_a_share_of_them():
    budget = RetryBudget()
    for _ in range(1000):
        budget.note_request(100.0)
    assert taken(budget, 100.0) == SHARE * 1000


def test_after_a_while_there_is_a_new_budget():
    budget = RetryBudget()
    assert taken(budget, 100.0) == AT_LEAST
    assert taken(budget, 100.0 + HALF_LIFE_S) == AT_LEAST // 2
    assert taken(budget, 100.0 + 100 * HALF_LIFE_S) == AT_LEAST


@given(st.lists(st.tuples(st.sampled_from(["request", "take"]), st.floats(0, 5)), max_size=200))
def test_retries_never_exceed_the_budget_of_all_requests(steps):
    budget, now_s, requests, retries = RetryBudget(), 0.0, 0, 0
    for what, passed_s in steps:
        now_s += passed_s
        if what == "request":
            budget.note_request(now_s)
            requests += 1
        else:
            retries += budget.take(now_s)
        # what fades gives room again: at most the floor anew for each half-life that has passed
        assert retries <= (AT_LEAST + SHARE * requests) * (1 + now_s / HALF_LIFE_S)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ([(b"retry-after", b"7")], 7.0),
        ([(b"content-type", b"x"), (b"retry-after", b"0")], 0.0),
        ([(b"retry-after", b"Mon, 30 Nov 2026 12:00:00 GMT")], BUSY_S),
        ([(b"retry-after", b"99999999999999999999")], BUSY_S),
        ([(b"retry-after", b"-1")], BUSY_S),
        ([], BUSY_S),
    ],
)
def test_what_an_engine_that_refuses_asks_for(headers, seconds):
    assert retry_after_s(headers) == seconds
