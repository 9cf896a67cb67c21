"""A classifier that asks an LLM on a pool for one token, yes or no, and reads its probabilities.

How the question reaches a pool is not known here: `app.py` hands in a function that does it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from switchyard.config.policy import ModelClassifier
from switchyard.errors import GatewayError
from switchyard.routing.decision import Outcome
from switchyard.routing.signals import BYTES_PER_TOKEN, Signals

Ask = Callable[[str, bytes], Awaitable[tuple[int, bytes]]]
"""Sends a chat body (whose `model` is still to be set) to a pool by name; gives status and body of the answer."""

DEFAULT_PROMPT = (
    "You decide whether a small language model can answer a request as well as a large one.\n"
    "Request:\n{task}\n\nWould the small model's answer be as good? Answer with one word, yes or no."
)
TOP_TOKENS = 20  # a label can be missing from the top 5
FLOOR = 1e-4  # probability of a label that is not among the top tokens


class ModelJudge:
    """Asks `settings.pool`; late, broken or unclear answers are abstentions with their reason.

    Args:
        settings: the policy's block.
        ask: reaches the pool.
    """

    def __init__(self, settings: ModelClassifier, ask: Ask) -> None:
        self._settings = settings
        self._ask = ask
        self._name = f"model {settings.pool}"

    async def score(self, signals: Signals) -> Outcome:
        """One question with a deadline."""
        if not signals.last_human_text:
            return Outcome(self._name, why="no text by a human to judge")
        try:
            async with asyncio.timeout(self._settings.deadline_ms / 1000):
                status, answer = await self._ask(self._settings.pool, self._question(signals))
        except TimeoutError:
            return Outcome(self._name, why=f"no answer within {self._settings.deadline_ms} ms", failed=True)
        except GatewayError as error:
            return Outcome(self._name, why=error.message, failed=True)
        if status != 200:
            return Outcome(self._name, why=f"the judge answered with status {status}", failed=True)
        p = read_probability(answer)
        if p is None:
            return Outcome(self._name, why="the judge's answer has no yes and no", failed=True)
        return Outcome(self._name, p, "yes against no")

    def _question(self, signals: Signals) -> bytes:
        task = shorten(signals.last_human_text, self._settings.max_input_tokens * BYTES_PER_TOKEN)
        prompt = (self._settings.prompt or DEFAULT_PROMPT).replace("{task}", task)
        return msgspec.json.encode(
            {
                "model": "", "messages": [{"role": "user", "content": prompt}], "max_tokens": 1, "temperature": 0,
                "logprobs": True, "top_logprobs": TOP_TOKENS, "chat_template_kwargs": {"enable_thinking": False},
            }
        )  # fmt: skip


def shorten(text: str, characters: int) -> str:
    """Beginning and end of a text that is too long, with a mark between."""
    if len(text) <= characters:
        return text
    half = characters // 2 - 3
    return f"{text[:half]}\n...\n{text[-half:]}"


def read_probability(answer: bytes) -> float | None:
    """P(yes) / (P(yes) + P(no)) from the log-probabilities of the first token; None when neither label is there.

    Case and leading spaces don't matter: the tokens ` Yes` and `yes` add up. A label that is not among the top tokens
    counts `FLOOR`.
    """
    try:
        body: Any = msgspec.json.decode(answer)
        top = body["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        found = {"yes": 0.0, "no": 0.0}
        for entry in top:
            label = str(entry["token"]).strip().lower()
            if label in found:
                found[label] += math.exp(float(entry["logprob"]))
    except (msgspec.MsgspecError, UnicodeDecodeError, LookupError, TypeError, ValueError, OverflowError):
        return None
    yes, no = found["yes"], found["no"]
    if yes + no <= 0:
        return None
    return max(yes, FLOOR) / (max(yes, FLOOR) + max(no, FLOOR))
