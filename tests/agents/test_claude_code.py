"""Claude Code through the gateway, on Messages: in a pipe, in a terminal, with a sub-agent, and counting tokens."""

from __future__ import annotations

import json
from pathlib import Path

from .pages import Page
from .stage import Played, Stage

SESSION = "x-claude-code-session-id"


def settings(stage: Stage) -> dict[str, str]:
    return Page("claude-code.md", stage.url).variables | {"CLAUDE_CONFIG_DIR": str(stage.home / ".claude")}


def check(played: Played, word: bool = True, path: str = "/v1/messages") -> None:
    played.check("Claude Code", client="claude-code", path=path, source=SESSION, word=word)


def test_reads_a_file(npm: Path, stage: Stage) -> None:
    played = stage.play([npm / "claude", "-p", stage.question, "--allowedTools", "Read"], settings(stage))

    check(played)
    assert played.classes == ["main", "main"]
    assert len(played.sessions) == 1


def test_streams_json(npm: Path, stage: Stage) -> None:
    options = ["--output-format", "stream-json", "--include-partial-messages", "--verbose", "--allowedTools", "Read"]

    played = stage.play([npm / "claude", "-p", stage.question, *options], settings(stage))

    check(played)
    events = [json.loads(line) for line in played.output.splitlines()]
    assert events[-1]["result"].endswith(played.word)
    assert events[-1]["usage"]["input_tokens"] == 2000, "the tokens that the engines reported for two requests"


def test_lets_a_sub_agent_work(npm: Path, stage: Stage) -> None:
    task = f"Let a sub-agent read the file {stage.note} and tell me the secret word that stands in it."

    played = stage.play([npm / "claude", "-p", task, "--allowedTools", "Read", "Agent"], settings(stage))

    check(played)
    assert played.classes.count("subagent") == 2, played
    assert len(played.sessions) == 2, "the sub-agent has the same session id, and is a session of its own"


def test_counts_tokens(npm: Path, stage: Stage) -> None:
    played = stage.play([npm / "claude", "-p", "/context"], settings(stage))

    check(played, word=False, path="/v1/messages/count_tokens")
    assert set(played.classes) == {"count"}
    assert "/ 131.1k" in played.output, "the context window is the one that was set"


def test_works_in_a_terminal(npm: Path, stage: Stage) -> None:
    """There it also asks for a title, and for the gateway's models when it is told to."""
    variables = settings(stage)
    del variables["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"]  # it takes the titles away, too
    variables["CLAUDE_CODE_ENABLE_GATEWAY_MODEL_DISCOVERY"] = "1"
    variables |= {"DISABLE_TELEMETRY": "1", "DISABLE_ERROR_REPORTING": "1", "DISABLE_AUTOUPDATER": "1"}
    known = {"hasCompletedOnboarding": True, "theme": "dark", "projects": {str(stage.work): {"hasTrustDialogAccepted": True}}}
    config = Path(variables["CLAUDE_CONFIG_DIR"])
    config.mkdir()
    (config / ".claude.json").write_text(json.dumps(known))

    played = stage.play_in_terminal(
        [npm / "claude", "--allowedTools", "Read"],
        variables,
        [stage.question, "/exit"],
        until=lambda terminal, tap: (
            stage.word in terminal.text and sum(c.method == "POST" and c.status == 200 for c in tap.calls) >= 3
        ),
    )

    check(played)
    assert sorted(played.classes) == ["main", "main", "title"], played
    assert [r["model"] for r in played.records if r["pool"] == "small"] == ["claude-small"]
    found = json.loads((config / "cache/gateway-models.json").read_text())
    assert [m["id"] for m in found["models"]] == ["claude-by-name"], "it takes names with `claude` in them"
