"""What the targets take from the front of their bytes: choices, and cuts of the rest."""

from __future__ import annotations

import asyncio

PROTOCOLS = ("chat", "completions", "messages", "responses", "embeddings", "rerank", "score", "tokenize")
LOOP = asyncio.new_event_loop()
"""For what wants futures and a clock; it runs only where a target says so."""


class Choices:
    """Takes small numbers from the front of the bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def below(self, limit: int) -> int:
        if self._at >= len(self._data):
            return 0
        self._at += 1
        return self._data[self._at - 1] % limit

    def cuts(self) -> list[int]:
        """Sizes of four pieces; what is left is a fifth."""
        return [self.below(256) for _ in range(4)]

    def rest(self) -> bytes:
        return self._data[self._at :]


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    """The data in pieces of these sizes (empty ones left out); no sizes: byte by byte."""
    if not sizes:
        return [data[i : i + 1] for i in range(len(data))]
    pieces, at = [], 0
    for size in sizes:
        pieces.append(data[at : at + size])
        at += size
    return [p for p in (*pieces, data[at:]) if p]
