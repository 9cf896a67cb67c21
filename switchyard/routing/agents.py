"""Which client asks, by its User-Agent; and the marks of the calls that agents make beside the conversation."""

from __future__ import annotations

import re
from functools import lru_cache

AGENTS: tuple[tuple[str, str], ...] = (
    ("claude-cli", "claude-code"), ("claude-code", "claude-code"), ("codex", "codex"), ("opencode", "opencode"),
    ("cline", "cline"), ("qwencode", "qwen-code"), ("qwen-code", "qwen-code"), ("aider", "aider"), ("litellm", "litellm"),
    ("langchain", "langchain"), ("pydantic-ai", "pydantic-ai"), ("agents/python", "openai-agents"),
    ("tool-eval-bench", "tool-eval-bench"), ("anthropic", "anthropic"), ("openai", "openai"), ("curl", "curl"),
)  # fmt: skip
TITLING_CLIENTS = {"claude-code", "opencode", "codex", "qwen-code"}
TITLE = re.compile(r"\b(title|topic|headline)\b", re.IGNORECASE)
COMPACTION = re.compile(
    r"\bsummar(y|ize|ise)\b.{0,80}\bconversation\b|\bcompact\b.{0,40}\b(history|conversation)\b",
    re.IGNORECASE | re.DOTALL,
)


@lru_cache(maxsize=1024)  # clients are few and repeat themselves
def client_of(user_agent: str) -> str:
    """The client that sends this User-Agent; `other` for a stranger."""
    agent = user_agent.lower()
    return next((name for mark, name in AGENTS if mark in agent), "other")
