"""The speed models against what was published, and against what they can't know."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.cluster.fitting import Undetermined
from switchyard.cluster.published import GLM_53_DECODE, QWEN_27B_DECODE, QWEN_27B_PREFILL, SingleStream
from switchyard.cluster.speed import (
    QWEN_27B,
    DenseModel,
    EngineSpeed,
    ExpertModel,
    Shape,
    describe_checks,
    measured_speed,
)

MODEL = DenseModel()


@pytest.mark.parametrize("row", QWEN_27B_DECODE, ids=lambda r: f"{r.nodes} {r.link}")
def test_published_decode_is_met(row: SingleStream) -> None:
    assert MODEL.decode_tokens_s(row.nodes, row.link) == pytest.approx(row.tokens_s, rel=0.02)


@pytest.mark.parametrize("row", QWEN_27B_PREFILL, ids=lambda r: f"{r.nodes} {r.link}")
def test_published_prefill_is_met(row: SingleStream) -> None:
    assert MODEL.prefill_tokens_s(row.nodes, row.link) == pytest.approx(row.tokens_s, rel=0.01)


def test_published_experts_are_met() -> None:
    for row in GLM_53_DECODE:
        assert ExpertModel().total_tokens_s(row.requests) == pytest.approx(row.total_tokens_s, rel=0.01)


def test_parameters_are_what_hardware_would_have() -> None:
    assert MODEL.decode["weights"] == pytest.approx(75.7e-3, rel=0.01)  # 22.2 GiB at 315 GB/s
    assert MODEL.decode["fixed"] == pytest.approx(7.9e-3, rel=0.01)
    assert MODEL.decode["hop, ring"] == pytest.approx(4.2e-6, rel=0.02)
    assert MODEL.decode["hop, switch+rocenante"] == pytest.approx(1.8e-6, rel=0.02)
    assert 1 / MODEL.prefill["seconds a GB, ring"] == pytest.approx(24.9, rel=0.01)
    assert QWEN_27B.all_reduces == 129
    assert QWEN_27B.prefill_gb == pytest.approx(10.8, rel=0.01)


def test_errors_of_rows_that_were_left_out() -> None:
    decode = [c.left_out_error for c in MODEL.check_decode()]
    assert min(e for e in decode if e is not None) == pytest.approx(-0.0447, abs=0.001)
    assert max(e for e in decode if e is not None) == pytest.approx(0.0501, abs=0.001)
    assert decode[-1] is None, "only one row is on a switch without RoCEnante: it can't check itself"
    assert [c.left_out_error is None for c in MODEL.check_prefill()] == [False, True, False, False, False, False]
    assert max(abs(c.left_out_error or 0) for c in ExpertModel().check()) == pytest.approx(0.0498, abs=0.001)


def test_table_for_people_keeps_measured_and_fitted_apart() -> None:
    lines = list(describe_checks(QWEN_27B_DECODE, MODEL.check_decode()))
    assert lines[0].split() == ["tokens/s", "measured", "fitted", "error", "left", "out"]
    assert lines[1].split() == ["1", "node", "11.86", "11.97", "+0.9%", "+5.0%"]
    assert lines[-1].endswith("-")
    assert "4 requests, in all" in list(describe_checks(GLM_53_DECODE, ExpertModel().check()))[2]


def test_link_that_nobody_measured_is_no_guess() -> None:
    without_switch = [r for r in QWEN_27B_DECODE if r.link != "switch"]
    with pytest.raises(Undetermined, match="switch"):
        DenseModel(decode=without_switch).decode_tokens_s(8, "switch")


def test_prefill_table_that_says_too_little() -> None:
    with pytest.raises(Undetermined):
        DenseModel(prefill=QWEN_27B_PREFILL[1:2]).prefill_tokens_s(2, "direct")


def test_another_model_is_scaled_and_says_so() -> None:
    small = Shape("small", read_gib=QWEN_27B.read_gib / 10, active_b=2.7, layers=32, hidden=2560)
    own, other = MODEL.speed(1, "none"), MODEL.speed(1, "none", small)
    assert own.origin == "fitted"
    assert other.origin == "scaled"
    assert other.step_s(1) == pytest.approx(MODEL.decode["weights"] / 10 + MODEL.decode["fixed"] / 2)
    assert other.prefill_tokens_s > 4 * own.prefill_tokens_s


def test_measured_points_are_kept_and_lines_drawn_between() -> None:
    speed = measured_speed({8: 67, 1: 31, 4: 51}, prefill_tokens_s=2000)
    for requests, tokens_s in {1: 31, 4: 51, 8: 67}.items():
        assert speed.decode_tokens_s(requests) == pytest.approx(tokens_s)
    assert speed.step_s(6) == pytest.approx((4 / 51 + 8 / 67) / 2)
    assert speed.step_s(12) == pytest.approx(2 * 8 / 67 - 4 / 51)
    assert speed.origin == "measured"


def test_beyond_one_measured_point_a_token_costs_what_prefill_does() -> None:
    speed = measured_speed({1: 20}, prefill_tokens_s=1000)
    assert speed.step_s(9) == pytest.approx(0.05 + 8 / 1000)


def test_throughput_of_full_places() -> None:
    speed = EngineSpeed(((1, 0.1), (10, 0.2)), prefill_tokens_s=1000, origin="measured", note="")
    assert speed.requests_s(10, prompt_tokens=500, answer_tokens=100) == pytest.approx(1 / (0.5 + 99 * 0.2 / 10))
    assert speed.requests_s(10, 500, 101, cached_share=1) == pytest.approx(0.5)


@given(
    st.dictionaries(st.integers(1, 64), st.floats(1, 1000), min_size=1, max_size=5),
    st.floats(10, 10000),
    st.integers(1, 200),
)
def test_step_is_positive_and_one_more_point_changes_nothing(
    points: dict[int, float], prefill_tokens_s: float, running: int
) -> None:
    speed = measured_speed(points, prefill_tokens_s)
    assert speed.step_s(running) > 0
    if min(points) < running < max(points):
        filled = measured_speed({**points, running: speed.decode_tokens_s(running)}, prefill_tokens_s)
        assert filled.step_s(running) == pytest.approx(speed.step_s(running))
