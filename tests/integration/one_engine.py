"""A gateway whose pools are all on one real engine: as it is, clamped and with usage asked for, and as a judge."""

from __future__ import annotations

from typing import Any

from .gateway import Gateway, policy, pool


def one_engine_gateway(url: str, deadline_ms: int) -> Gateway:
    """The pools `small`, `big` and `judge`, and the route `auto`, on which `judge` decides within its deadline."""

    def block(**settings: Any) -> dict[str, Any]:
        return pool(url, model="smollm2", **settings)

    pools = {"small": block(usage="ask"), "big": block(max_output_tokens="clamp"), "judge": block()}
    question = {"type": "model", "pool": "judge", "deadline_ms": deadline_ms}
    routes = {
        "auto": {
            "classify": [question],
            "choose": [{"p_at_least": 0.5, "use": "small"}, {"use": "big"}],
            "aliases": ["claude-*"],
        }
    }
    return Gateway(policy(pools, routes))
