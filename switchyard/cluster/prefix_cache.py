"""The prefix cache of an engine, as far as time depends on it: which blocks of prompts are kept. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence


class PrefixCache:
    """Which prompt blocks are kept; the longest unused go first.

    Args:
        capacity_tokens: of the KV cache.
        block_tokens: tokens of a block.
    """

    def __init__(self, capacity_tokens: int, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._capacity = capacity_tokens // block_tokens
        self._blocks: OrderedDict[Hashable, None] = OrderedDict()

    def find(self, blocks: Sequence[Hashable]) -> int:
        """Tokens at the beginning that are there; they count as used now."""
        found = 0
        for key in blocks:
            if key not in self._blocks:
                break
            self._blocks.move_to_end(key)
            found += 1
        return found * self.block_tokens

    def keep(self, blocks: Iterable[Hashable]) -> None:
        """Remember blocks that were computed."""
        for key in blocks:
            self._blocks[key] = None
            self._blocks.move_to_end(key)
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)

    def clear(self) -> None:
        """Forget all, as a restart does."""
        self._blocks.clear()
