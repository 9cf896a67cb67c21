"""The traffic of a simulation: from a decision log, or made up from a mix. Pure.

Each request is a line of a decision log, made up or real, so that the gateway's own decider can decide about it as `whatif`
does. What a log doesn't say (an answer that broke off has no tokens) is filled with what is typical, and counted.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from switchyard.cluster.engine import Job
from switchyard.config.classifier import ModelClassifier
from switchyard.config.policy import Policy
from switchyard.config.vocabulary import HEADER_PREFIX
from switchyard.routing.recorded import Recorded, RecordedDecision

BLOCK_TOKENS = 256
"""Of simulated prefix caches: coarse, since a prompt of 100,000 tokens has many blocks."""
GUESSED_ANSWER_TOKENS = 200
ANSWERLESS = frozenset({"embeddings", "rerank", "score", "tokenize"})
"""Protocols whose answers are read off the prompt at once."""
GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(slots=True)
class Ask:
    """A request that will be made.

    Attributes:
        record: what the gateway can know of it.
        prompt_tokens: of its prompt.
        answer_tokens: of its answer, whoever gives it.
        at_s: when it comes, in seconds from the beginning.
        guessed: whether its answer's length is a guess.
    """

    record: Recorded
    prompt_tokens: int
    answer_tokens: int
    at_s: float = 0.0
    guessed: bool = False

    def job(self) -> Job:
        """For an engine: the prompts of a conversation begin alike."""
        session = self.record.session or self.record.id
        full = self.prompt_tokens // BLOCK_TOKENS
        more = (self.prompt_tokens + self.answer_tokens) // BLOCK_TOKENS
        return Job(self.prompt_tokens, self.answer_tokens, _Blocks(session, 0, full), _Blocks(session, full, more))


@dataclass(frozen=True, slots=True)
class _Blocks(Sequence[Hashable]):
    """Keys of the blocks `begin` to `end` of a conversation."""

    session: str
    begin: int
    finish: int

    def __len__(self) -> int:
        return self.finish - self.begin

    def __getitem__(self, index: Any) -> Any:
        return (self.session, self.begin + index)

    def __iter__(self) -> Iterator[Hashable]:
        return zip(itertools.repeat(self.session), range(self.begin, self.finish))


def from_log(records: Iterable[Recorded], times: float = 1.0) -> list[Ask]:
    """The requests of a log in the order of their arrival, `times` as many in a second.

    A request that never reached an engine (refused, or of unknown length) comes as well; one without tokens in its record
    has the prompt that the gateway estimated.
    """
    asks = []
    for record in records:
        prompt = record.tokens.get("input") or record.signals.get("prompt_tokens") or 1
        answer = 1 if record.protocol in ANSWERLESS else record.tokens.get("output")
        arrived_s = record.ended_s - (record.ms.get("total") or 0.0) / 1000
        asks.append(Ask(record, max(1, prompt), max(1, answer or GUESSED_ANSWER_TOKENS), arrived_s, guessed=not answer))
    asks.sort(key=lambda ask: ask.at_s)
    begin_s = asks[0].at_s if asks else 0.0
    for ask in asks:
        ask.at_s = (ask.at_s - begin_s) / times
    return asks


@dataclass(frozen=True, slots=True)
class Mix:
    """Made-up traffic.

    Attributes:
        hard_share: share (0..1) of conversations whose score says that they need the big pool; None: scores are spread
            evenly over 0..1 and the policy decides.
        prompt_tokens: new prompt tokens of each turn.
        answer_tokens: mean of an answer; lengths are spread evenly from half of it to one and a half.
        turns: of a conversation; each turn's prompt has all that was said before.
        model: that clients ask for.
    """

    hard_share: float | None
    model: str
    prompt_tokens: int = 2000
    answer_tokens: int = 200
    turns: int = 1


@dataclass
class Conversations:
    """Makes conversations of a mix, in exact quotas: of the first n, round(n hard_share) are hard.

    Args:
        mix: what they are like.
        policy: whose route is asked.
        seed: of the scores, where they are spread.
    """

    mix: Mix
    policy: Policy
    seed: int = 0
    _count: int = field(default=0, init=False)
    _turns: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        route = self.policy.routes[self.mix.model]
        block = route.classify[0] if route.classify else None
        self._by = f"model {block.pool}" if isinstance(block, ModelClassifier) else block.type if block is not None else ""
        headers = {name: "" for rule in route.rules for name in rule.when if name.startswith(HEADER_PREFIX)}
        self._signals: dict[str, Any] = {**QUIET_SIGNALS, **headers}
        self._random = Random(self.seed)

    @property
    def scored(self) -> bool:
        """Whether the route asks a classifier at all; a mix means nothing without one."""
        return bool(self._by)

    def next(self) -> list[Ask]:
        """One conversation: its turns in their order."""
        self._count += 1
        n, share = self._count, self.mix.hard_share
        p = self._random.random() if share is None else 0.0 if is_nth(n, share) else 1.0
        decision = RecordedDecision(pool="-", kind="score", p=p, classifier=self._by)
        asks, prompt = [], 0
        for turn in range(1, self.mix.turns + 1):
            prompt += self.mix.prompt_tokens
            answer = answer_length(self._turns, self.mix.answer_tokens)
            self._turns += 1
            signals = {**self._signals, "prompt_tokens": prompt, "turns": turn}
            record = Recorded(
                f"{n}-{turn}", "", "chat", self.mix.model, decision, signals,
                session=f"s{n}", session_source="x-switchyard-session-id",
            )  # fmt: skip
            asks.append(Ask(record, prompt, answer))
            prompt += answer
        return asks


def is_nth(n: int, share: float) -> bool:
    """Exact quotas: of the first n, round(n share) are."""
    return round(n * share) > round((n - 1) * share)


def answer_length(n: int, mean: int) -> int:
    """The length of the n-th answer: from half the mean to one and a half, spread as evenly as a sequence can be."""
    return max(1, round(mean * (0.5 + n * GOLDEN % 1.0)))


QUIET_SIGNALS: dict[str, Any] = {
    "protocol": "chat", "stream": True, "api_key_name": "", "max_output_tokens": 0, "tool_loop": False, "tools": 0,
    "tool_calls_in_history": 0, "tool_errors_in_a_row": 0, "repeated_call": 0, "images": False, "audio": False,
    "structured_output": False, "reasoning_effort": "", "code_share": 0.0, "language": "en", "request_class": "main",
    "client": "", "hour": 12,
}  # fmt: skip
"""The signals of a request with nothing special about it."""
