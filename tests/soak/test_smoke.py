"""A soak of ten seconds: the same traffic, storms and accounts as `make soak`."""

from __future__ import annotations

import pytest

from .soak import run


@pytest.mark.timeout(110)
def test_all_accounts_agree() -> None:
    report = run(minutes=0.15, rate=12, seed=20)
    assert report.problems == []
    assert report.requests > 100
    assert {"good", "event", "left"} <= set(report.endings)
