"""The bytes of a request for a pool: the client's, with values replaced in place, and no other byte changed."""

from __future__ import annotations

import msgspec

from switchyard.pools.pool import Pool
from switchyard.routing.request import RequestView
from switchyard.routing.signals import Signals


def patch(view: RequestView, signals: Signals, pool: Pool) -> tuple[bytes, list[str]]:
    """The body for a pool: the model it serves, and what its block in the policy names. Nothing else.

    Returns:
        The bytes, and what was changed besides the model, in words; `usage` stands for the usage report asked for.
    """
    changes = {"model": pool.model_json}
    changed: list[str] = []
    if pool.clamps and pool.context_tokens and signals.max_output_tokens:
        fits = max(16, pool.context_tokens - signals.prompt_tokens_for(pool.name))
        for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
            value = view.number(name)
            if value is not None and value > fits:
                changes[name] = str(fits).encode()
                changed.append(f"{name} lowered from {value} to {fits}")
    if pool.settings.usage == "ask" and view.stream and view.protocol in {"chat", "completions"}:
        options = view.body.value("stream_options")
        if not (isinstance(options, dict) and options.get("include_usage")):
            asked = {**options, "include_usage": True} if isinstance(options, dict) else {"include_usage": True}
            changes["stream_options"] = msgspec.json.encode(asked)
            changed.append("usage")
    return view.body.patched(changes), changed
