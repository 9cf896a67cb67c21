"""What gateways on one Redis tell each other: replicas that were ejected, actions by hand, and a worker's new policy.

Notices stand on boards in the store, one for each thing, and say how it is, not what happened. So who comes late, or was
cut off, reads the same as everybody else. Each gateway still judges for itself: a replica that another one ejected is
tried by this one's own probe, and comes back when that works.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from hashlib import sha256
from typing import Any, Protocol

import msgspec

from switchyard.config.problem import PolicyError
from switchyard.errors import GatewayError
from switchyard.pools.actions import BY_HAND, act, find_replica
from switchyard.pools.pool import Pool
from switchyard.pools.replica import Replica

POLL_S = 0.5
FRESH_S = 60.0
"""An ejection by hand that is older than this means nothing to a gateway that has just started."""
OLD_S = 86_400.0
"""Notices of that age are taken down, or addresses that come and go would fill the board. Who still drains says so again."""
RENEW_S = 3_600.0
"""A policy that was given by hand is put up again so often: what nobody reads is forgotten after a day."""
FLEET = "fleet"
FILE = "file"

log = logging.getLogger("switchyard.fleet")


class Boards(Protocol):
    """Where notices stand; `state.redis` has the real one."""

    def post(self, board: str, name: str, value: str) -> None:
        """Put up a notice, in place of the one of that name."""

    def take_down(self, board: str, name: str, value: str) -> None:
        """Remove a notice, unless another one has taken its place."""

    async def read(self, boards: Iterable[str]) -> dict[str, dict[str, str]] | None:
        """All notices on some boards; None while they can't be read."""


class _Age(msgspec.Struct):
    at_s: float


class Fleet:
    """A gateway's voice and ear.

    Args:
        boards: where notices stand.
        me: name of this process, unlike any other's.
        crew: name that the workers of one `serve` have in common; empty for a gateway without workers.
        pools: those of the policy in force.
        replace_policy: puts another policy in force: the bytes, or the file read again.
    """

    def __init__(
        self,
        boards: Boards,
        me: str,
        crew: str,
        pools: Callable[[], Mapping[str, Pool]],
        replace_policy: Callable[[bytes | None], Awaitable[object]],
    ) -> None:
        self._boards = boards
        self._me = me
        self._crew = f"crew:{crew}" if crew else ""
        self._pools = pools
        self._replace_policy = replace_policy
        self._seen: dict[tuple[str, str], str] = {}
        self._is_new = True  # has not read the boards yet
        self._hearing = False  # what is done now was told by others: they need not be told
        self._given: tuple[str, bytes] | None = None  # version and bytes of the policy in force; None: the file's
        self._given_s = 0.0  # when those bytes were put up, or read, last

    # ---- telling ----

    def tell_health(self, replica: Replica, why: str) -> None:
        """A replica was ejected for a reason, or, without one, readmitted."""
        until_s = time.time() + max(0.0, replica.evidence.back_at_s - asyncio.get_running_loop().time())
        self._tell(FLEET, f"health:{replica.pool}/{replica.label}", why=why, until_s=until_s)

    def tell_action(self, pool: str, label: str, action: str) -> None:
        """Somebody has acted on a replica by hand, and was let."""
        self._tell(FLEET, f"hand:{pool}/{label}", pool=pool, replica=label, action=action)

    def tell_policy(self, raw: bytes | None) -> None:
        """A worker has another policy: these bytes, or its file's."""
        if not self._crew:
            return
        self._given = None if raw is None else (sha256(raw).hexdigest(), raw)
        self._put_up_policy()
        self._tell(self._crew, "policy", version=FILE if self._given is None else self._given[0])

    def _put_up_policy(self) -> None:
        if self._given is not None:
            self._boards.post(f"{self._crew}:policy", "text", self._given[1].decode("utf-8", "replace"))
            self._given_s = time.monotonic()

    def _tell(self, board: str, name: str, **notice: Any) -> None:
        if not self._hearing:
            text = msgspec.json.encode({"by": self._me, "at_s": time.time(), **notice}).decode()
            self._boards.post(board, name, text)

    # ---- hearing ----

    async def listen(self) -> None:
        """Read the boards for ever."""
        while True:
            await asyncio.sleep(POLL_S)
            boards = await self._boards.read([FLEET, self._crew] if self._crew else [FLEET])
            if boards is None:
                continue
            stands = {(board, name): text for board, notices in boards.items() for name, text in notices.items()}
            self._seen = {place: text for place, text in self._seen.items() if place in stands}
            for place, text in stands.items():
                if self._seen.get(place) != text:
                    self._seen[place] = text
                    await self._hear(place[1], text)
            self._take_down_old(boards[FLEET])
            self._repeat_drains(boards[FLEET])
            if self._crew:
                self._repeat_policy(boards[self._crew].get("policy"))
            self._is_new = False

    async def _hear(self, name: str, text: str) -> None:
        try:
            notice = msgspec.json.decode(text)
            by, at_s = notice["by"], float(notice["at_s"])
            kind, _, about = name.partition(":")
            if by == self._me:
                return
            if kind == "policy":
                await self._take_policy(notice["version"])
            elif kind == "hand" and not (self._is_new and notice["action"] == "eject" and time.time() - at_s > FRESH_S):
                self.follow(notice["pool"], notice["replica"], notice["action"])
            elif kind == "health":
                self._note_health(about, notice["why"], float(notice["until_s"]))
        except (msgspec.MsgspecError, LookupError, TypeError, ValueError) as error:
            log.warning("a notice of another gateway can't be read (%s): is it of another version?", error)

    def follow(self, pool_name: str, label: str, action: str) -> None:
        """Do what was done elsewhere by hand.

        Also where it is the last one that gets requests here: it was judged there, and the node may be about to go.
        """
        self._hearing = True
        try:
            pool, replica = find_replica(self._pools(), pool_name, label)
            act(pool, replica, action, asyncio.get_running_loop().time(), force=True)
        except GatewayError as error:
            log.info("%s of %s/%s, told by another gateway, is not done here: %s", action, pool_name, label, error.message)
        finally:
            self._hearing = False

    def _note_health(self, about: str, why: str, until_s: float) -> None:
        found = ((p, r) for p in self._pools().values() for r in p.replicas if f"{p.name}/{r.label}" == about)
        pool, replica = next(found, (None, None))
        if pool is None or replica is None:
            return
        now_s = asyncio.get_running_loop().time()
        if not why:
            replica.evidence.back_at_s = min(replica.evidence.back_at_s, now_s)  # worth a try
        elif until_s > time.time():
            self._hearing = True
            try:
                pool.eject(replica, f"another gateway says: {why}", now_s)
            finally:
                self._hearing = False

    async def _take_policy(self, version: str) -> None:
        raw: bytes | None = None
        if self._given is not None and version == self._given[0]:
            return  # said once more
        if version != FILE:
            boards = await self._boards.read([f"{self._crew}:policy"])
            text = (boards or {}).get(f"{self._crew}:policy", {}).get("text")
            if text is None or sha256(text.encode()).hexdigest() != version:
                self._seen.pop((self._crew, "policy"), None)  # not there yet, or the answer was late: look again
                return
            raw = text.encode()
        elif self._is_new:
            return  # it was just read
        try:
            await self._replace_policy(raw)
            self._given, self._given_s = None if raw is None else (version, raw), time.monotonic()
        except (PolicyError, OSError) as error:
            log.warning("a policy that another worker has taken can't be taken here: %s", error)

    def _take_down_old(self, notices: Mapping[str, str]) -> None:
        for name, text in notices.items():
            with contextlib.suppress(msgspec.MsgspecError):
                if msgspec.json.decode(text, type=_Age).at_s < time.time() - OLD_S:
                    self._boards.take_down(FLEET, name, text)

    def _repeat_drains(self, notices: Mapping[str, str]) -> None:
        """A store that has lost its notices learns again who is drained."""
        for pool in self._pools().values():
            for replica in pool.replicas:
                if replica.draining == BY_HAND and f"hand:{pool.name}/{replica.label}" not in notices:
                    self.tell_action(pool.name, replica.label, "drain")

    def _repeat_policy(self, notice: str | None) -> None:
        """The same for a policy that was given by hand: a worker that starts later needs it, too."""
        if self._given is None:
            return
        if notice is None:
            self.tell_policy(self._given[1])
        elif self._given[0] in notice and time.monotonic() - self._given_s > RENEW_S:
            self._put_up_policy()
