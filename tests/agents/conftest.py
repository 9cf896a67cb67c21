"""What the agents' tests share: the agents themselves, installed when missing, and a stage for each test.

Where agents or network namespaces can't be had, a test is skipped and says why; with CI set it fails instead, since a
skip would hide it there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from . import environment
from .network import NoNetwork, loopback_only
from .stage import Stage

LIMIT_S = 900  # the first test also installs; an agent has its own, shorter limit


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the agents' tests the time that an installation takes."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.timeout(LIMIT_S))


@pytest.fixture(scope="session")
def install(request: pytest.FixtureRequest) -> Callable[[str], Path]:
    """Gives the folder with the commands of a part of `environment.PARTS`."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    failed: dict[str, str] = {}

    def say(text: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n[agents] {text}", flush=True)

    def install(part: str) -> Path:
        if part not in failed:
            try:
                return environment.ensure(part, say)
            except environment.InstallFailed as error:
                failed[part] = str(error)
        _impossible(failed[part])

    return install


@pytest.fixture(scope="session")
def npm(install: Callable[[str], Path]) -> Path:
    """Folder with `claude`, `codex` and `opencode`."""
    return install("npm")


@pytest.fixture(scope="session")
def aider(install: Callable[[str], Path]) -> Path:
    """Folder with `aider`."""
    return install("aider")


@pytest.fixture(scope="session")
def sdks(install: Callable[[str], Path]) -> Path:
    """Folder with a `python` that has the SDKs."""
    return install("python-sdks")


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """Engines and a gateway, on a network that has only loopback."""
    try:
        with loopback_only(), Stage(tmp_path) as stage:
            yield stage
    except NoNetwork as error:
        _impossible(str(error))


def _impossible(why: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(f"the agents' tests can't run: {why}", pytrace=False)
    pytest.skip(f"THE AGENTS' TESTS DID NOT RUN: {why}")
