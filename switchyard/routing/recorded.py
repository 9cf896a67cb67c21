"""A line of the decision log, and what stands in for the request that it tells of: signals, classifiers, pools.

What a record doesn't say is never made up: asking for it raises `NotRecorded`. Deciding with these is `replay.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from switchyard.config.classifier import Classifier as ClassifierSettings
from switchyard.config.classifier import EmbeddedClassifier, ModelClassifier
from switchyard.config.pool import Pool as PoolSettings
from switchyard.config.vocabulary import CAPABILITIES, HEADER_PREFIX, PROTOCOLS, SIGNALS, Kind
from switchyard.routing.classify.base import scored
from switchyard.routing.decision import Outcome
from switchyard.routing.signals import Signals

ALWAYS_RECORDED = (
    "prompt_tokens", "max_output_tokens", "turns", "tool_loop", "tools", "tool_calls_in_history", "tool_errors_in_a_row",
    "repeated_call", "images", "audio", "structured_output", "reasoning_effort", "code_share", "language", "request_class",
    "client", "hour",
)  # fmt: skip
"""Signals that a record should have whether or not they were read for the decision: without them another policy can't be
tried on it. Protocol, stream and the key's name stand in the record anyway."""

_TYPES: Mapping[Kind, tuple[type, ...]] = {"bool": (bool,), "int": (int,), "float": (int, float), "text": (str,)}
_HOLDS = re.compile(r"(?:^|[ ;])(\S+) holds (\d+) tokens")  # how routing.policy says that a context is too short
_STORED = "is stored there"  # how the decider says that only one replica can answer


class BadRecord(Exception):
    """A line that is no decision record; the message says why."""


class NotRecorded(Exception):
    """The log can't tell; the message says what is missing."""


class RecordedDecision(msgspec.Struct):
    """`Decision.as_record`, as far as it is read here; without a pool when the request never got so far."""

    pool: str = ""
    kind: str = ""
    reasons: tuple[str, ...] = ()
    p: float | None = None
    raw_p: float | None = None
    classifier: str = ""
    degraded: bool = False


class Recorded(msgspec.Struct):
    """`Record.as_line`, as far as it is read here."""

    id: str
    time: str
    protocol: str
    model: str
    decision: RecordedDecision
    signals: dict[str, Any]
    counted: dict[str, int] = {}
    route: str = ""
    case: str = ""
    prompt: str | None = None
    stream: bool = False
    key: str = ""
    session: str = ""
    session_source: str = ""
    pool: str = ""
    replica: str = ""
    outcome: str = ""
    error: str = ""
    escalation: str = ""
    ms: dict[str, float | None] = {}
    tokens: dict[str, int | None] = {}
    ended_s: float = 0.0

    @property
    def decided_s(self) -> float:
        """When it was decided, in seconds of the epoch: lines are written when a request has ended."""
        return self.ended_s - ((self.ms.get("total") or 0.0) - (self.ms.get("decide") or 0.0)) / 1000

    @property
    def service_ms(self) -> float | None:
        """How long it kept a place on a replica; None when it never had one."""
        queue, total = self.ms.get("queue"), self.ms.get("total")
        if queue is None or total is None or not self.pool:
            return None
        return max(0.0, total - queue - (self.ms.get("decide") or 0.0))

    @property
    def contexts(self) -> dict[str, int]:
        """Context lengths of pools that were too short for it, in tokens, where the reason names them."""
        reason = self.decision.reasons[0] if self.decision.kind == "only" and self.decision.reasons else ""
        return {name: int(tokens) for name, tokens in _HOLDS.findall(reason)}

    @property
    def follows_stored(self) -> bool:
        """Whether it had to go where the response that it follows is stored."""
        return self.decision.kind == "held" and any(r.endswith(_STORED) for r in self.decision.reasons[:1])


_DECODER = msgspec.json.Decoder(Recorded)


def read_line(line: bytes) -> Recorded:
    """One line of a decision log.

    Raises:
        BadRecord: it is something else.
    """
    try:
        record = _DECODER.decode(line)
        record.ended_s = datetime.fromisoformat(record.time).timestamp()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, OverflowError) as error:
        raise BadRecord(str(error)) from None
    told = {"protocol": record.protocol, "stream": record.stream, "api_key_name": record.key, **record.signals}
    # A newer gateway may have signals that this one doesn't know.
    record.signals = {n: v for n, v in told.items() if n in SIGNALS or n.startswith(HEADER_PREFIX)}
    for name, value in record.signals.items():
        kind = SIGNALS[name].kind if name in SIGNALS else "text"
        if not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "bool"):
            raise BadRecord(f"the signal {name} is {str(value)[:40]}, which is no {kind}")
    return record


class _RecordedBody:
    """Of a body, only whether it follows a stored response is known."""

    def __init__(self, follows_stored: bool) -> None:
        self._follows_stored = follows_stored

    def text(self, name: str) -> str | None:
        return "recorded" if name == "previous_response_id" and self._follows_stored else None


class _RecordedView:
    """Of the headers, only the wish for a pool is known, since it shows in the decision."""

    def __init__(self, record: Recorded) -> None:
        self.headers = {"x-switchyard-pool": record.decision.pool} if record.decision.kind == "asked" else {}
        self.body = _RecordedBody(record.follows_stored)


class RecordedSignals:
    """The signals of a record, by name as `Signals` has them; asking for another raises `NotRecorded`."""

    def __init__(self, record: Recorded) -> None:
        self.__dict__.update(record.signals)
        self.counted = record.counted
        self.view = _RecordedView(record)

    def get(self, name: str) -> Any:
        """See `Signals.get`; a header is known where the record has it under the name a policy uses."""
        if name in self.__dict__:
            return self.__dict__[name]
        raise NotRecorded(f"needs {name}; headers are not recorded" if name.startswith(HEADER_PREFIX) else _lacks(name))

    def prompt_tokens_for(self, pool: str) -> int:
        """See `Signals.prompt_tokens_for`."""
        tokens: int = self.counted.get(pool, self.prompt_tokens)
        return tokens

    def __getattr__(self, name: str) -> Any:
        raise NotRecorded(_lacks(name))


def _lacks(name: str) -> str:
    return f"needs the signal {name}, which its record lacks"


@dataclass(slots=True)
class RecordedPool:
    """A pool of the new policy without its engines; what only they know is taken as no hindrance.

    Attributes:
        context_tokens: from the policy, else as far as it is known from elsewhere.
        queued: whether it had a queue, 0 or 1, as far as the log tells.
    """

    name: str
    settings: PoolSettings
    context_tokens: int | None = None
    queued: int = 0

    @property
    def refuses(self) -> tuple[str, ...]:
        """See `decision.PoolView`."""
        return tuple(need for need in CAPABILITIES if need not in self.settings.accepts)

    @property
    def replicas(self) -> Sequence[Any]:
        """Those of the policy; each has its label."""
        return self.settings.listed

    @property
    def declares(self) -> bool:
        """See `decision.PoolView`."""
        return "accepts" in self.settings.model_fields_set

    @property
    def clamps(self) -> bool:
        """See `decision.PoolView`."""
        return self.settings.max_output_tokens == "clamp"

    def speaks(self, protocol: str) -> bool:
        """See `decision.PoolView`."""
        return protocol in (PROTOCOLS if self.settings.speaks == "auto" else self.settings.speaks)

    @property
    def places(self) -> int:
        """Requests that it works on at the same time; replicas that are found elsewhere count as one."""
        return max(1, len(self.settings.listed)) * self.settings.limits.in_flight


class RecordedClassifier:
    """Says what a classifier of the same type said about the request at hand, under the new policy's scale and bias."""

    def __init__(self, settings: ClassifierSettings, current: Callable[[], Recorded]) -> None:
        self._by = f"model {settings.pool}" if isinstance(settings, ModelClassifier) else settings.type
        self._bias, self._scale = settings.bias, settings.scale
        self._can_fail = not isinstance(settings, EmbeddedClassifier)  # a record says that one failed, not which
        self._current = current

    async def score(self, signals: Signals) -> Outcome:
        """The recorded score or abstention; raises `NotRecorded` where it was not asked."""
        old = self._current().decision
        if old.p is not None and old.classifier == self._by:
            return Outcome(self._by, old.p) if old.raw_p is None else scored(self._by, old.raw_p, self._bias, self._scale, "")
        for reason in old.reasons:
            by, colon, why = reason.removeprefix("otherwise: ").partition(": ")
            if colon and by == self._by:
                return Outcome(self._by, why=why, failed=old.degraded and self._can_fail)
        raise NotRecorded(f"needs a score by {self._by}, which was not asked")
