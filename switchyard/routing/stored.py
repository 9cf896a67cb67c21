"""Places of the answers that engines keep for the Responses endpoint; the oldest are forgotten."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

MAX_STORED = 10_000

Place = tuple[str, str]
"""Pool and replica."""


class StoredResponses:
    """Where each stored response is.

    Args:
        tell: told of each new place, as one text; for other gateways.
    """

    def __init__(self, tell: Callable[[str, str], None] = lambda response_id, place: None) -> None:
        self._places: OrderedDict[str, Place] = OrderedDict()
        self._tell = tell

    def place_of(self, response_id: str) -> Place | None:
        """Pool and replica that made it."""
        return self._places.get(response_id)

    def remember(self, response_id: str, pool: str, replica: str) -> None:
        """It was made there."""
        self._put(response_id, (pool, replica))
        self._tell(response_id, f"{pool}\t{replica}")

    def learn(self, response_id: str, told: str) -> None:
        """Another gateway says where it is."""
        pool, tab, replica = told.partition("\t")
        if tab:
            self._put(response_id, (pool, replica))

    def _put(self, response_id: str, place: Place) -> None:
        self._places[response_id] = place
        if len(self._places) > MAX_STORED:
            self._places.popitem(last=False)
