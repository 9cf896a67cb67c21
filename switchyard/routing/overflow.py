"""Does an engine's refusal say that the request is longer than its context? Every engine has its own words for it; pure."""

from __future__ import annotations

import re

_WORDS = re.compile(
    rb"context_length_exceeded|exceed_context_size|maximum context length|context length of|model's context length|"
    rb"exceeds? the (?:available |model'?s? )?context|"
    rb"prompt is too long|input is too long|longer than the maximum model length",
    re.IGNORECASE,
)


def says_overflow(status: int, body: bytes) -> bool:
    """Whether an error answer is about the context: vLLM's, SGLang's, llama.cpp's and Anthropic's wordings."""
    return status in {400, 413} and _WORDS.search(body[:4096]) is not None
