"""A pool: its replicas and who may have a place on one. Those who have to wait are `admission.py`'s business."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from random import Random

import msgspec

from switchyard.config.pool import Pool as PoolSettings
from switchyard.config.pool import Replica as ReplicaSettings
from switchyard.config.vocabulary import CAPABILITIES
from switchyard.errors import PoolSaturated, QueueDeadline
from switchyard.pools.admission import Admission, QueueFull, Waiter
from switchyard.pools.affinity import Places
from switchyard.pools.balance import Balancer
from switchyard.pools.replica import Lease, Replica
from switchyard.pools.serves import NATIVE

log = logging.getLogger("switchyard.pools")
TYPICAL_TOKENS = 2_000.0
"""Weight of a request from elsewhere until ours have shown what is usual here ..."""
TYPICAL_OVER = 50
"""... over the last so many requests."""
LONGEST_BUSY_S = 30.0
NOT_LISTED = "no longer listed"


class Pool:
    """Replicas of one model.

    Args:
        name: its name in the policy.
        settings: its block.
        random: source of chance for balancing.
        places: where conversations were last; left out: nothing but what is seen here.
        tell: told of each replica that is ejected, with the reason, or readmitted, without one; for other gateways.
    """

    def __init__(
        self,
        name: str,
        settings: PoolSettings,
        random: Random,
        places: Places | None = None,
        tell: Callable[[Replica, str], None] = lambda replica, why: None,
    ) -> None:
        self.name = name
        self._random = random
        self.places = places if places is not None else Places()
        self._tell = tell
        self.typical_tokens = TYPICAL_TOKENS
        self._admission = Admission(self._place_waiter, self._serves, settings.limits.queue, settings.limits.queue_timeout_s)
        self.guests: set[asyncio.Task[None]] = set()  # work without a place, that ends when anybody comes
        self.replicas: tuple[Replica, ...] = ()
        self.listed: tuple[ReplicaSettings, ...] = ()
        self._gone: list[Replica] = []
        self.reconfigure(settings)

    def reconfigure(self, settings: PoolSettings) -> None:
        """Go on under other settings. Replicas that are found elsewhere stay until somebody has looked there."""
        self.settings = settings
        self._admission.reconfigure(settings.limits.queue, settings.limits.queue_timeout_s)
        self._balancer = Balancer(settings.balance, self._random)
        self.model_json = msgspec.json.encode(settings.model)
        self.refuses = tuple(need for need in CAPABILITIES if need not in settings.accepts)
        self.context_tokens: int | None = None if settings.context == "auto" else settings.context
        self._protocols: frozenset[str] = NATIVE if settings.speaks == "auto" else frozenset(settings.speaks)
        self.list_replicas(settings.listed if settings.source is None else self.listed)

    def list_replicas(self, listed: Sequence[ReplicaSettings]) -> None:
        """These are its replicas now. One that stays keeps its load and state; one that is gone is drained."""
        limit = self.settings.limits.in_flight
        known = {(r.label, r.url): r for r in (*self._gone, *self.replicas)}
        self.listed = tuple(listed)
        self.replicas = tuple(known.get((r.label, r.url)) or Replica(self.name, r, limit) for r in listed)
        self._gone = [r for r in known.values() if r not in self.replicas]
        for replica, block in zip(self.replicas, listed, strict=True):
            replica.limit, replica.weight, replica.nodes = limit, block.weight, block.nodes
            replica.draining = "" if replica.draining == NOT_LISTED else replica.draining
        for replica in self._gone:
            replica.draining = replica.draining or NOT_LISTED
        self.learn()
        self.wake()

    @property
    def leaving(self) -> tuple[Replica, ...]:
        """Those that are no longer listed and still have requests."""
        self._gone = [r for r in self._gone if r.in_flight]
        return tuple(self._gone)

    # ---- what deciding may know (routing.decision.PoolView) ----

    @property
    def declares(self) -> bool:
        """Whether the policy says what it accepts, or leaves it to the default."""
        return "accepts" in self.settings.model_fields_set

    @property
    def clamps(self) -> bool:
        """Whether it lowers the wanted output to what fits."""
        return self.settings.max_output_tokens == "clamp"

    @property
    def protocols(self) -> frozenset[str]:
        """What its engines answer; until one was asked, everything."""
        return self._protocols

    def speaks(self, protocol: str) -> bool:
        """Whether its engines answer this protocol; until one was asked, all are assumed to."""
        return protocol in self._protocols

    def learn(self) -> None:
        """Its engines have told something new: put together what the whole pool can do."""
        if self.settings.context == "auto":  # the smallest: any of them may get the request
            self.context_tokens = min((r.context_tokens for r in self.replicas if r.context_tokens), default=None)
        if self.settings.speaks == "auto":
            known = [r.protocols for r in self.replicas if r.protocols is not None]
            self._protocols = frozenset().union(*known) if known else NATIVE

    # ---- what traffic says ----

    def note_good(self, replica: Replica, now_s: float) -> None:
        """A request was answered on it."""
        replica.evidence.note_good(now_s)

    def note_busy(self, replica: Replica, for_s: float, now_s: float) -> None:
        """It refused a request with 429 or 503: others are asked first for so long."""
        replica.busy_until_s = now_s + min(for_s, LONGEST_BUSY_S)

    def note_bad(self, replica: Replica, why: str, now_s: float, began_s: float | None = None) -> None:
        """A request failed on it by its own fault; after several in a row it is taken out.

        What began before its last return says nothing about it as it is now.
        """
        if began_s is not None and began_s < replica.evidence.returned_s:
            return
        if replica.evidence.note_bad():
            self.eject(replica, f"{replica.evidence.failures} failures in a row, the last: {why}", now_s)

    def eject(self, replica: Replica, why: str, now_s: float) -> None:
        """Take a replica out until a real completion works on it; never the last one that is there."""
        others = any(r.healthy for r in self.replicas if r is not replica)
        if replica.ejected or not others:
            return
        back_off_s = replica.evidence.eject(now_s)
        replica.ejected = why
        self._tell(replica, why)
        log.warning("pool %s: replica %s is ejected for %.0f s: %s", self.name, replica.full_name, back_off_s, why)

    def readmit(self, replica: Replica, now_s: float) -> None:
        """Let a replica that was away have requests again: slowly, and of the new conversations no more than the others."""
        replica.ejected = ""
        replica.evidence.readmit(now_s)
        for each in self.replicas:
            each.fade(now_s)
        others = [r.work / r.weight for r in self.replicas if r.healthy and r is not replica]
        replica.work = replica.weight * sum(others) / len(others) if others else 0.0
        self._tell(replica, "")

    # ---- places ----

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return len(self._admission)

    @property
    def is_idle(self) -> bool:
        """Whether it could work and has nothing to do, for us or, as its engines last said, for others."""
        busy = self.queued or any(r.in_flight or r.foreign for r in self.replicas)
        return not busy and any(r.healthy for r in self.replicas)

    async def admit(
        self,
        key: str,
        tokens: int,
        exclude: Collection[str] = (),
        only: str | None = None,
        prompt_tokens: int = 0,
        *,
        api_key: str = "",
        background: bool = False,
    ) -> Lease | None:
        """Wait for a place on one of the replicas.

        Args:
            key: the conversation, for affinity; those of one API key take turns.
            tokens: estimated tokens of the request, prompt and wanted answer.
            exclude: labels of replicas that were tried before.
            only: label of the one replica that can serve it.
            prompt_tokens: the prompt's part of them.
            api_key: name of the client's API key; keys take turns.
            background: whether it waits behind those in front of which somebody sits.

        Returns:
            A place, held until its `release`; None when every replica was tried, or is drained.

        Raises:
            PoolSaturated: the queue is full.
            QueueDeadline: no place within `queue_timeout_s`.
        """
        for guest in self.guests:
            guest.cancel()
        if self._admission.free and (lease := self._place(key, tokens, exclude, only, prompt_tokens)) is not None:
            return lease  # nobody waits who could have taken this place
        left = self._left(exclude, only)
        if not left:
            return None
        if not any(r.healthy for r in left):
            return self._last_resort(left, tokens, prompt_tokens)
        try:
            return await self._admission.wait(Waiter(key, tokens, prompt_tokens, exclude, only, api_key, background))
        except QueueFull:
            message = f"pool {self.name}: {self._busy()}, and {self.queued} wait already; retry in 2 s"
            raise PoolSaturated(message, retry_after_s=2) from None
        except TimeoutError:
            message = f"pool {self.name}: no place within {self.settings.limits.queue_timeout_s:g} s; {self._busy()}"
            raise QueueDeadline(message, retry_after_s=2) from None

    def has_free(self, exclude: Collection[str]) -> bool:
        """Whether a replica besides these would take a request now."""
        return any(r.available and r.label not in exclude for r in self.replicas)

    def has_healthy(self, exclude: Collection[str]) -> bool:
        """Whether a replica besides these gets requests, be it full."""
        return any(r.healthy and r.label not in exclude for r in self.replicas)

    def wake(self) -> None:
        """Something may have become free: give it to those who wait."""
        self._admission.wake()

    def _place(self, key: str, tokens: int, exclude: Collection[str], only: str | None, prompt_tokens: int) -> Lease | None:
        now_s = asyncio.get_running_loop().time()
        free = self._with_room(now_s)
        if exclude or only is not None:
            free = [r for r in free if r.label not in exclude and (only is None or r.label == only)]
        if not free:
            return None
        for replica in free:
            replica.fade(now_s)
        calm = [r for r in free if r.busy_until_s <= now_s]
        replica, affinity = self._choose(calm or free, key, tokens)
        replica.work += tokens
        if affinity:
            replica.affinity[affinity] += 1
        self.typical_tokens += (tokens - self.typical_tokens) / TYPICAL_OVER
        return Lease(replica, tokens, self._after_release, prompt_tokens, affinity, now_s)

    def _with_room(self, now_s: float) -> list[Replica]:
        """Those that take one more request. Who has come back takes it slowly, as long as somebody else takes the rest."""
        for replica in self.replicas:
            if replica.healthy and replica.evidence.share(now_s) >= 1:
                return [r for r in self.replicas if r.has_room(now_s)]
        return [r for r in self.replicas if r.available]

    def _place_waiter(self, waiter: Waiter) -> Lease | None:
        lease = self._place(waiter.session, waiter.tokens, waiter.exclude, waiter.only, waiter.prompt_tokens)
        if lease is None:
            left = self._left(waiter.exclude, waiter.only)
            if left and not any(r.healthy for r in left):  # all went down while it waited
                lease = self._last_resort(left, waiter.tokens, waiter.prompt_tokens)
        return lease

    def _serves(self, waiter: Waiter) -> bool:
        return bool(self._left(waiter.exclude, waiter.only))

    def _after_release(self) -> None:
        if self.queued:
            self.wake()

    def _choose(self, free: list[Replica], key: str, tokens: int) -> tuple[Replica, str]:
        """A replica, and what that is for the conversation's cache: see `Lease.affinity`."""
        if self.settings.balance != "prefix":
            return self._balancer.choose(free, key, 0.0), ""
        last = self.places.get(key)
        healthy = [r for r in self.replicas if r.healthy]
        mean_load = (sum(r.busy for r in healthy) + 1) / sum(r.weight for r in healthy)
        chosen = self._balancer.choose(free, key, mean_load, last, tokens)
        self.places.put(key, chosen.label)
        if last is None:
            return chosen, "miss"
        return chosen, "hit" if chosen.label == last else "repin"

    def _left(self, exclude: Collection[str], only: str | None) -> list[Replica]:
        """Those that may be tried at all, be they healthy or not."""
        return [r for r in self.replicas if not r.draining and r.label not in exclude and (only is None or r.label == only)]

    def _last_resort(self, left: list[Replica], tokens: int, prompt_tokens: int) -> Lease:
        """All seem down: try one all the same, the probes may be behind."""
        replica, now_s = min(left, key=lambda r: r.in_flight), asyncio.get_running_loop().time()
        return Lease(replica, tokens, self._after_release, prompt_tokens, began_s=now_s)

    def _busy(self) -> str:
        healthy = [r for r in self.replicas if r.healthy]
        full = sum(1 for r in healthy if r.in_flight >= r.limit)
        limit = self.settings.limits.in_flight
        return f"{full} of {len(self.replicas)} replicas have {limit} requests each"
