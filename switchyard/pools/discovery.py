"""Replicas that come and go by themselves: a pool's source is asked again and again, and its answers are compared.

A source that can't be read, or names nobody, changes nothing: an outage of a name server must not become one of the pool.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from switchyard.config.pool import Replica
from switchyard.config.sources import BadSource, file_path, host_and_port, read_replica_file
from switchyard.pools.pool import Pool

EVERY_S = 2.0
LOOKUP_LIMIT_S = 10.0

log = logging.getLogger("switchyard.pools")
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Addresses (A and AAAA) of a name, for a port."""


async def resolve(name: str, port: int) -> Sequence[str]:
    """Ask the system's resolver, in a thread: hosts file, search domains and all.

    Raises:
        OSError: no answer, or none of any use.
    """
    found = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return [address[0] for _, _, _, _, address in found if isinstance(address[0], str)]


class Source:
    """Where one pool's replicas come from.

    Args:
        pool: the pool's name.
        source: `dns://name:port` or `file://path`.
        folder: where relative paths begin.
        resolve: looks a name up.

    Attributes:
        problem: what was wrong with it at the last look; empty when nothing.
    """

    def __init__(self, pool: str, source: str, folder: Path, resolve: Resolve) -> None:
        self.pool = pool
        self.source = source
        self._folder = folder
        self._resolve = resolve
        self.problem = ""

    async def look(self) -> tuple[Replica, ...] | None:
        """The replicas as they are listed now; None, and a `problem`, when that can't be said."""
        try:
            found = await (self._look_up() if self.source.startswith("dns://") else self._read())
        except BadSource as error:
            self.problem = str(error)
            return None
        self.problem = ""
        return found

    async def _look_up(self) -> tuple[Replica, ...]:
        name, port = host_and_port(self.source)
        try:
            async with asyncio.timeout(LOOKUP_LIMIT_S):
                addresses = await self._resolve(name, port)
        except TimeoutError:
            raise BadSource(f"{name} can't be looked up: no answer within {LOOKUP_LIMIT_S:g} s") from None
        except (OSError, UnicodeError) as error:
            raise BadSource(f"{name} can't be looked up: {error}") from None
        hosts = sorted({f"[{a}]" if ":" in a else a for a in addresses})
        if not hosts:
            raise BadSource(f"{name} has no address")
        try:
            return tuple(Replica(url=f"http://{host}:{port}") for host in hosts)
        except ValidationError:  # a link-local address with a zone, say
            raise BadSource(f"{name} has an address that is no use here: {', '.join(hosts)}") from None

    async def _read(self) -> tuple[Replica, ...]:
        path = file_path(self.source, self._folder)
        try:
            raw = await asyncio.to_thread(path.read_bytes)
        except OSError as error:
            raise BadSource(f"{path} can't be read: {error.strerror}") from None
        return read_replica_file(raw, str(path), self.pool)


class Discovery:
    """Keeps pools up to date whose replicas stand elsewhere.

    Args:
        folder: where relative paths begin.
        resolve: looks a name up.
        when_changed: called after a pool has got other replicas.
    """

    def __init__(self, folder: Path, resolve: Resolve, when_changed: Callable[[], None]) -> None:
        self._folder = folder
        self._resolve = resolve
        self._when_changed = when_changed
        self._pools: Mapping[str, Pool] = {}
        self._sources: dict[str, Source] = {}
        self._look_now = asyncio.Event()

    def follow(self, pools: Mapping[str, Pool]) -> None:
        """These are the pools now; a source that stays the same goes on."""
        self._pools = pools
        old, self._sources = self._sources, {}
        for name, pool in pools.items():
            wanted, known = pool.settings.source, old.get(name)
            if wanted is not None:
                same = known is not None and known.source == wanted
                self._sources[name] = known if known and same else Source(name, wanted, self._folder, self._resolve)
        self._look_now.set()

    def problem_of(self, pool: str) -> dict[str, str]:
        """What is wrong with a pool's source, under the key that reports use; empty when nothing is."""
        source = self._sources.get(pool)
        return {"replicas_problem": source.problem} if source is not None and source.problem else {}

    async def watch(self) -> None:
        """Look for ever, each time all sources side by side."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EVERY_S):
                    await self._look_now.wait()
            await self.look()

    async def look(self) -> None:
        """Look once, and take over what changed."""
        self._look_now.clear()
        await asyncio.gather(*map(self._follow_one, list(self._sources.values())))

    async def _follow_one(self, source: Source) -> None:
        before = source.problem
        found = await source.look()
        if source.problem and source.problem != before:
            log.error("pool %s: its replicas stay as they are: %s", source.pool, source.problem)
        elif before and not source.problem:
            log.info("pool %s: %s can be read again", source.pool, source.source)
        if found is None or self._sources.get(source.pool) is not source:
            return
        pool = self._pools[source.pool]
        old, new = {r.label for r in pool.listed}, {r.label for r in found}
        if found == pool.listed:
            return
        pool.list_replicas(found)
        self._when_changed()
        words = [f"{label} is new" for label in sorted(new - old)] + [f"{label} is drained" for label in sorted(old - new)]
        log.info("pool %s: %s says: %s", pool.name, source.source, "; ".join(words) or "other settings")
