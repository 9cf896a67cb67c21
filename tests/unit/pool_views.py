"""Pools as deciding sees them."""

from collections.abc import Collection
from dataclasses import dataclass

from switchyard.config.vocabulary import CAPABILITIES


@dataclass(frozen=True)
class View:
    """A `routing.decision.PoolView` by hand."""

    name: str
    context_tokens: int | None = None
    takes: Collection[str] = ("tools", "structured_output")
    declares: bool = True
    clamps: bool = False
    protocols: Collection[str] = ("chat", "responses", "messages")

    @property
    def refuses(self) -> tuple[str, ...]:
        return tuple(c for c in CAPABILITIES if c not in self.takes)

    def speaks(self, protocol: str) -> bool:
        return protocol in self.protocols


def views(*pools: View) -> dict[str, View]:
    return {pool.name: pool for pool in pools}
