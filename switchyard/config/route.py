"""A block under `routes`: a model name that clients ask for, and how its requests are decided."""

from __future__ import annotations

import re
from datetime import date
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from switchyard.config.block import Block, Count, Listed
from switchyard.config.classifier import Classifier
from switchyard.config.rule import Rule


class Threshold(Block):
    """One step from the score to a pool."""

    p_at_least: Annotated[float, Field(ge=0, le=1)] | None = None
    """Lowest score for this pool; left out: always."""
    use: str
    """Pool to use."""


class Check(Block):
    """What is looked at before an answer is released."""

    tool_calls: Literal["pass", "escalate"] = "pass"
    """escalate: a small pool's tool call must parse, name a given tool and fit its schema, else the next larger pool is
    asked."""


class Share(Block):
    """Keep a pool's share of the scored decisions."""

    pool: str
    """The pool whose share is held."""
    at_most: Annotated[float, Field(ge=0, le=1)] | None = None
    """Never more than this share; only tightens."""
    hold: Annotated[float, Field(ge=0, le=1)] | None = None
    """This share, from both sides."""

    @model_validator(mode="after")
    def _one_target(self) -> Share:
        if (self.at_most is None) == (self.hold is None):
            raise PydanticCustomError("share", "exactly one of at_most and hold is expected")
        return self


class Shadow(Block):
    """Ask the big pool once more, after the client has its answer, to see how often both say the same."""

    share: Annotated[float, Field(gt=0, le=1)]
    """Share of the small pools' answers that are tried."""
    when_idle: Literal[True] = True
    """Only while the big pool has nothing queued or in flight; it ends when somebody comes. There is no other way."""
    concurrency: Annotated[int, Field(ge=1, le=64)] = 1
    """At most so many at the same time; others are dropped."""


class Pressure(Block):
    """Let borderline requests move to a neighbouring pool while their own queues."""

    band: Annotated[float, Field(gt=0, le=0.5)] = 0.05
    """Scores so near to a threshold are borderline."""
    at_most: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Largest share of the scored decisions that may move."""


def _hash(value: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{12}", value):
        raise PydanticCustomError("hash", "12 hexadecimal digits are expected, as `eval` and `calibrate` write them")
    return value


def _day(value: str) -> str:
    try:
        return date.fromisoformat(value).isoformat()
    except ValueError:
        raise PydanticCustomError("day", 'a quoted day is expected, like "2026-11-30"') from None


def _ends(value: tuple[float, ...]) -> tuple[float, ...]:
    if len(value) != 2 or value[0] > value[1]:
        raise PydanticCustomError("ends", "two numbers are expected, the lower one first")
    return value


Hash = Annotated[str, AfterValidator(_hash)]
Points = Annotated[float, Field(ge=-100, le=100)]


class Fingerprint(Block):
    """What a verdict was about, so that `switchyard check` can say when it holds no longer."""

    pools: Hash
    """Models, contexts and abilities of the route's pools."""
    classifier: Hash
    """Its classifiers, with the content of weights and the judge's model and question."""
    choosing: Hash
    """Rules, thresholds, share, pressure, check, decide_per, otherwise."""


class Evaluated(Block):
    """The last verdict on a route, written by `eval --write-verdict` and `calibrate --write`; it changes nothing."""

    by: Literal["eval", "calibrate"]
    """eval: the routed agent was run. calibrate: a forecast from graded requests."""
    suite: str
    """What was tried."""
    date: Annotated[str, AfterValidator(_day)]
    """When, as a quoted day."""
    cases: Count
    """Cases that were compared."""
    margin: Points
    """Largest loss that was allowed, in percentage points."""
    interval: Annotated[Listed[Points], AfterValidator(_ends)]
    """90 % interval of routed minus big, in percentage points."""
    verdict: Literal["non-inferior", "inferior", "inconclusive"]
    """What it came to."""
    hash: Fingerprint
    """What it was about."""


class Route(Block):
    """A model name that clients ask for, and how its requests are decided."""

    use: str | None = None
    """Always this pool, without any decision."""
    aliases: Listed[Annotated[str, Field(min_length=1, max_length=128)]] = ()
    """Other names that mean this route; * stands for any text, like claude-*."""
    decide_per: Literal["request", "user_turn", "session"] = "user_turn"
    """When a new decision is made. No score splits a tool loop."""
    rules: Listed[Rule] = ()
    """Facts that settle it without a model; the first match wins."""
    classify: Listed[Classifier] = ()
    """Asked in order until one does not abstain. The score p is the probability that the small pool's answer is as good
    as the big one's."""
    choose: Listed[Threshold] = ()
    """From the score to a pool, from small to big; the first that holds."""
    check: Check = Check()
    """What is looked at before an answer is released."""
    share: Share | None = None
    """Hold a pool's share of the scored decisions."""
    pressure: Pressure | None = None
    """Move borderline requests away from a pool that queues; left out: never."""
    shadow: Shadow | None = None
    """Compare a sample of the small pools' answers with the big pool's while that is idle; left out: never."""
    otherwise: str | None = None
    """Pool for when no classifier could say; left out: the last pool of choose."""
    evaluated: Evaluated | None = None
    """The last verdict on this route; written by commands."""

    @model_validator(mode="after")
    def _decidable(self) -> Route:
        decided = bool(self.rules or self.classify or self.choose or self.otherwise or self.share)
        if self.use is not None and decided:
            raise PydanticCustomError("route", "use means always: leave out rules, classify, choose, share and otherwise")
        if self.use is None and not (self.choose or self.otherwise):
            raise PydanticCustomError("route", "say where requests go: use, or choose, or otherwise")
        if self.choose and self.otherwise is None and self.choose[-1].p_at_least is not None:
            raise PydanticCustomError(
                "route", "the last entry of choose still has p_at_least: add {use: POOL} after it, or otherwise: POOL"
            )
        return self

    @property
    def default_pool(self) -> str:
        """Pool for a request on which no classifier had an opinion."""
        return self.use or self.otherwise or self.choose[-1].use

    @property
    def pools(self) -> tuple[str, ...]:
        """Every pool it may use, from small to big as `choose` says, without repeats."""
        named = [t.use for t in self.choose] + [r.use for r in self.rules] + [self.default_pool]
        return tuple(dict.fromkeys(named))
