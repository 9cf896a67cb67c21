"""The order of those who wait: interactive before background, then in turn by API key, then by session. Pure; time comes in.

Who comes first when two API keys want everything is decided here and nowhere else; waiting itself is `admission.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")


class Queued(Protocol):
    """Who waits, as far as the order asks.

    Attributes:
        api_key: name of the API key; keys take turns.
        session: the conversation; those of one key take turns.
        background: whether nobody sits in front of it.
        arrived_s: when it came.
    """

    api_key: str
    session: str
    background: bool
    arrived_s: float


Q = TypeVar("Q", bound=Queued)
_Sessions = dict[str, dict[Q, None]]  # dicts are ordered, and anybody can leave one at no cost


class FairQueue(Generic[Q]):
    """Who waits for a pool. Adding, removing and finding the next cost the same however many wait.

    Keys take turns, one request each; the sessions of a key take the key's turns in turn; within a session it is first
    come, first served. A key with 200 requests gets no more than one with 2, while both have some.

    Args:
        patience_s: a background request that has waited for so long counts as interactive: it is late, not forgotten.
    """

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        self._interactive: dict[str, _Sessions[Q]] = {}
        self._background: dict[str, _Sessions[Q]] = {}
        self._patient: dict[Q, None] = {}  # all in the background lane, by arrival
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, request: Q) -> None:
        """Take a place at the end of its session."""
        if request.background:
            self._patient[request] = None
        self._put(self._background if request.background else self._interactive, request)
        self._size += 1

    def remove(self, request: Q) -> None:
        """It leaves; the turn of its key and session stays as it is."""
        lane = self._lane_of(request)
        self._take_out(lane, request)
        self._patient.pop(request, None)
        self._size -= 1

    def serve(self, request: Q) -> None:
        """It got what it waited for: its key and its session go to the end of their lines."""
        lane = self._lane_of(request)
        self.remove(request)
        sessions = lane.get(request.api_key)
        if sessions is not None:
            lane[request.api_key] = lane.pop(request.api_key)
            if request.session in sessions:
                sessions[request.session] = sessions.pop(request.session)

    def in_order(self, now_s: float) -> Iterator[Q]:
        """All who wait, the next one first. Don't change the queue while going through it."""
        for request in tuple(self._overdue(now_s)):
            del self._patient[request]
            self._take_out(self._background, request)
            self._put(self._interactive, request)
        for lane in (self._interactive, self._background):
            yield from _in_turn(_in_turn(sessions.values()) for sessions in lane.values())

    def give_way(self, newcomer: Queued) -> Q | None:
        """Whose place in a full queue a newcomer may have: the newest of whoever has clearly more than it would have.

        Background gives way to interactive; then the key with the most requests, and within the newcomer's own key the
        session with the most. None when nobody has more: then it is the newcomer who is turned away.
        """
        if not newcomer.background and self._patient:
            return self._newest_of_most(self._background)
        lane = self._background if newcomer.background else self._interactive
        own = lane.get(newcomer.api_key, {})
        most = max(map(_count, lane.values()), default=0)
        if most > _count(own) + 1:
            return self._newest_of_most(lane)
        longest = max(own.values(), key=len, default={})
        if len(longest) > len(own.get(newcomer.session, {})) + 1:
            return next(reversed(longest))
        return None

    def _overdue(self, now_s: float) -> Iterator[Q]:
        for request in self._patient:
            if now_s - request.arrived_s < self.patience_s:
                return
            yield request

    def _lane_of(self, request: Q) -> dict[str, _Sessions[Q]]:
        return self._background if request in self._patient else self._interactive

    @staticmethod
    def _put(lane: dict[str, _Sessions[Q]], request: Q) -> None:
        lane.setdefault(request.api_key, {}).setdefault(request.session, {})[request] = None

    @staticmethod
    def _take_out(lane: dict[str, _Sessions[Q]], request: Q) -> None:
        sessions = lane[request.api_key]
        requests = sessions[request.session]
        del requests[request]
        if not requests:
            del sessions[request.session]
            if not sessions:
                del lane[request.api_key]

    @staticmethod
    def _newest_of_most(lane: dict[str, _Sessions[Q]]) -> Q:
        sessions = max(lane.values(), key=_count)
        longest = max(sessions.values(), key=len)
        return next(reversed(longest))


def _count(sessions: _Sessions[Q]) -> int:
    return sum(map(len, sessions.values()))


def _in_turn(groups: Iterable[Iterable[T]]) -> Iterator[T]:
    """One of each, then the next of each; groups are only looked at when their turn comes."""
    going_on: list[Iterator[T]] = []
    for group in groups:
        members = iter(group)
        for member in members:
            yield member
            going_on.append(members)
            break
    while going_on:
        left: list[Iterator[T]] = []
        for members in going_on:
            for member in members:
                yield member
                left.append(members)
                break
        going_on = left
