"""Which replica a conversation has moved to, where that is not the one its hash says.

The hash alone finds the home of nearly all; remembered are only those whose home was gone when they came, so that they
stay where their cache is now when the old home returns.
"""

from __future__ import annotations

from collections import OrderedDict

MAX_MOVED = 50_000


class Moved:
    """Bounded memory of conversations away from home; the longest unused goes first."""

    def __init__(self, limit: int = MAX_MOVED) -> None:
        self._limit = limit
        self._places: OrderedDict[str, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._places)

    def get(self, key: str) -> str | None:
        """Label of the replica that the conversation moved to."""
        label = self._places.get(key)
        if label is not None:
            self._places.move_to_end(key)
        return label

    def put(self, key: str, label: str) -> None:
        """Remember a move."""
        self._places[key] = label
        self._places.move_to_end(key)
        if len(self._places) > self._limit:
            self._places.popitem(last=False)

    def forget(self, key: str) -> None:
        """It is home again, or that replica is gone too."""
        self._places.pop(key, None)
