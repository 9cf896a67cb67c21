"""What all tests share: the hypothesis profile, and a way to run coroutines in which blocking calls fail the test."""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Generator, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from blockbuster import blockbuster_ctx
from hypothesis import HealthCheck, settings
from hypothesis.configuration import set_hypothesis_home_dir
from redis_server import RedisServer

T = TypeVar("T")
Run = Callable[[Coroutine[Any, Any, T]], T]

set_hypothesis_home_dir(Path(__file__).parents[1] / ".pytest_cache" / "hypothesis")

settings.register_profile("dev", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("dev"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


@pytest.fixture(scope="session")
def run() -> Run[Any]:
    """Runs a coroutine to its end in a loop of its own; a blocking call in the loop is an error."""

    def run_it(coroutine: Coroutine[Any, Any, T]) -> T:
        with blockbuster_ctx():
            return asyncio.run(coroutine)

    return run_it


@pytest.fixture(autouse=True)
def same_logging() -> Iterator[None]:
    """What a command run inside this process did to logging ends with its test: its stream is the test's, and closed then."""
    loggers = [logging.getLogger(name) for name in ("", "httpx", "httpcore", "asyncio", "uvicorn")]
    levels = [logger.level for logger in loggers]
    handlers = set(loggers[0].handlers)
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    for handler in set(loggers[0].handlers) - handlers:
        if type(handler) is logging.StreamHandler:  # pytest's own, which come and go, are of its own kinds
            loggers[0].removeHandler(handler)


@pytest.fixture(scope="module")
def redis_server() -> Iterator[RedisServer]:
    """A real Redis for the tests of a file."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def redis(redis_server: RedisServer) -> RedisServer:
    """The same, empty."""
    redis_server.command("FLUSHALL")
    return redis_server


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where everything has to run, what did not run is a failure."""
    report = yield
    if report.skipped and os.environ.get("CI") == "true" and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI doesn't allow: {report.longrepr}"
    return report
