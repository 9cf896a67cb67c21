"""Putting another policy in force while requests run: read it with all that it names, and change nothing if it is bad."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from switchyard.classifiers import Scorers, load_scorers, load_tokenizers
from switchyard.config.load import parse_policy
from switchyard.config.policy import Policy
from switchyard.config.problem import PolicyError
from switchyard.config.reload import PolicyFile, describe_changes
from switchyard.config.secrets import Secrets, read_secrets
from switchyard.routing.tokens import FileCount

WATCH_S = 1.0  # how often the policy's file is looked at

log = logging.getLogger("switchyard")


@dataclass(frozen=True, slots=True)
class ReadyPolicy:
    """A policy with all that it names.

    Attributes:
        policy: what it says.
        secrets: the keys.
        scorers: the classifiers' weights, by file.
        tokenizers: those of pools, by file.
    """

    policy: Policy
    secrets: Secrets
    scorers: Scorers
    tokenizers: dict[str, FileCount]


def make_ready(policy: Policy, secrets: Secrets, name: str) -> ReadyPolicy:
    """Read the files that a policy names.

    Raises:
        PolicyError: some can't be used.
    """
    return ReadyPolicy(policy, secrets, load_scorers(policy, name, {}), load_tokenizers(policy, name, {}))


class Reloader:
    """Replaces the policy in force; one after the other, so that the one that came last stays.

    Args:
        ready: the policy in force.
        source: the policy's file; None: there is none.
        install: puts a policy in force, all at once.
        tell: called when one was replaced here: the bytes, or None for the file.
        count: told of every reload, and whether it was good.
    """

    def __init__(
        self,
        ready: ReadyPolicy,
        source: PolicyFile | None,
        install: Callable[[ReadyPolicy], None],
        tell: Callable[[bytes | None], None],
        count: Callable[[bool], None],
    ) -> None:
        self._ready = ready
        self._source = source
        self._install = install
        self._tell = tell
        self._count = count
        self._replacing = asyncio.Lock()
        self._look_now = asyncio.Event()
        self._file_problem = ""
        self._sent_problem = ""

    @property
    def problem(self) -> str:
        """What is wrong with the file, or with a policy that another worker was sent and took; else empty."""
        return self._file_problem or self._sent_problem

    async def replace(self, raw: bytes | None = None) -> list[str]:
        """Put another policy in force, here and in the other workers: these bytes, or the file read again.

        A bad one changes nothing.

        Returns:
            What changed, in words.

        Raises:
            PolicyError: everything that is wrong with it.
            OSError: the file can't be read.
        """
        async with self._replacing:
            changes = await self._read_and_install(raw, whoever_sent_it_is_told=True)
        self._tell(raw)
        return changes

    async def follow(self, raw: bytes | None) -> list[str]:
        """The same for a policy that was put in force in another worker; nobody is told."""
        async with self._replacing:
            return await self._read_and_install(raw, whoever_sent_it_is_told=False)

    def look_now(self) -> None:
        """Read the file again, whatever it looks like."""
        self._look_now.set()

    async def watch(self, source: PolicyFile) -> None:
        """Look at the file for ever."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WATCH_S):
                    await self._look_now.wait()
            if self._look_now.is_set() or await asyncio.to_thread(source.changed):
                self._look_now.clear()
                with contextlib.suppress(PolicyError, OSError):  # said in the log, at /readyz and in a metric
                    await self.replace()

    async def _read_and_install(self, raw: bytes | None, whoever_sent_it_is_told: bool) -> list[str]:
        old = self._ready
        try:
            ready = await asyncio.to_thread(self._read, raw)  # takes a while
        except (PolicyError, OSError) as error:
            if raw is None:
                self._file_problem = str(error)
            elif not whoever_sent_it_is_told:
                self._sent_problem = str(error)
            self._count(False)
            log.error("the policy stays as it is; the new one is not good:\n%s", error)
            raise
        changes = describe_changes(old.policy, ready.policy)
        relearned = [path for path, scorer in ready.scorers.items() if old.scorers.get(path, scorer) is not scorer]
        changes += [f"weights in {path or 'the package'} are new" for path in relearned]
        changes += [
            f"the tokenizer {path} is new"
            for path, count in ready.tokenizers.items()
            if old.tokenizers.get(path, count) is not count
        ]
        self._sent_problem = ""
        if raw is None:
            self._file_problem = ""
        if changes:
            # But for the keys' limits, the server's own block is read at the start only, whatever the file says now.
            server = old.policy.server.model_copy(update={"limits": ready.policy.server.limits})
            self._ready = replace(ready, policy=ready.policy.model_copy(update={"server": server}))
            self._install(self._ready)
            self._count(True)
            log.info("new policy: %s", "; ".join(changes))
        return changes

    def _read(self, raw: bytes | None) -> ReadyPolicy:
        name = "sent policy"
        if raw is None:
            if self._source is None:
                raise OSError("the gateway was started without a policy file")
            name, raw = str(self._source.path), self._source.path.read_bytes()
        policy = parse_policy(raw, name)
        if self._source is not None:
            policy = self._source.with_overrides(policy)
        scorers = load_scorers(policy, name, self._ready.scorers)
        return ReadyPolicy(policy, read_secrets(policy, name), scorers, load_tokenizers(policy, name, self._ready.tokenizers))
