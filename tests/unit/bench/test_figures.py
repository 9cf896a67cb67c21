"""Figures from times, by hand-made examples; total and per user are never the same thing."""

import pytest

from switchyard.bench.benchy import read_result
from switchyard.bench.figures import Timing, summarise


def timing(sent_s, first_token_s, last_token_s, prompt=1000, answer=11):
    return Timing(sent_s, first_token_s, first_token_s, last_token_s, prompt, answer)


def test_one_at_a_time():
    row = summarise(1, [[timing(0, 0.51, 1.51)], [timing(5, 5.51, 6.51)]], latency_s=0.01)
    assert row.prefill_total.mean == row.prefill_per_user.mean == pytest.approx(2000)
    assert row.decode_total.mean == row.decode_per_user.mean == pytest.approx(10)
    assert row.first_token_ms.mean == pytest.approx(510)
    assert row.decode_total.deviation == pytest.approx(0)


def test_two_at_once():
    row = summarise(2, [[timing(0, 1, 3), timing(0, 2, 4)]], latency_s=0.0)
    assert row.prefill_total.mean == pytest.approx(2000 / 2)  # both prompts, until the second one's first token
    assert row.prefill_per_user.mean == pytest.approx((1000 + 500) / 2)
    assert row.decode_total.mean == pytest.approx(20 / 3)  # both answers, from the first token of all to the last of all
    assert row.decode_per_user.mean == pytest.approx(5)


def test_several_tokens_in_an_event():
    row = summarise(1, [[Timing(0, 1, 1, 3, 1000, 40, first_tokens=4)]], latency_s=0.0)
    assert row.decode_per_user.mean == pytest.approx(36 / 2)


def test_what_can_not_be_measured_is_none():
    row = summarise(4, [[]], latency_s=0.0, failed=4)
    assert row.as_dict()["decode_tokens_s"] == {"total": None, "per_user": None}
    assert row.failed == 4
    one_token = summarise(1, [[timing(0, 1, 1, answer=1)]], latency_s=0.0)
    assert one_token.decode_total is None
    assert one_token.prefill_total is not None
    assert summarise(1, [[timing(0, 0.001, 1)]], latency_s=0.1).prefill_total is None


def test_llama_benchy_results_are_read():
    metric = {"mean": 100.5, "std": 1.5, "values": [99, 102]}
    run = {
        "concurrency": 4, "context_size": 0, "prompt_size": 2048, "response_size": 32, "is_context_prefill_phase": False,
        "pp_throughput": metric, "pp_req_throughput": None, "tg_throughput": metric, "tg_req_throughput": metric,
        "e2e_ttft": metric,
    }  # fmt: skip
    rows = read_result({"benchmarks": [run, {**run, "is_context_prefill_phase": True}]})
    assert len(rows) == 1
    assert rows[0].as_dict()["prefill_tokens_s"] == {"total": {"mean": 100.5, "deviation": 1.5}, "per_user": None}
