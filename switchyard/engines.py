"""What the gateway holds open to engines: connections to every replica of the policy in force, and a task that probes it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from random import Random

import httpx

from switchyard.background import start
from switchyard.pools.health import Prober
from switchyard.pools.pool import Pool
from switchyard.pools.replica import Replica
from switchyard.upstream.pool import ConnectionPool


class Engines:
    """Connections and probes, kept in step with the pools.

    Args:
        random: for the probes' jitter.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._pools: Mapping[str, Pool] = {}
        self._keys: Mapping[str, str] = {}
        self._connections: dict[tuple[str, str, str], ConnectionPool] = {}  # by pool, label and URL of the replica
        self._retired: list[ConnectionPool] = []  # of replicas that are gone: what runs there may end
        self._watches: dict[Replica, asyncio.Task[None]] = {}
        self._prober: Prober | None = None
        self._watching = False

    def follow(self, pools: Mapping[str, Pool], keys: Mapping[str, str]) -> None:
        """These are the pools now, and the keys that their engines want."""
        self._pools, self._keys = pools, keys
        self.take_over_replicas()

    def take_over_replicas(self) -> None:
        """The pools may have other replicas than before."""
        for pool in self._pools.values():
            for replica in pool.replicas:
                self.connections_to(pool, replica).reconfigure(pool.settings.timeouts, replica.full_name)
        self._watch_replicas()

    def connections_to(self, pool: Pool, replica: Replica) -> ConnectionPool:
        """Those of a replica. Also of one that is gone: requests that began before may only now get their place on it."""
        place = (pool.name, replica.label, replica.url)
        connections = self._connections.get(place)
        if connections is None:
            connections = ConnectionPool(replica.url, replica.full_name, pool.settings.timeouts)
            self._connections[place] = connections
        return connections

    # ---- probes ----

    def may_probe(self, client: httpx.AsyncClient) -> None:
        """Probes go through this client until `stop`."""
        self._prober = Prober(self._keys, self._random, client, self._heard_s)

    async def probe_once(self) -> None:
        """The first probe of every replica, side by side."""
        if self._prober is not None:
            await self._prober.probe_once(self._pools.values())

    async def probe(self, pool: Pool, replica: Replica) -> None:
        """Ask a replica's health path now, out of turn, and mark it."""
        if self._prober is not None:
            await self._prober.probe(pool, replica, first=False)

    def begin_watching(self) -> None:
        """From now on every replica is probed in its rhythm."""
        self._watching = True
        self._watch_replicas()

    async def stop(self) -> None:
        """No more probes."""
        self._prober = None
        for task in self._watches.values():
            task.cancel()
        await asyncio.gather(*self._watches.values(), return_exceptions=True)

    def _heard_s(self, replica: Replica) -> float:
        connections = self._connections.get((replica.pool, replica.label, replica.url))
        return connections.heard_s if connections is not None else 0.0

    def _watch_replicas(self) -> None:
        """One task for each replica of the policy in force; a replica that is new is probed at once."""
        if self._prober is None or not self._watching:
            return
        self._prober.keys = self._keys
        wanted = {replica: pool for pool in self._pools.values() for replica in (*pool.replicas, *pool.leaving)}
        for replica in self._watches.keys() - wanted.keys():
            self._watches.pop(replica).cancel()
        for replica, pool in wanted.items():
            if replica not in self._watches:
                if replica.state == "unknown":
                    start(self._prober.probe(pool, replica, first=True), f"first probe of {replica.label}")
                self._watches[replica] = start(self._prober.watch(pool, replica), f"probes of {replica.label}")

    # ---- connections ----

    def sweep(self) -> None:
        """Let go of what is past a limit, and of what belonged to replicas that are gone with their last requests."""
        now_s = asyncio.get_running_loop().time()
        used = {(p.name, r.label, r.url) for p in self._pools.values() for r in (*p.replicas, *p.leaving)}
        if gone := self._connections.keys() - used:
            self._retired += [self._connections.pop(place) for place in gone]
            self._watch_replicas()
        for connections in (*self._connections.values(), *self._retired):
            connections.sweep(now_s)
        for connections in [c for c in self._retired if not c.busy]:
            connections.close()
            self._retired.remove(connections)

    def close(self) -> None:
        """Close every connection."""
        for connections in (*self._connections.values(), *self._retired):
            connections.close()
