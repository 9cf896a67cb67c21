"""Agent libraries for Python through the gateway: a script of each (`sdks/`), streamed and not."""

from __future__ import annotations

from pathlib import Path

import pytest

from .pages import Page
from .stage import Stage

SCRIPTS = Path(__file__).parent / "sdks"
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"


@pytest.mark.parametrize("options", [(), ("--stream", "--session", "my-session")], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("agent", "script", "client", "path"),
    [
        ("openai-agents", ["use_openai_agents.py"], "openai-agents", RESPONSES),
        ("openai-agents", ["use_openai_agents.py", "--chat"], "openai-agents", CHAT),
        ("pydantic-ai", ["use_pydantic_ai.py"], "pydantic-ai", CHAT),
        ("langchain-openai", ["use_langchain_openai.py"], "openai", CHAT),
    ],
    ids=["openai-agents", "openai-agents-chat", "pydantic-ai", "langchain-openai"],
)
def test_reads_a_file(
    sdks: Path, stage: Stage, agent: str, script: list[str], client: str, path: str, options: tuple[str, ...]
) -> None:
    variables = Page("python-sdks.md", stage.url).variables

    played = stage.play([sdks / "python", SCRIPTS / script[0], stage.question, *script[1:], *options], variables)

    source = "x-switchyard-session-id" if "--session" in options else "fingerprint"
    played.check(agent, client=client, path=path, source=source)
    assert played.classes == ["main", "main"]
    assert {r["stream"] for r in played.records} == {"--stream" in options}
    assert len(played.sessions) == 1
