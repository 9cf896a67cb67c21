"""What must hold for any bytes: one function for each part of the gateway that reads bytes of others.

A target takes bytes, uses the first few of them to choose (cuts, protocol, flags), and fails by raising. Each has a module
of its own. Hypothesis (test_*.py) and atheris (atheris_driver.py) call the same functions; what once failed is kept in
kept.py.
"""

from __future__ import annotations

from collections.abc import Callable

from .body import body
from .engine import engine
from .envelope import envelope
from .front import front
from .headers import headers
from .sse import sse

TARGETS: dict[str, Callable[[bytes], None]] = {
    "sse": sse, "engine": engine, "headers": headers, "body": body, "envelope": envelope, "front": front,
}  # fmt: skip
