"""What proves that an engine works: a real completion of one token, or the nearest thing that its model has. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

Outcome = Literal["works", "fails", "unclear"]
NO_VERDICT = frozenset({429, 503})
"""Busy, or loading: neither works nor broken."""


def proof_request(protocols: Collection[str], model: str) -> tuple[str, dict[str, Any]] | None:
    """Path and body of the cheapest real work; None for an engine that has none of these endpoints."""
    if "chat" in protocols:
        return "/v1/chat/completions", {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    if "completions" in protocols:
        return "/v1/completions", {"model": model, "prompt": "Hi", "max_tokens": 1}
    if "embeddings" in protocols:
        return "/v1/embeddings", {"model": model, "input": "Hi"}
    return None


def read_proof(status: int) -> Outcome:
    """What an answer to that says. A refusal below 500 is somebody's mistake, by an engine that is awake."""
    if status in NO_VERDICT:
        return "unclear"
    return "fails" if status >= 500 else "works"
