"""What engines say about themselves: their Prometheus text, as far as health and load need it. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SAMPLE = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*)(?:\{[^}]*\})?\s+([-+0-9.eE]+|NaN|[+-]?Inf)\s*(?:\d+)?$", re.MULTILINE)
_RUNNING = ("vllm:num_requests_running", "llamacpp:requests_processing")
_WAITING = ("vllm:num_requests_waiting", "llamacpp:requests_deferred")
_PROGRESS = (
    "vllm:generation_tokens_total", "vllm:prompt_tokens_total", "vllm:kv_cache_usage_perc",
    "llamacpp:tokens_predicted_total", "llamacpp:prompt_tokens_total",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """One reading of an engine's metrics.

    Attributes:
        running: requests it works on.
        waiting: requests in its own queue.
        progress: counters that move while it works; all zero for an engine that has none.
    """

    running: float
    waiting: float
    progress: tuple[float, ...]


def read_load(text: str) -> EngineLoad | None:
    """Read vLLM's or llama.cpp's metrics; None when it is neither. Series of several engine cores add up."""
    found: dict[str, float] = {}
    for name, value in _SAMPLE.findall(text):
        if name.startswith(("vllm:", "llamacpp:")):
            try:
                found[name] = found.get(name, 0.0) + float(value)
            except ValueError:
                continue
    running = [found[n] for n in _RUNNING if n in found]
    if not running:
        return None
    waiting = [found[n] for n in _WAITING if n in found]
    return EngineLoad(sum(running), sum(waiting), tuple(found.get(n, 0.0) for n in _PROGRESS))
