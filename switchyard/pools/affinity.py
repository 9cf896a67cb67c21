"""Where each conversation was last: that is where its cache is."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

MAX_PLACES = 50_000


class Places:
    """Bounded memory of the replica that each conversation was on last; the longest unused goes first.

    Args:
        limit: most that are kept.
        tell: told of each conversation's new place; for other gateways.
    """

    def __init__(self, limit: int = MAX_PLACES, tell: Callable[[str, str], None] = lambda key, label: None) -> None:
        self._limit = limit
        self._tell = tell
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
        if self._places.get(key) != label:
            self._tell(key, label)
        self.learn(key, label)

    def learn(self, key: str, label: str) -> None:
        """Another gateway says that it is there."""
        self._places[key] = label
        self._places.move_to_end(key)
        if len(self._places) > self._limit:
            self._places.popitem(last=False)
