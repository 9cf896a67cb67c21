"""State in Redis, shared by gateways: use of limits, sessions, places of responses, answers of classifiers, the fleet's news.

What a request needs is one round trip; what it leaves behind is written when its answer is already on the way. Without
Redis each process goes on with what it knows: `link.py` sees to it that nobody waits, here the local ledger takes over.
What was to be written meanwhile is kept and written when Redis is back. Each key has the prefix and a time to live.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from hashlib import blake2b
from typing import get_args

from switchyard.state.base import Claim, Known, Limit, Refusal
from switchyard.state.link import Answers, Command, Link
from switchyard.state.memory import Ledger
from switchyard.state.scripts import CLAIM, LEASE_S, RENEW, SETTLE, TAKE_DOWN, digest

PLACE_TTL_S = 86_400
FLEET_TTL_S = 86_400
RENEW_S = LEASE_S / 3
MOST_UNSENT = 50_000  # writes that wait for a connection; the oldest go first
MOST_WRITES = 256  # in one batch
_CLAIM, _SETTLE, _RENEW, _TAKE_DOWN = map(digest, (CLAIM, SETTLE, RENEW, TAKE_DOWN))
_LIMITS: dict[object, Limit] = {name: name for name in get_args(Limit)}
_PER_MINUTE: tuple[Limit, ...] = ("requests_per_minute", "tokens_per_minute")

_Fields = dict[str, tuple[str, int]]
"""Name to value and time to live in seconds."""


class RedisStore:
    """See `base.Store`; also keeps classifiers' answers and what gateways tell each other.

    Args:
        url: redis:// or rediss://.
        prefix: begins each key: gateways that share have the same.
        budget_s: longest wait for Redis.
        session_ttl_s: silence after which a session is forgotten.
        clock: seconds, rising.
    """

    shared = True

    def __init__(self, url: str, prefix: str, budget_s: float, session_ttl_s: float, clock: Callable[[], float]) -> None:
        self._prefix = prefix
        self._session_ttl_s = max(1, math.ceil(session_ttl_s))
        self._clock = clock
        self._ledger = Ledger()
        self._running: set[Claim] = set()
        self._refused: dict[tuple[str, str], tuple[float, int]] = {}  # key and limit: until when, and for how many tokens
        self._unsent: dict[str, _Fields] = {}  # by key and field; the field of a plain text is empty
        self._sending: dict[str, _Fields] = {}
        self._unsettled: deque[tuple[Claim, int]] = deque(maxlen=MOST_UNSENT)  # and what is to be added to their tokens
        self._settling: list[tuple[Claim, int]] = []
        self.link = Link(url, budget_s, self._take_writes, self._note_writes)

    # ---- requests (base.Store) ----

    async def arrive(self, claim: Claim | None, session: str, response_id: str | None) -> Known:
        """See `base.Store`."""
        commands: list[Command] = []
        if claim is not None:
            commands.append(self._claim_command(claim))
        key = self._key("s", session)
        if session:
            commands += [("HGETALL", key), ("EXPIRE", key, self._session_ttl_s)]
        if response_id:
            commands.append(("GET", self._key("r", response_id)))
        if not commands:
            return Known()
        try:
            answers = await self.link.ask(commands, partial(self._note_late, claim))
        except asyncio.CancelledError:
            if claim is not None:
                self._withdraw(claim)
            raise
        refusal = self._judge(claim, None if answers is None else answers[0])
        if answers is None and refusal is not None and claim is not None:
            self._withdraw(claim)
        if answers is None or refusal is not None:
            return Known(refusal)
        fields = _pairs(answers[0 if claim is None else 1]) if session else {}
        for written in (self._sending, self._unsent):  # what this process knows better
            fields |= {name: value for name, (value, _) in written.get(key, {}).items()}
        place = answers[-1] if response_id and isinstance(answers[-1], str) else None
        return Known(None, fields if session else None, place)

    def settle(self, claim: Claim, used_tokens: int | None) -> None:
        """See `base.Store`."""
        self._running.discard(claim)
        self._ledger.settle(claim, claim.second, used_tokens, self._clock())
        claim.ended, claim.used_tokens = True, used_tokens
        self._settle_there(claim)

    def remember(self, session: str, name: str, value: str) -> None:
        """See `base.Store`."""
        self._write(self._key("s", session), name, value, self._session_ttl_s)

    def remember_place(self, response_id: str, place: str) -> None:
        """See `base.Store`."""
        self._write(self._key("r", response_id), "", place, PLACE_TTL_S)

    def _claim_command(self, claim: Claim) -> Command:
        limits = claim.limits
        most = (limits.requests_per_minute, limits.tokens_per_minute, limits.concurrent_requests)
        return (
            "EVALSHA", _CLAIM, 2, *self._limit_keys(claim), *(-1 if n is None else n for n in most),
            claim.tokens, claim.id, LEASE_S * 1000,
        )  # fmt: skip

    def _judge(self, claim: Claim | None, answer: object) -> Refusal | None:
        """What came of a claim; decided here when Redis did not say."""
        if claim is None:
            return None
        now_s = self._clock()
        claim.second = math.floor(now_s)
        word, number = answer if isinstance(answer, list) else (None, 0)
        if (limit := _LIMITS.get(word)) is not None:
            if number > 0:
                self._refused[(claim.api_key, limit)] = (now_s + number, claim.tokens)
            return Refusal(limit, None if number < 0 else number)
        if word == "":
            claim.shared_second = number
            self._ledger.take(claim, now_s)
        elif (refusal := self._refused_before(claim, now_s) or self._ledger.claim(claim, now_s)) is not None:
            return refusal
        self._running.add(claim)
        return None

    def _refused_before(self, claim: Claim, now_s: float) -> Refusal | None:
        """Redis doesn't answer, but it has said already that the key has used up what it may."""
        for limit in _PER_MINUTE:
            until_s, tokens = self._refused.get((claim.api_key, limit), (0.0, 0))
            fits = getattr(claim.limits, limit) is None or (limit == "tokens_per_minute" and claim.tokens < tokens)
            if now_s < until_s and not fits:
                return Refusal(limit, math.ceil(until_s - now_s))
        return None

    def _withdraw(self, claim: Claim) -> None:
        """Nobody wants it any more; should Redis grant it all the same, it is given back at once."""
        claim.ended, claim.used_tokens = True, 0
        self._settle_there(claim)

    def _note_late(self, claim: Claim | None, answers: Answers) -> None:
        """A claim was judged here, and now Redis has granted it, too."""
        if claim is not None and isinstance(answers[0], list) and answers[0][0] == "":
            claim.shared_second = answers[0][1]
            if claim.ended:
                self._settle_there(claim)

    def _settle_there(self, claim: Claim) -> None:
        """Its place is given back also when Redis did not grant it: it may have done so late, or was told of it since."""
        more = 0
        if claim.shared_second is not None and claim.used_tokens is not None and claim.limits.tokens_per_minute is not None:
            more = claim.used_tokens - claim.tokens
        if more or claim.limits.concurrent_requests is not None:
            self._unsettled.append((claim, more))
            self.link.nudge()

    def _renewals(self) -> list[Command]:
        """Running requests, so that they don't count as lost; also those that were granted while Redis was gone."""
        by_key: dict[str, list[str]] = {}
        for claim in self._running:
            if claim.limits.concurrent_requests is not None:
                by_key.setdefault(self._limit_keys(claim)[1], []).append(claim.id)
        return [("EVALSHA", _RENEW, 1, key, LEASE_S * 1000, *ids) for key, ids in by_key.items()]

    # ---- classifiers' answers ----

    async def recall(self, key: bytes) -> str | None:
        """An answer that some gateway has had."""
        answers = await self.link.ask([("GET", f"{self._prefix}q:{key.hex()}")])
        return answers[0] if answers is not None and isinstance(answers[0], str) else None

    def keep(self, key: bytes, answer: str, ttl_s: float) -> None:
        """Keep an answer for all."""
        self._write(f"{self._prefix}q:{key.hex()}", "", answer, max(1, math.ceil(ttl_s)))

    # ---- what gateways tell each other ----

    def post(self, board: str, name: str, value: str) -> None:
        """Put a notice on a board, in place of the one of that name; all who read the board see it soon."""
        self._write(self._board(board), name, value, FLEET_TTL_S)

    def take_down(self, board: str, name: str, value: str) -> None:
        """Remove a notice, unless another one has taken its place."""
        self.link.send([("EVALSHA", _TAKE_DOWN, 1, self._board(board), name, value)])

    async def read(self, boards: Iterable[str]) -> dict[str, dict[str, str]] | None:
        """All notices on some boards; None while Redis doesn't answer."""
        keys = {board: self._board(board) for board in boards}
        commands: list[Command] = []
        for key in keys.values():
            commands += [("HGETALL", key), ("EXPIRE", key, FLEET_TTL_S)]
        answers = await self.link.ask(commands)
        if answers is None or any(isinstance(answer, Exception) for answer in answers):
            return None
        return {board: _pairs(answers[2 * i]) for i, board in enumerate(keys)}

    # ---- life ----

    async def run(self) -> None:
        """Keep the connection and what needs renewing. Runs until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.link.run())
            while True:
                await asyncio.sleep(RENEW_S)
                self.link.send(self._renewals())

    async def flush(self) -> None:
        """Send what is left, within the budget."""
        await self.link.ask([("PING",)])

    # ---- writing ----

    def _write(self, key: str, name: str, value: str, ttl_s: int) -> None:
        self._unsent.setdefault(key, {})[name] = (value, ttl_s)
        if len(self._unsent) > MOST_UNSENT:
            del self._unsent[next(iter(self._unsent))]
        self.link.nudge()

    def _take_writes(self) -> list[Command]:
        commands: list[Command] = []
        while self._unsettled and len(self._settling) < MOST_WRITES:
            claim, more = self._unsettled.popleft()
            self._settling.append((claim, more))
            commands.append(("EVALSHA", _SETTLE, 2, *self._limit_keys(claim), claim.id, more, claim.shared_second or 0))
        while self._unsent and len(self._sending) < MOST_WRITES:
            key = next(iter(self._unsent))
            fields = self._sending[key] = self._unsent.pop(key)
            for name, (value, ttl_s) in fields.items():
                if not name:
                    commands.append(("SET", key, value, "EX", ttl_s))
                else:
                    commands += [("HSET", key, name, value), ("EXPIRE", key, ttl_s)]
        return commands

    def _note_writes(self, arrived: bool) -> None:
        sent, self._sending = self._sending, {}
        settled, self._settling = self._settling, []
        if not arrived:  # first in the line again, unless there is something newer
            # Places must be given back. Tokens may have been corrected already: not twice.
            self._unsettled.extend((claim, 0) for claim, _ in settled if claim.limits.concurrent_requests is not None)
            again = {key: {**fields, **self._unsent.pop(key, {})} for key, fields in sent.items()}
            self._unsent = {**again, **self._unsent}
        if self._unsent or self._unsettled:
            self.link.nudge()

    # ---- keys ----

    def _key(self, kind: str, name: str) -> str:
        """Names come from clients and engines: they are hashed."""
        return f"{self._prefix}{kind}:{blake2b(name.encode(errors='replace'), digest_size=16).hexdigest()}"

    def _limit_keys(self, claim: Claim) -> tuple[str, str]:
        tag = claim.api_key or "all"
        return f"{self._prefix}l:{{{tag}}}", f"{self._prefix}l:{{{tag}}}:running"

    def _board(self, board: str) -> str:
        return f"{self._prefix}b:{board}"


def _pairs(answer: object) -> dict[str, str]:
    """The fields of a hash."""
    return dict(zip(answer[::2], answer[1::2], strict=True)) if isinstance(answer, list) else {}
