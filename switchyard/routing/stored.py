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
        self._sessions: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self._tell = tell

    def place_of(self, response_id: str) -> Place | None:
        """Pool and replica that made it."""
        return self._places.get(response_id)

    def session_of(self, response_id: str, key_name: str) -> str:
        """Key of the session that it was made in, for the same API key; empty where that is not known."""
        session, owner = self._sessions.get(response_id, ("", ""))
        return session if owner == key_name else ""

    def remember(self, response_id: str, pool: str, replica: str, session: str = "", key_name: str = "") -> None:
        """It was made there, in this session of an API key; without one where the session was no more than a guess."""
        _put(self._places, response_id, (pool, replica))
        if session:
            _put(self._sessions, response_id, (session, key_name))
        self._tell(response_id, f"{pool}\t{replica}")

    def learn(self, response_id: str, told: str) -> None:
        """Another gateway says where it is."""
        pool, tab, replica = told.partition("\t")
        if tab:
            _put(self._places, response_id, (pool, replica))


def _put(kept: OrderedDict[str, tuple[str, str]], response_id: str, what: tuple[str, str]) -> None:
    kept[response_id] = what
    if len(kept) > MAX_STORED:
        kept.popitem(last=False)
