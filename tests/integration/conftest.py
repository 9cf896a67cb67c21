"""What every integration test gets: after it, nothing runs in any gateway, and nothing has failed inside one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from .client import Client
from .engine import Engine
from .gateway import Gateway


@pytest.fixture(autouse=True)
def _leave_nothing_behind() -> Iterator[None]:
    yield
    for gateway in list(Gateway.running):
        gateway.close_clients()
        gateway.wait_idle()
        gateway.check()


@pytest.fixture
def start() -> Iterator[Callable[..., Any]]:
    """Enters a context manager (an engine, a gateway) for the time of the test."""
    with ExitStack() as stack:
        yield stack.enter_context


@pytest.fixture
def engine() -> Iterator[Engine]:
    """An engine for one test."""
    with Engine() as engine:
        yield engine


@pytest.fixture
def client(gateway: Gateway, engine: Engine) -> Client:
    """A client of the module's gateway, whose engine has forgotten the test before."""
    engine.reset()
    return gateway.client()
