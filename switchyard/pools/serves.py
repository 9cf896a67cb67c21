"""What an engine serves, by its own documents: the context of its model, and the protocols that it answers. Pure."""

from __future__ import annotations

from typing import Any

NATIVE = frozenset({"chat", "responses", "messages", "completions", "embeddings", "rerank", "score", "tokenize"})
"""What an engine is taken to answer until it has said."""
_PATHS = {
    "/v1/chat/completions": "chat", "/v1/completions": "completions", "/v1/responses": "responses", "/v1/messages": "messages",
    "/v1/embeddings": "embeddings", "/v1/rerank": "rerank", "/v1/score": "score", "/tokenize": "tokenize",
}  # fmt: skip


def read_context(models: Any, model: str) -> int | None:
    """Tokens that a request may take, from an engine's /v1/models: vLLM's `max_model_len`, llama.cpp's `meta.n_ctx`."""
    cards = models.get("data") if isinstance(models, dict) else None
    cards = [c for c in cards if isinstance(c, dict)] if isinstance(cards, list) else []
    for card in sorted(cards, key=lambda c: c.get("id") != model):
        meta = card.get("meta")
        for found in (card.get("max_model_len"), meta.get("n_ctx") if isinstance(meta, dict) else None):
            if isinstance(found, int) and found > 0:
                return found
    return None


def read_protocols(openapi: Any) -> frozenset[str]:
    """What an engine's OpenAPI document offers; an engine without one is taken to speak everything."""
    paths = openapi.get("paths") if isinstance(openapi, dict) else None
    found = frozenset(_PATHS[p] for p in paths if p in _PATHS) if isinstance(paths, dict) else frozenset()
    return found or NATIVE
