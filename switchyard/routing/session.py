"""Which conversation does a request belong to, and what was decided for it: identity, key and pins.

Ids come from clients. They are bounded, scoped to the API key, hashed before they are kept or shown, and never give
anybody a right.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec.structs import replace

from switchyard.routing.signals import Signals

MAX_ID_CHARACTERS = 256
MAX_PINS = 100_000  # about 30 MB
_SANE = re.compile(r"[\x21-\x7e]{1,256}")
_SUFFIX = re.compile(r"_session_([0-9A-Za-z-]{8,64})$")
_HEADERS = (
    "x-switchyard-session-id", "x-claude-code-session-id", "x-session-id", "x-session-affinity", "x-opencode-session",
    "session-id", "session_id",
)  # fmt: skip
_ALL_HEADERS = frozenset({*_HEADERS, "x-codex-turn-metadata", "x-client-session-id"})


class Session(msgspec.Struct, frozen=True):
    """The conversation that a request belongs to.

    Attributes:
        key: 16 hex digits; the same for all turns of the conversation, agent and request class.
        source: where the id came from: a header or field, or `fingerprint`, which is only a hint.
    """

    key: str
    source: str

    @property
    def certain(self) -> bool:
        """Whether the client named the session itself."""
        return self.source != "fingerprint"


def identify(signals: Signals, session_of: Callable[[str, str], str] = lambda response_id, key_name: "") -> Session:
    """Find the session, by the order of names that clients use; else from how the conversation begins.

    Args:
        signals: of the request.
        session_of: key of the session that a stored response belongs to, by its id and the API key; empty where it is not
            known.
    """
    view = signals.view
    source, id_ = _named_id(signals)
    if source == "previous_response_id" and (key := session_of(id_, view.key_name)):
        return Session(key, source)
    agent = _agent(view.headers)
    if id_:
        material = id_.encode()
    else:
        source = "fingerprint"
        who = (view.address if not view.key_name else "", view.body.text("model") or "", *view.tool_names, "")
        material = "\0".join(who).encode(errors="replace") + signals.opening
    scope = "\0".join(("", view.key_name, agent, signals.request_class))
    return Session(blake2b(material + scope.encode(errors="replace"), digest_size=8).hexdigest(), source)


def _agent(headers: Mapping[str, str]) -> str:
    """Which of a session's agents asks; empty for the main one. Codex names a sub-agent's kind, and its thread apart."""
    if (agent := headers.get("x-claude-code-agent-id", "")[:MAX_ID_CHARACTERS]) or "x-openai-subagent" not in headers:
        return agent
    return f"{headers['x-openai-subagent'][:64]}\0{headers.get('thread-id', '')[:MAX_ID_CHARACTERS]}"


def _named_id(signals: Signals) -> tuple[str, str]:
    """The first sane id and its source; empty when there is none."""
    headers, body = signals.view.headers, signals.view.body
    if not _ALL_HEADERS.isdisjoint(headers):
        for name in _HEADERS:
            if (found := _sane(headers.get(name))) is not None:
                return name, found
        turn = _parsed(headers.get("x-codex-turn-metadata"))
        if (found := _sane(turn.get("session_id"))) is not None:
            return "x-codex-turn-metadata", found
        if (found := _sane(headers.get("x-client-session-id"))) is not None:
            return "x-client-session-id", found
    metadata = body.value("metadata") if "metadata" in body.fields else None
    user = metadata.get("user_id") if isinstance(metadata, dict) else None
    if isinstance(user, str) and len(user) <= 4 * MAX_ID_CHARACTERS:
        found = _sane(_parsed(user).get("session_id"))
        if found is None and (suffix := _SUFFIX.search(user)):
            found = suffix[1]
        if found is not None:
            return "metadata.user_id", found
    for name in ("prompt_cache_key", "conversation", "previous_response_id"):
        if name in body.fields:
            value = body.value(name)
            value = value.get("id") if isinstance(value, dict) else value
            if (found := _sane(value)) is not None:
                return name, found
    return "", ""


def _sane(value: Any) -> str | None:
    return value if isinstance(value, str) and _SANE.fullmatch(value) else None


def _parsed(text: str | None) -> Mapping[str, Any]:
    if not text or not text.startswith("{") or len(text) > 16_384:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


class Pin(msgspec.Struct):
    """What a session had last.

    Attributes:
        pool: the pool of its latest decision of its own; empty before there was one.
        turn: human turns in the conversation then: the same number is the same tool loop.
        until_turn: first human turn at which `held_pool` no longer counts.
        held_pool: a pool that a rule holds it on for some turns.
        loop_pool: where the tool loop of `loop_turn` runs, when that is no decision of the session's own: no classifier
            could be asked, a rule that holds for nothing else matched, or a pool out of reach was stood in for.
        loop_turn: human turns then.
        low_turn: fewest human turns seen since, when that is less than `turn`: the history was compacted. 0 before.
        seen_s: when it was last used.
    """

    pool: str
    turn: int
    until_turn: int = 0
    held_pool: str = ""
    loop_pool: str = ""
    loop_turn: int = 0
    low_turn: int = 0
    seen_s: float = 0.0

    def turns_left(self, turn: int) -> int:
        """For how many turns, this one included, a rule still holds the session; after a compaction, counted from there."""
        since = self.turn if turn >= self.turn else self.low_turn or turn
        return max(0, self.until_turn - self.turn - (turn - since)) if self.held_pool else 0

    def after(self, turn: int, tool_loop: bool) -> Pin:
        """What is to be remembered once it has held a request: that the history has shrunk, that a loop begins anew."""
        low_turn = turn if turn < (self.low_turn or self.turn) else self.low_turn
        loop_pool = "" if turn == self.loop_turn and not tool_loop else self.loop_pool
        if (low_turn, loop_pool) == (self.low_turn, self.loop_pool):
            return self
        return replace(self, low_turn=low_turn, loop_pool=loop_pool)

    def is_same_turn(self, turn: int) -> bool:
        """Whether the human has said nothing new: as many turns as before, or as many as a compaction has left."""
        return turn <= self.turn and (self.low_turn == 0 or turn <= self.low_turn or turn == self.turn)

    def as_text(self) -> str:
        """For other gateways; names have no tabs."""
        return (
            f"{self.pool}\t{self.turn}\t{self.until_turn}\t{self.held_pool}"
            f"\t{self.loop_pool}\t{self.loop_turn}\t{self.low_turn}"
        )

    @staticmethod
    def from_text(text: str) -> Pin | None:
        """What another gateway wrote; None when it makes no sense here."""
        parts = text.split("\t")
        if len(parts) != 7 or not all(parts[n].isdecimal() and len(parts[n]) < 10 for n in (1, 2, 5, 6)):
            return None
        return Pin(parts[0], int(parts[1]), int(parts[2]), parts[3], parts[4], int(parts[5]), int(parts[6]))


class Pins:
    """The pins of all sessions in this process: bounded, forgotten after a silence.

    Args:
        ttl_s: silence after which a session is forgotten.
        clock: seconds, rising.
        limit: most sessions kept; the longest unused goes first.
        tell: told of each new pin, with route and session key; for other gateways.
    """

    def __init__(
        self,
        ttl_s: float,
        clock: Callable[[], float],
        limit: int = MAX_PINS,
        tell: Callable[[str, str, Pin], None] = lambda route, key, pin: None,
    ) -> None:
        self.ttl_s = ttl_s
        self._clock = clock
        self._limit = limit
        self._tell = tell
        self._pins: OrderedDict[tuple[str, str], Pin] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pins)

    def get(self, route: str, session: Session, use: bool = True) -> Pin | None:
        """The pin of a session on a route, if it is still remembered; without `use` it is only looked at, and ages on."""
        pin = self._pins.get((route, session.key))
        if pin is None:
            return None
        now_s = self._clock()
        if now_s - pin.seen_s > self.ttl_s:
            return None
        if use:
            pin.seen_s = now_s  # it is silence that makes a session old
            self._pins.move_to_end((route, session.key))
        return pin

    def put(self, route: str, session: Session, pin: Pin) -> None:
        """Remember; forgets the oldest when full."""
        self.learn(route, session, pin)
        self._tell(route, session.key, pin)

    def learn(self, route: str, session: Session, pin: Pin) -> None:
        """Remember what another gateway has decided."""
        key = (route, session.key)
        pin.seen_s = self._clock()
        self._pins[key] = pin
        self._pins.move_to_end(key)
        while len(self._pins) > self._limit:
            self._pins.popitem(last=False)


def held_pool(pin: Pin | None, decide_per: str, turn: int, tool_loop: bool, certain: bool) -> tuple[str, str] | None:
    """The pool that a session keeps for this request, and why; None when a new decision is due.

    No score splits a tool loop. Without an id of its own a session may be somebody else's with the same beginning: then
    only the tool loop is held.
    """
    if pin is None:
        return None
    if (left := pin.turns_left(turn)) > 0:
        return pin.held_pool, f"a rule holds the session, for {left} more turn{'s' if left > 1 else ''} with this one"
    if tool_loop and pin.loop_pool and turn == pin.loop_turn:
        return pin.loop_pool, "the tool loop goes on where it began"
    if not pin.pool:
        return None
    if tool_loop and turn <= pin.turn:
        return pin.pool, "the tool loop goes on where it began"
    if not certain or decide_per == "request":
        return None
    if decide_per == "session":
        return pin.pool, "the session was decided before"
    return (pin.pool, "the same turn as before") if pin.is_same_turn(turn) else None
