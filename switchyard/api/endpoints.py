"""The paths of the data plane. What is not here is the control plane's, or nobody's."""

from __future__ import annotations

import re
from collections.abc import Mapping

from switchyard.exchange import Endpoint

ENDPOINTS: Mapping[bytes, Endpoint] = {
    e.path.encode(): e
    for e in (
        Endpoint("/v1/chat/completions", "chat"),
        Endpoint("/v1/completions", "completions"),
        Endpoint("/v1/embeddings", "embeddings"),
        Endpoint("/v1/responses", "responses"),
        Endpoint("/v1/messages", "messages"),
        Endpoint("/v1/messages/count_tokens", "messages", counting=True),
        Endpoint("/v1/rerank", "rerank"),
        Endpoint("/v1/score", "score"),
        Endpoint("/tokenize", "tokenize"),
    )
}

STORED = re.compile(rb"/v1/responses/([A-Za-z0-9_.-]{1,200})(?:/(?:cancel|input_items))?")
"""A stored response by its id, and what can be asked about it."""


def allowed_methods(endpoint: Endpoint | None) -> tuple[bytes, ...]:
    """Methods that an endpoint takes; None is a stored response."""
    return (b"POST",) if endpoint is not None else (b"GET", b"POST", b"DELETE")
