"""From times to figures, by the definitions of llama-benchy 0.4. Pure.

Two quantities that are often mixed up, and are kept apart here:

- *total*: of a batch of requests that began together, all tokens over the time that the batch took for them;
- *per user*: each request's own tokens over its own time, in the mean.

Prefill per user is the prompt over the time to the first piece of the answer, less what a request without work takes; in
total it is all prompts over the time until the last request has its first token. Decode counts the tokens after a
request's first one, from that to its last; in total from the first token of all to the last of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any


@dataclass(frozen=True, slots=True)
class Timing:
    """One request. Times are of one monotonic clock, in seconds.

    Attributes:
        sent_s: when it was sent.
        first_s: when the first event of its answer came, be it empty.
        first_token_s: when its first text came.
        last_token_s: when its last text came.
        prompt_tokens: as the engine counted them.
        answer_tokens: as the engine counted them.
        first_tokens: how many came with the first text.
    """

    sent_s: float
    first_s: float
    first_token_s: float
    last_token_s: float
    prompt_tokens: int
    answer_tokens: int
    first_tokens: float = 1.0

    @property
    def decoded_tokens(self) -> float:
        """Tokens after the first text."""
        return max(0.0, self.answer_tokens - self.first_tokens)


@dataclass(frozen=True, slots=True)
class Figure:
    """Mean and standard deviation over what was measured; None when nothing could be."""

    mean: float
    deviation: float


@dataclass(frozen=True, slots=True)
class Row:
    """Figures of one number of requests at once, in tokens a second and milliseconds."""

    concurrency: int
    prefill_total: Figure | None
    prefill_per_user: Figure | None
    decode_total: Figure | None
    decode_per_user: Figure | None
    first_token_ms: Figure | None
    failed: int = 0
    prompt_tokens: float = 0.0
    answer_tokens: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        named = {
            "prefill_tokens_s": {"total": self.prefill_total, "per_user": self.prefill_per_user},
            "decode_tokens_s": {"total": self.decode_total, "per_user": self.decode_per_user},
        }
        figures = {name: {key: as_pair(f) for key, f in pair.items()} for name, pair in named.items()}
        return {
            "concurrency": self.concurrency, "prompt_tokens": self.prompt_tokens, "answer_tokens": self.answer_tokens,
            **figures, "first_token_ms": as_pair(self.first_token_ms), "failed": self.failed,
        }  # fmt: skip


def as_pair(figure: Figure | None) -> dict[str, float] | None:
    """For JSON."""
    return None if figure is None else {"mean": round(figure.mean, 3), "deviation": round(figure.deviation, 3)}


def summarise(concurrency: int, batches: Sequence[Sequence[Timing]], latency_s: float, failed: int = 0) -> Row:
    """The figures of batches whose requests began together.

    Args:
        concurrency: requests of a batch.
        batches: timings of those that were answered.
        latency_s: what a request without work takes; taken off a prompt's own time.
        failed: requests that were not answered.
    """
    batches = [batch for batch in batches if batch]
    all_ = [t for batch in batches for t in batch]
    prefill_own = [t.prompt_tokens / (t.first_s - t.sent_s - latency_s) for t in all_ if t.first_s - t.sent_s > latency_s]
    decode_own = [t.decoded_tokens / (t.last_token_s - t.first_token_s) for t in all_ if t.last_token_s > t.first_token_s]
    prefill, decode = prefill_own, decode_own
    if concurrency > 1:
        prefill = [
            sum(t.prompt_tokens for t in b) / (max(t.first_token_s for t in b) - min(t.sent_s for t in b)) for b in batches
        ]
        spans = [(b, max(t.last_token_s for t in b) - min(t.first_token_s for t in b)) for b in batches]
        decode = [sum(t.decoded_tokens for t in b) / span_s for b, span_s in spans if span_s > 0]
    return Row(
        concurrency, _figure(prefill), _figure(prefill_own), _figure(decode), _figure(decode_own),
        _figure([1000 * (t.first_token_s - t.sent_s) for t in all_]), failed,
        fmean([t.prompt_tokens for t in all_]) if all_ else 0.0, fmean([t.answer_tokens for t in all_]) if all_ else 0.0,
    )  # fmt: skip


def _figure(values: Sequence[float]) -> Figure | None:
    return Figure(fmean(values), pstdev(values)) if values else None
