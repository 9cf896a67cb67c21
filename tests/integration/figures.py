"""An engine's own figures, as a test sets them: what vLLM says at /metrics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .engine import Engine, Step, reply

PLAIN = ("content-type", "text/plain; version=0.0.4")


@dataclass
class Figures:
    """Attach to an engine, then change at will. `tokens` moves by itself by `step` at each reading."""

    running: float = 0
    waiting: float = 0
    tokens: float = 0
    step: float = 0

    def attach(self, engine: Engine) -> Figures:
        engine.play_at("/metrics", self._answer)
        return self

    def _answer(self, _: Any) -> Iterable[Step]:
        self.tokens += self.step
        lines = [
            f'vllm:num_requests_running{{engine="0"}} {self.running}',
            f'vllm:num_requests_waiting{{engine="0"}} {self.waiting}',
            f'vllm:kv_cache_usage_perc{{engine="0"}} {min(1.0, self.running / 16)}',
            f'vllm:generation_tokens_total{{engine="0"}} {self.tokens}',
        ]
        return reply(("\n".join(lines) + "\n").encode(), headers=(PLAIN,))
