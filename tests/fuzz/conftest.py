"""The loops that targets keep for all their inputs are closed at the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .choices import LOOP
from .front import close_front


@pytest.fixture(scope="session", autouse=True)
def _close_loops() -> Iterator[None]:
    yield
    LOOP.close()
    close_front()
