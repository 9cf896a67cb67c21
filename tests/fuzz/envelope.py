"""Errors: an engine's own in the endpoint's shape, and those inside a stream."""

from __future__ import annotations

import json
from typing import Any

from switchyard.api.envelope import engine_error_body, error_body, stream_error
from switchyard.errors import LEAVES
from switchyard.routing.classify.model import read_probability
from switchyard.upstream.sse import EventSplitter, event_data

from .choices import PROTOCOLS, Choices


def envelope(data: bytes) -> None:
    """Any engine's error gets the endpoint's shape; an error in a stream is one event that clients can read."""
    choices = Choices(data)
    protocol = PROTOCOLS[choices.below(len(PROTOCOLS))]
    status = (400, 401, 404, 413, 422, 429, 500, 503, 599)[choices.below(9)]
    kind = ("application/json", "text/html", "", "text/plain; charset=x")[choices.below(4)]
    between, leaf = bool(choices.below(2)), LEAVES[choices.below(len(LEAVES))]
    raw = choices.rest()[:20_000]
    wrapped = engine_error_body(protocol, status, kind, raw)
    _check_shape(protocol, json.loads(raw if wrapped is None else wrapped), own=wrapped is not None)
    error = leaf(raw[:300].decode("utf-8", "replace"))
    _check_shape(protocol, json.loads(error_body(protocol, error)), own=True)
    read_probability(raw)
    _check_event(protocol, stream_error(protocol, error, between, raw), between)


def _check_shape(protocol: str, shaped: Any, own: bool) -> None:
    assert isinstance(shaped, dict)
    found = shaped["error"]
    if own:
        assert isinstance(found["message"], str)
    assert isinstance(found["type"], str)
    if protocol == "messages":
        assert shaped["type"] == "error"
    elif own:
        assert set(found) == {"message", "type", "param", "code"}


def _check_event(protocol: str, event: bytes, between: bool) -> None:
    splitter = EventSplitter()
    events = [e for e in splitter.feed(event) if e.strip()]
    assert not splitter.rest()
    assert len(events) == 1
    assert event.startswith(b"\n\n") != between
    value = json.loads(event_data(events[0]))
    if protocol == "responses":
        assert value["type"] == "response.failed"
        assert value["response"]["status"] == "failed"
        assert value["sequence_number"] >= 0
    else:
        _check_shape(protocol, value, own=True)
