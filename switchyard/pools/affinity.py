"""Where each conversation was last: that is where its cache is."""

from __future__ import annotations

from collections import OrderedDict

MAX_PLACES = 50_000


class Places:
    """Bounded memory of the replica that each conversation was on last; the longest unused goes first."""

    def __init__(self, limit: int = MAX_PLACES) -> None:
        self._limit = limit
        self._places: OrderedDict[str, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._places)

    def get(self, key: str) -> str | None:
        """Label of that replica; None for a conversation that isn't known."""
        label = self._places.get(key)
        if label is not None:
            self._places.move_to_end(key)
        return label

    def put(self, key: str, label: str) -> None:
        """It is there now."""
        self._places[key] = label
        self._places.move_to_end(key)
        if len(self._places) > self._limit:
            self._places.popitem(last=False)
