"""Faults that an emulated engine can have, and how they are written. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["kill", "hang", "slow", "oom", "rank", "loading"]
KINDS: tuple[str, ...] = get_args(Kind)

_WRITTEN = re.compile(r"(?P<name>[^=@]+)=(?P<kind>[a-z]+)(?::(?P<factor>[0-9.]+))?(?:@(?P<at>[0-9.]+))?(?:\+(?P<for>[0-9.]+))?")


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to an engine.

    Attributes:
        kind: kill: its process is gone, connections are reset and refused; hang: it takes requests and nothing moves, while
            /health is 200; slow: all takes `factor` times as long; oom: what runs fails, then it is gone; rank: a rank
            besides the head is dead, which /health doesn't show, and the next request ends it; loading: 503.
        for_s: emulated seconds until it is over; 0: until it is ended.
        factor: of slow.
    """

    kind: Kind
    for_s: float = 0.0
    factor: float = 4.0


def parse_fault(text: str) -> tuple[str, float, Fault]:
    """Read `REPLICA=KIND[:FACTOR][@SECONDS][+SECONDS]`: replica, when (emulated seconds from the start), fault.

    Raises:
        ValueError: it is none; the message says what is expected.
    """
    found = _WRITTEN.fullmatch(text)
    try:
        if found is None:
            raise ValueError
        at_s, for_s, factor = (float(found[name] or default) for name, default in (("at", 0), ("for", 0), ("factor", 4)))
        return found["name"], at_s, make_fault(found["kind"], for_s, factor)
    except ValueError as error:
        said = f": {error}" if str(error).startswith("there is") else ""
        raise ValueError(
            f"{text} is no fault{said}; expected REPLICA=KIND[:FACTOR][@WHEN_S][+HOW_LONG_S], like qwen-2=kill@600+120 or "
            f"qwen-1=slow:3; kinds: {', '.join(KINDS)}"
        ) from None


def make_fault(kind: str, for_s: float = 0.0, factor: float = 4.0) -> Fault:
    """A fault from its words.

    Raises:
        ValueError: there is no such kind, or a number makes no sense.
    """
    for known in get_args(Kind):
        if kind == known:
            if for_s < 0 or factor <= 0:
                raise ValueError("seconds must not be negative, and a factor must be above 0")
            return Fault(known, for_s, factor)
    raise ValueError(f"there is no fault {kind[:40]}; known: {', '.join(KINDS)}")
