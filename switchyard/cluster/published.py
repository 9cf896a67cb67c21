"""Published speed measurements, and nothing else: data that models are fitted to, never the other way round.

DGX Spark nodes (GB10, 128 GB), vLLM, measured with llama-benchy by others than us. A figure that a model has made must
not be put here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Link = Literal["none", "direct", "ring", "switch", "switch+rocenante"]
"""How the nodes of one engine are joined: alone, a cable between two, a ring of cables, a switch (with NCCL, or RoCEnante)."""

PROMPT_TOKENS = 8192
ANSWER_TOKENS = 256


@dataclass(frozen=True, slots=True)
class SingleStream:
    """One request at a time on one engine.

    Attributes:
        nodes: tensor-parallel ranks, one a node.
        link: how they are joined.
        tokens_s: tokens a second.
    """

    nodes: int
    link: Link
    tokens_s: float


@dataclass(frozen=True, slots=True)
class Concurrent:
    """Several requests at a time on one engine.

    Attributes:
        requests: how many at once.
        total_tokens_s: generated tokens a second, of all of them together.
        per_user_tokens_s: as one user sees it; another quantity, not the total divided by the requests.
    """

    requests: int
    total_tokens_s: float
    per_user_tokens_s: float


QWEN_27B_DECODE = (
    SingleStream(1, "none", 11.86),
    SingleStream(2, "direct", 21.71),
    SingleStream(4, "ring", 32.82),
    SingleStream(4, "switch+rocenante", 36.34),
    SingleStream(8, "ring", 40.11),
    SingleStream(8, "switch+rocenante", 52.58),
    SingleStream(8, "switch", 36.17),  # published as a speed-up: 3.05 times one node's 11.86
)
"""Qwen3.8-27B NVFP4 (22.2 GiB of weights, 64 layers), 8,192 tokens in, 256 out: decode."""

QWEN_27B_PREFILL = (
    SingleStream(1, "none", 2635.0),
    SingleStream(2, "direct", 3285.0),
    SingleStream(4, "ring", 4446.0),
    SingleStream(4, "switch", 4556.0),
    SingleStream(8, "ring", 4962.0),
    SingleStream(8, "switch", 5105.0),
)
"""The same runs: prefill. RoCEnante takes small messages only, so on a switch it makes no difference here."""

GLM_53_DECODE = (Concurrent(1, 31.0, 31.0), Concurrent(4, 51.0, 21.0), Concurrent(8, 67.0, 18.0))
"""GLM 5.3 (753B, NVFP4; 8 of 256 experts a token) on eight nodes: decode at 1, 4 and 8 requests."""
