"""Inputs that once broke a rule, the shortest that showed it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Kept:
    """An input that failed.

    Attributes:
        name: what was wrong.
        target: key of `targets.TARGETS`.
        data: the bytes.
        marks: xfail while it is not repaired.
    """

    name: str
    target: str
    data: bytes
    marks: Collection[pytest.MarkDecorator] = ()


KEPT: list[Kept] = []
