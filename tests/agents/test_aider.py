"""aider through the gateway, on chat completions. It has no tools: files come with the prompt and go with the answer."""

from __future__ import annotations

import subprocess
from pathlib import Path

from .pages import Page
from .stage import Stage


def options(stage: Stage) -> list[str]:
    """The page's options, and a task."""
    command = Page("aider.md", stage.url).block("sh").splitlines()[-1].split()
    assert command[0] == "aider"
    task = f"Write the secret word that stands in {stage.note} into answer.txt."
    return [*command[1:], "--yes-always", "note.txt", "answer.txt", "--message", task]


def settings(stage: Stage) -> dict[str, str]:
    page = Page("aider.md", stage.url)
    (stage.work / ".aider.model.metadata.json").write_text(page.block("json"))
    return page.variables


def test_edits_a_file(aider: Path, stage: Stage) -> None:
    played = stage.play([aider / "aider", *options(stage), "--no-git"], settings(stage))

    played.check("aider", client="openai", path="/v1/chat/completions", source="fingerprint")
    assert (stage.work / "answer.txt").read_text().strip() == stage.word
    assert played.classes == ["main"]


def test_says_who_it_is_and_commits(aider: Path, stage: Stage) -> None:
    """Headers in its model settings give it a name and a session; commit messages go to the weak model."""
    variables = settings(stage)
    (stage.work / ".aider.model.settings.yml").write_text(Page("aider.md", stage.url).block("yaml"))
    for command in (["init", "--quiet"], ["config", "user.name", "Ada"], ["config", "user.email", "ada@example.org"]):
        subprocess.run(["git", *command], cwd=stage.work, check=True)

    played = stage.play([aider / "aider", *options(stage)], variables)

    played.check("aider", client="aider", path="/v1/chat/completions", source="x-switchyard-session-id")
    assert (stage.work / "answer.txt").read_text().strip() == stage.word
    assert [r["pool"] for r in played.records][:2] == ["big", "small"]
    subjects = subprocess.run(["git", "log", "--format=%s"], cwd=stage.work, check=True, capture_output=True, text=True).stdout
    assert "Reading a note" in subjects, "what the small model said"
