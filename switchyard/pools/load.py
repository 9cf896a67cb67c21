"""What engines say about themselves: their Prometheus text, as far as health and load need it. Pure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

_RUNNING = ("vllm:num_requests_running", "llamacpp:requests_processing")
_WAITING = ("vllm:num_requests_waiting", "llamacpp:requests_deferred")
_KV_CACHE = "vllm:kv_cache_usage_perc"
_PROGRESS = (
    "vllm:generation_tokens_total", "vllm:prompt_tokens_total", _KV_CACHE, "vllm:iteration_tokens_total_count",
    "llamacpp:tokens_predicted_total", "llamacpp:prompt_tokens_total", "llamacpp:n_decode_total",
)  # fmt: skip
"""Figures that move while an engine works. The third and fourth, and the last, move inside a long prefill too."""
_SAMPLE = re.compile(
    rf"^({'|'.join((*_RUNNING, *_WAITING, *_PROGRESS))})(?:\{{[^\n]*\}})?[ \t]+(\S+)(?:[ \t]+\d+)?[ \t]*$", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """One reading of an engine's metrics.

    Attributes:
        running: requests it works on.
        waiting: requests in its own queue.
        kv_cache: share of the KV cache in use, 0..1; None for an engine that doesn't say.
        progress: counters that move while it works; all zero for an engine that has none.
    """

    running: float
    waiting: float
    kv_cache: float | None
    progress: tuple[float, ...]


def read_load(text: str) -> EngineLoad | None:
    """Read vLLM's or llama.cpp's metrics; None when it is neither. Series of several engine cores add up."""
    found: dict[str, list[float]] = {}
    for name, value in _SAMPLE.findall(text):
        if (number := _number(value)) is not None:
            found.setdefault(name, []).append(number)
    if not any(name in found for name in _RUNNING):
        return None
    running, waiting = (sum(sum(found.get(n, ())) for n in names) for names in (_RUNNING, _WAITING))
    usage = found.get(_KV_CACHE)
    kv_cache = sum(usage) / len(usage) if usage else None
    return EngineLoad(running, waiting, kv_cache, tuple(sum(found.get(n, ())) for n in _PROGRESS))


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
