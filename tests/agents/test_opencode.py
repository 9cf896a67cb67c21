"""opencode through the gateway, on chat completions."""

from __future__ import annotations

from pathlib import Path

from .pages import Page
from .stage import Played, Stage


def settings(stage: Stage, small_model: str = "small") -> dict[str, str]:
    page = Page("opencode.md", stage.url)
    config = page.block("json").replace('"small_model": "switchyard/small"', f'"small_model": "switchyard/{small_model}"')
    (stage.work / "opencode.json").write_text(config)
    return page.variables


def check(played: Played) -> None:
    played.check("opencode", client="opencode", path="/v1/chat/completions", source="x-session-id")


def test_reads_a_file(npm: Path, stage: Stage) -> None:
    variables = settings(stage)

    played = stage.play([npm / "opencode", "run", stage.question], variables)

    check(played)
    assert sorted(r["pool"] for r in played.records) == ["big", "big", "small"], "one is for the title"


def test_titles_are_seen(npm: Path, stage: Stage) -> None:
    """With one model for everything, a rule on `request_class` finds the titles."""
    variables = settings(stage, small_model="auto")

    played = stage.play([npm / "opencode", "run", stage.question], variables)

    check(played)
    assert sorted(played.classes) == ["main", "main", "title"]
    assert len(played.sessions) == 2, "titles are a session of their own, under the same id"


def test_lets_a_sub_agent_work(npm: Path, stage: Stage) -> None:
    variables = settings(stage)
    task = f"Let a sub-agent read the file {stage.note} and tell me the secret word that stands in it."

    played = stage.play([npm / "opencode", "run", task], variables)

    check(played)
    assert played.classes.count("subagent") == 2, played
