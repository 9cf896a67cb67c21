"""The parent of `serve --workers`: who can't run at all ends it, who dies after having served gets a successor."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard.cli.workers import Crew

WORKER = """
import os, pathlib, signal, sys, time
from switchyard.cli.workers import Worker
worker, lives = Worker.take_from(os.environ), pathlib.Path(sys.argv[1])
lives.write_text(lives.read_text() + "." if lives.exists() else ".")
"""


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def run(script: str, tmp_path: Path) -> tuple[int, int]:
    """Exit code of the parent, and how many workers it has started."""
    lives = tmp_path / "lives"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        code = Crew([sys.executable, "-c", WORKER + script, str(lives)], 1, listener, 1).run()
    return code, len(lives.read_text())


@pytest.mark.parametrize("slowly", [0, 6])
def test_a_worker_that_can_t_run_ends_it_however_long_it_took_to_find_out(tmp_path: Path, slowly: int) -> None:
    assert run(f"time.sleep({slowly}); sys.exit(3)", tmp_path) == (3, 1)


def test_one_that_dies_after_it_has_served_is_replaced(tmp_path: Path) -> None:
    script = """
if lives.read_text() == ".":
    worker.say_that_it_serves()
    sys.exit(3)
os.kill(os.getppid(), signal.SIGTERM)
"""
    assert run(script, tmp_path) == (0, 2)
