"""How an answer begins: well, or with the engine's own word that it has failed, before there is anything of the answer.

vLLM sends the head of a stream when it has taken the request, and the first event with the first token. When it fails
between the two, it says so in the first event, under status 200. On Responses it announces the response in two events
before it does anything; those are no part of an answer yet.
"""

from __future__ import annotations

import re
from typing import Literal

from switchyard.errors import BrokenStream, GatewayError, Unreachable
from switchyard.upstream.connection import Response
from switchyard.upstream.ending import error_status
from switchyard.upstream.sse import EventSplitter

Opening = Literal["open", "begun", "failed"]

FAULTS = frozenset({500, 502, 504})
"""Statuses by which an engine says that it is broken; 503 is loading or busy."""
HELD_BYTES = 128 * 1024
"""Most that is looked at; below what a connection keeps for a reader that has not come yet ..."""
SLICE_BYTES = 4 * 1024
"""... so much at a time."""
_MAY_FAIL = (b'data: {"error"', b"event: error", b"event: response.")
"""How an event begins that may be an error or an announcement. Of any other not even half is kept from the client."""
_ANNOUNCES = re.compile(rb"event: ?response\.(?:created|queued|in_progress)[\r\n]")


async def fails_early(response: Response) -> GatewayError | None:
    """What went wrong, by the engine's own fault, before an answer began; waits for a stream's first event.

    Raises:
        UpstreamTimeout: the engine is late, which is another matter: it may have worked on the prompt all the while.
    """
    if response.status in FAULTS:
        return Unreachable(f"the engine failed with status {response.status}")
    if response.status != 200 or not response.is_stream:
        return None
    try:
        while (found := _look(response)) == "open" and await response.more():
            pass
    except BrokenStream as broken:
        return broken
    return Unreachable("the engine failed with the first event of its stream") if found == "failed" else None


def _look(response: Response) -> Opening:
    if not response.has_begun() and response.buffered < HELD_BYTES:
        return "open"
    if not _may_fail(response.opening(pieces=1)):
        return "begun"  # so it is nearly always, and whatever else has come need not be looked at
    return read_opening(response.opening())


def read_opening(data: bytes) -> Opening:
    """What a stream with these first bytes is: an answer that has begun, or its failure, or too short to say. Pure."""
    splitter = EventSplitter()
    for at in range(0, min(len(data), HELD_BYTES), SLICE_BYTES):
        for event in splitter.feed(data[at : at + SLICE_BYTES]):
            if not _ANNOUNCES.match(event):
                return "failed" if error_status(event) in FAULTS else "begun"
    return "open" if _may_fail(splitter.rest()) and len(data) < HELD_BYTES else "begun"


def _may_fail(event: bytes) -> bool:
    """Whether an event that begins with these bytes may be an error or an announcement."""
    return any(event[: len(begins)] == begins[: len(event)] for begins in _MAY_FAIL)
