"""A classifier that asks an LLM on a pool for one token, yes or no, and reads its probabilities.

How the question reaches a pool is not known here: `app.py` hands in a function that does it. Caching and the limit on
questions are `flight.py`, what the judge is shown is `task.py`.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Protocol

import msgspec

from switchyard.config.classifier import ModelClassifier
from switchyard.errors import GatewayError
from switchyard.routing.classify.base import scored
from switchyard.routing.classify.flight import Busy, Flight
from switchyard.routing.classify.stats import Abstention, AskStats
from switchyard.routing.classify.task import describe_task, shorten
from switchyard.routing.decision import Outcome
from switchyard.routing.signals import Signals

__all__ = ["DEFAULT_PROMPT", "FLOOR", "TOP_TOKENS", "Ask", "ModelJudge", "Reading", "read_probability", "shorten"]

Ask = Callable[[str, bytes], Awaitable[tuple[int, bytes]]]
"""Sends a chat body (whose `model` is still to be set) to a pool by name; gives status and body of the answer."""

DEFAULT_PROMPT = (
    "You decide whether a small language model can answer a request as well as a large one.\n"
    "Request:\n{task}\n\nWould the small model's answer be as good? Answer with one word, yes or no."
)
TOP_TOKENS = 20  # a label can be missing from the top 5
FLOOR = 1e-4  # probability of a label that is not among the top tokens
LEAST_MASS = 0.01  # a model that gives yes and no together less was about to say something else
CHOICE = ("yes", "no", "Yes", "No")
"""Labels that a constrained engine keeps to. Both cases: a model that wants to say `No` and may only say `no` is a coin
toss. Measured on vLLM 0.32: both cases give the p of the free answer within 0.003, lower case alone is up to 0.42 off."""
_REFUSES_FIELD = frozenset({400, 422})
_MARKS = " \t\n\"'*`.,:;!\u2581\u0120\u010a"  # around a word; the last ones are how some engines write a blank or a line break
_THOUGHT = re.compile(r"\s*(<|\[think|think\b)", re.IGNORECASE)  # <think>, <|channel|>, [THINK]


@dataclass(frozen=True, slots=True)
class Reading:
    """What an ask came to.

    Attributes:
        p: P(yes) against P(no), not calibrated; None when there is none.
        reason: why there is none, for metrics.
        why: the same for people.
    """

    p: float | None = None
    reason: Abstention | None = None
    why: str = "yes against no"


class Remember(Protocol):
    """A store that several gateways share, as far as judgements go."""

    async def recall(self, key: bytes) -> str | None:
        """The text that was kept under a key."""

    def keep(self, key: bytes, answer: str, ttl_s: float) -> None:
        """Keep a text for so many seconds."""


class SharedReadings:
    """Readings that all gateways of a store share; see `flight.Elsewhere`.

    Args:
        recall: the text that was kept under a key.
        keep: keeps a text for so many seconds.
        ttl_s: how long a reading is good for.
    """

    def __init__(
        self, recall: Callable[[bytes], Awaitable[str | None]], keep: Callable[[bytes, str, float], None], ttl_s: float
    ) -> None:
        self._recall = recall
        self._keep = keep
        self._ttl_s = ttl_s

    async def find(self, key: bytes) -> Reading | None:
        """See `flight.Elsewhere`."""
        text = await self._recall(key)
        try:
            p = float(text or "")
        except ValueError:
            return None
        return Reading(p) if 0 <= p <= 1 else None

    def keep(self, key: bytes, answer: Reading) -> None:
        """See `flight.Elsewhere`."""
        self._keep(key, repr(answer.p), self._ttl_s)


class ModelJudge:
    """Asks `settings.pool`; late, broken, unclear answers and too many questions are abstentions with their reason.

    Args:
        settings: the policy's block.
        ask: reaches the pool.
        flight: remembers answers and limits the questions; left out: one of its own with the defaults.
        bias: added to the logit of the score, as calibration found it.
        scale: the logit is multiplied by it before.
    """

    def __init__(
        self,
        settings: ModelClassifier,
        ask: Ask,
        flight: Flight[Reading] | None = None,
        bias: float = 0.0,
        scale: float = 1.0,
    ) -> None:
        self._settings = settings
        self._ask = ask
        self._flight = flight or Flight(has_score)
        self._bias = bias
        self._scale = scale
        self._name = f"model {settings.pool}"
        self._constrains = True
        self.stats = AskStats()

    async def score(self, signals: Signals) -> Outcome:
        """One question, or the answer that equal questions had; see `flight.Flight.ask`."""
        if not signals.last_human_text:
            self.stats.abstained["no_text"] += 1
            return Outcome(self._name, why="no text by a human to judge")
        prompt = self._prompt(signals)
        key = blake2b(f"{self._settings.pool}\0{prompt}".encode(errors="replace"), digest_size=16).digest()
        try:
            reading, how = await self._flight.ask(key, lambda: self._put(prompt))
        except Busy:
            reading = Reading(None, "busy", "busy: as many questions as allowed are under way")
        else:
            self.stats.cached += how == "cached"
            self.stats.joined += how == "joined"
        if reading.p is None:
            self.stats.abstained[reading.reason or "unreadable"] += 1
            return Outcome(self._name, why=reading.why, failed=True)
        return scored(self._name, reading.p, self._bias, self._scale, reading.why)

    async def _put(self, prompt: str) -> Reading:
        """Ask the pool, within the deadline."""
        self.stats.asked += 1
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(self._settings.deadline_ms / 1000):
                status, answer = await self._ask(self._settings.pool, make_question(prompt, self._constrains))
                if self._constrains and status in _REFUSES_FIELD:
                    # An engine that is strict about fields it doesn't know: the labels are read from the top tokens anyway.
                    status, answer = await self._ask(self._settings.pool, make_question(prompt, False))
                    self._constrains = status != 200
        except TimeoutError:
            return Reading(None, "late", f"no answer within {self._settings.deadline_ms} ms")
        except GatewayError as error:
            return Reading(None, "unreachable", error.message)
        self.stats.note_answer(time.monotonic() - began_s)
        if status != 200:
            return Reading(None, "status", f"the judge answered with status {status}")
        body = _decoded(answer)
        self._count_tokens(body)
        p = _probability(body)
        if p is None:
            return Reading(None, "unreadable", _why_unreadable(body))
        return Reading(p)

    def _prompt(self, signals: Signals) -> str:
        task = describe_task(signals, self._settings.max_input_tokens)
        return (self._settings.prompt or DEFAULT_PROMPT).replace("{task}", task)

    def _count_tokens(self, body: Any) -> None:
        usage = body.get("usage") if isinstance(body, dict) else None
        if isinstance(usage, dict):
            self.stats.input_tokens += _count(usage.get("prompt_tokens"))
            self.stats.output_tokens += _count(usage.get("completion_tokens"))


def has_score(reading: Reading) -> bool:
    """Whether an answer is worth remembering."""
    return reading.p is not None


def make_question(prompt: str, constrained: bool) -> bytes:
    """The chat body, without a model. vLLM keeps to the choice; llama.cpp ignores it, and the top tokens are read alike."""
    body: dict[str, Any] = {
        "model": "", "messages": [{"role": "user", "content": prompt}], "max_tokens": 1, "temperature": 0,
        "logprobs": True, "top_logprobs": TOP_TOKENS,
    }  # fmt: skip
    if constrained:
        body["chat_template_kwargs"] = {"enable_thinking": False}
        body["structured_outputs"] = {"choice": CHOICE}
    return msgspec.json.encode(body)


def read_probability(answer: bytes) -> float | None:
    """P(yes) / (P(yes) + P(no)) from the log-probabilities of the first token; None when neither label is there.

    Case and leading spaces don't matter: the tokens ` Yes` and `yes` add up, and so do the beginnings `y` and `n`, into
    which a constrained engine splits the labels. A label that is not among the top tokens counts `FLOOR`. Both forms are
    read: the list of entries that chat answers have (and llama.cpp's completions), and vLLM's dict under completions.
    """
    return _probability(_decoded(answer))


def _decoded(answer: bytes) -> Any:
    try:
        return msgspec.json.decode(answer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _probability(body: Any) -> float | None:
    try:
        top = _top_tokens(body["choices"][0]["logprobs"])
    except (LookupError, TypeError, AttributeError):
        return None
    yes = no = 0.0
    for token, logprob in top:
        if not isinstance(token, str) or not isinstance(logprob, int | float) or not logprob <= 0.01:
            return None  # no log-probability at all: whatever this is, it is not to be trusted
        label = token.strip(_MARKS).lower()
        if label and "yes".startswith(label):
            yes += math.exp(logprob)
        elif label and "no".startswith(label):
            no += math.exp(logprob)
    if yes + no < LEAST_MASS:
        return None
    return max(yes, FLOOR) / (max(yes, FLOOR) + max(no, FLOOR))


def _why_unreadable(body: Any) -> str:
    """What is wrong with an answer that has no probability, as far as that can be told without its text."""
    try:
        top = _top_tokens(body["choices"][0]["logprobs"])
        first = max(top, key=lambda one: one[1])[0]
    except (LookupError, TypeError, AttributeError, ValueError):
        return "the judge's answer has no log-probabilities"
    if isinstance(first, str) and _THOUGHT.match(first):
        return "the judge begins to think, and not with yes or no: take a model that can be told not to"
    return "the judge's answer has no yes and no"


def _top_tokens(logprobs: Any) -> list[tuple[Any, Any]]:
    """Tokens that could have come first, with their log-probabilities."""
    if "content" in logprobs:
        return [(entry["token"], entry["logprob"]) for entry in logprobs["content"][0]["top_logprobs"]]
    first = logprobs["top_logprobs"][0]
    return list(first.items()) if isinstance(first, Mapping) else []


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
