"""Codex through the gateway, on Responses."""

from __future__ import annotations

from pathlib import Path

from .pages import Page
from .stage import Stage


def settings(stage: Stage) -> dict[str, str]:
    page = Page("codex.md", stage.url)
    home = stage.home / ".codex"
    home.mkdir()
    (home / "config.toml").write_text(page.block("toml"))
    return page.variables | {"CODEX_HOME": str(home)}


def test_reads_a_file(npm: Path, stage: Stage) -> None:
    # Its own sandbox needs kernel features that a container may lack; here the stage is one.
    options = ["--strict-config", "--skip-git-repo-check", "--sandbox", "danger-full-access"]

    played = stage.play([npm / "codex", "exec", *options, stage.question], settings(stage))

    played.check("Codex", client="codex", path="/v1/responses", source="session-id")
    assert played.classes == ["main", "main"]
    assert len(played.sessions) == 1
