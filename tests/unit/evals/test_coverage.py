"""The promises about the statistics, by simulation and exactly; the tables for people come from benchmarks/verdicts.py."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def bench() -> dict[str, Any]:
    return runpy.run_path(str(Path(__file__).parents[3] / "benchmarks" / "verdicts.py"))


@pytest.mark.parametrize("psi", [0.02, 0.08, 0.2])
def test_coverage_at_92(bench: dict[str, Any], psi: float) -> None:
    for difference in (0.0, -psi / 2):
        found = bench["coverage"](92, psi, difference)
        assert found["exact"] >= 0.88
        assert found["simulated"] >= 0.88
        assert found["simulated"] == pytest.approx(found["exact"], abs=0.012)


@pytest.mark.parametrize("psi", [0.02, 0.08, 0.2])
def test_coverage_at_1000(bench: dict[str, Any], psi: float) -> None:
    found = bench["coverage"](1_000, psi, count=1_000)
    assert found["exact"] == pytest.approx(0.9, abs=0.01)
    assert found["simulated"] >= 0.87  # a thousand draws: within three standard errors of 0.9


@pytest.mark.parametrize("psi", [0.05, 0.06, 0.07, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5])
def test_a_candidate_at_the_margin_is_rarely_called_non_inferior(bench: dict[str, Any], psi: float) -> None:
    assert bench["type_one_error"](92, psi, 0.05, count=1)["exact"] <= 0.055


@pytest.mark.parametrize(("psi", "shown"), [(0.01, 0.927), (0.02, 0.805), (0.05, 0.557), (0.1, 0.403)])
def test_how_often_92_cases_show_a_margin_of_5(bench: dict[str, Any], psi: float, shown: float) -> None:
    """The table of docs/how-to/reproduce-the-claim.md."""
    assert bench["power"](92, psi, 0.05) == pytest.approx(shown, abs=0.001)


@pytest.mark.parametrize(("won", "most_lost"), [(0, 1), (2, 2), (5, 4), (10, 7)])
def test_how_many_cases_92_may_lose_at_a_margin_of_5(bench: dict[str, Any], won: int, most_lost: int) -> None:
    assert bench["interval"](92, most_lost, won)[0] > -0.05 >= bench["interval"](92, most_lost + 1, won)[0]


def test_the_bootstrap_is_not_too_sure(bench: dict[str, Any]) -> None:
    assert bench["bootstrap_coverage"](92, 0.2, count=120)["simulated"] >= 0.88


@pytest.mark.parametrize("loss", [1.0, 0.5])
def test_several_trials_are_not_too_sure_about_rare_losses(bench: dict[str, Any], loss: float) -> None:
    """Worse by the margin, all of it in a tenth of the cases: the bootstrap alone is wrong in 8 % of such runs."""
    found = bench["average_type_one_error"](50, 0.1, loss, count=300)
    assert found["simulated"] <= 0.055
    assert found["simulated"] <= found["bootstrap"]
