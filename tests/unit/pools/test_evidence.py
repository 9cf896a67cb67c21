"""What traffic and an engine's own numbers say about a replica: ejection, back-off, slow return, stalls (field case F08)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.pools.evidence import (
    FAILURES_IN_A_ROW,
    FIRST_BACK_OFF_S,
    LONGEST_BACK_OFF_S,
    PREFILL_TOKENS_S,
    SLOW_START_S,
    SLOWEST_PREFILL_TOKENS_S,
    SUSPICIOUS,
    Evidence,
)
from switchyard.pools.load import EngineLoad, read_load


def test_failures_in_a_row_are_enough_and_one_success_forgives():
    evidence = Evidence()
    for _ in range(3):
        assert [evidence.note_bad() for _ in range(FAILURES_IN_A_ROW - 1)] == [False] * (FAILURES_IN_A_ROW - 1)
        evidence.note_good(1.0)
    assert [evidence.note_bad() for _ in range(FAILURES_IN_A_ROW)][-1] is True


def test_the_back_off_doubles_up_to_a_limit():
    evidence = Evidence()
    waits = [evidence.eject(100.0)] + [evidence.extend(100.0) for _ in range(9)]
    assert waits == [min(LONGEST_BACK_OFF_S, FIRST_BACK_OFF_S * 2**n) for n in range(10)]
    assert evidence.back_at_s == 100.0 + LONGEST_BACK_OFF_S


def test_after_a_good_while_the_back_off_begins_anew():
    evidence = Evidence()
    for _ in range(2):
        evidence.eject(100.0)
    evidence.readmit(200.0)
    assert evidence.back_at_s == 0
    assert evidence.eject(201.0) == FIRST_BACK_OFF_S * 2**2  # it came back for a second only
    evidence.readmit(300.0)
    assert evidence.eject(301.0 + LONGEST_BACK_OFF_S) == FIRST_BACK_OFF_S


def test_it_comes_back_slowly():
    evidence = Evidence()
    assert evidence.share(5.0) == 1.0  # it never was away
    evidence.readmit(100.0)
    shares = [evidence.share(100.0 + SLOW_START_S * n / 10) for n in range(12)]
    assert shares == sorted(shares)
    assert (shares[0], shares[10], shares[11]) == (pytest.approx(0.1), 1.0, 1.0)


def test_two_failures_make_it_suspicious_before_a_third_client_finds_out():
    evidence = Evidence()
    assert SUSPICIOUS == FAILURES_IN_A_ROW - 1
    for _ in range(SUSPICIOUS):
        assert evidence.suspicious is False
        evidence.note_bad()
    assert evidence.suspicious is True


# readings: (now, working, progress, seconds still)
READINGS = [
    [(0, True, (5, 9), 0), (10, True, (5, 9), 10), (21, True, (5, 9), 21)],
    [(0, True, (5, 9), 0), (19, True, (6, 9), 0), (39, True, (6, 9), 20)],
    [(0, True, (5, 9), 0), (15, False, (5, 9), 0), (30, True, (5, 9), 15)],
    [(0, False, (0, 0), 0), (900, False, (0, 0), 0)],  # idle
]


@pytest.mark.parametrize("readings", READINGS, ids=range(len(READINGS)))
def test_a_stall_is_work_with_nothing_moving(readings):
    evidence = Evidence()
    for now_s, working, progress, still_s in readings:
        assert evidence.still_s(working, progress, now_s) == still_s, now_s


@given(st.lists(st.integers(0, 5), min_size=2, max_size=50))
def test_as_long_as_something_moves_nothing_is_stalled(steps):
    evidence, counter = Evidence(), 0
    for n, step in enumerate(steps):
        counter += 1 + step
        assert evidence.still_s(True, (counter,), n * 1000.0) == 0


def test_patience_grows_with_the_prompts_and_with_a_slow_engine():
    evidence = Evidence()
    assert evidence.patience_s(20, 0) == 20
    assert evidence.patience_s(20, 100_000) == 20 + 100_000 / PREFILL_TOKENS_S
    evidence.note_prefill(100_000, 400.0)
    assert evidence.patience_s(20, 100_000) == 420
    evidence.note_prefill(100_000, 20.0)  # the slowest counts
    assert evidence.patience_s(20, 100_000) == 420
    evidence.note_prefill(50, 60.0)  # no prefill takes so long
    evidence.note_prefill(0, 0.0)
    assert evidence.patience_s(20, 100_000) == 420
    evidence.note_prefill(10_000, 3600.0)
    assert evidence.prefill_tokens_s == SLOWEST_PREFILL_TOKENS_S


VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
vllm:kv_cache_usage_perc{engine="0"} 0.2
vllm:kv_cache_usage_perc{engine="1"} 0.3
vllm:iteration_tokens_total_bucket{engine="0",le="1.0"} 31.0
vllm:iteration_tokens_total_count{engine="0"} 33.0
vllm:prompt_tokens_total{engine="0"} 1.5e+03
vllm:generation_tokens_total{engine="0"} 70.0
vllm:generation_tokens_created{engine="0"} 1.796034828e+09
python_gc_objects_collected_total{generation="0"} 9.0
"""
LLAMA = """\
llamacpp:requests_processing 3
llamacpp:requests_deferred 1
llamacpp:tokens_predicted_total 12
llamacpp:prompt_tokens_total 40
llamacpp:n_decode_total 9
"""


@pytest.mark.parametrize(
    ("text", "load"),
    [
        (VLLM, EngineLoad(3, 4, 0.25, (70, 1500, 0.5, 33, 0, 0, 0))),
        (LLAMA, EngineLoad(3, 1, None, (0, 0, 0, 0, 12, 40, 9))),
        ("vllm:num_requests_running 0\n", EngineLoad(0, 0, None, (0, 0, 0, 0, 0, 0, 0))),
        ("python_info 1\n", None),
        ("", None),
        ("<html>vllm:num_requests_running</html>", None),
        ("vllm:num_requests_running --\n", None),
    ],
)
def test_an_engines_metrics(text, load):
    assert read_load(text) == load


@given(st.text(max_size=200))
def test_no_text_makes_it_fail(text):
    assert read_load(text) is None or isinstance(read_load(text), EngineLoad)
