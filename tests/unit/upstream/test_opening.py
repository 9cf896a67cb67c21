"""The first bytes of a stream: begun, failed, or too few to say; however they are cut, and the same for ever after."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.upstream.opening import HELD_BYTES, read_opening

ERROR = {"error": {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "param": None, "code": 500}}
MESSAGES_ERROR = {"type": "error", "error": {"type": "internal_error", "message": "x"}}


def event(data: object, name: str = "", end: str = "\n") -> bytes:
    return (f"event: {name}{end}" * bool(name) + f"data: {json.dumps(data)}{end}{end}").encode()


CREATED = event({"type": "response.created", "response": {"id": "resp_1"}}, "response.created")
IN_PROGRESS = event({"type": "response.in_progress", "response": {"id": "resp_1"}}, "response.in_progress")
FAILED = {
    "chat": event(ERROR) + b"data: [DONE]\n\n",
    "other line ends": event(ERROR, end="\r\n"),
    "messages": event(MESSAGES_ERROR, "error"),
    "responses": CREATED
    + IN_PROGRESS
    + event({"type": "response.failed", "response": {"error": {"code": "server_error"}}}, "response.failed"),
    "502": event({"error": {"message": "bad gateway", "code": 502}}),
}
BEGUN = {
    "a chunk": event({"choices": [{"delta": {"content": 'He said "error"'}}], "error": None}),
    "a comment": b": ping\n\n",
    "a client's mistake": event({"error": {"message": "too long", "type": "BadRequestError", "code": 400}}),
    "a busy engine": event({"error": {"message": "wait", "code": 503}}),
    "messages": event({"type": "message_start"}, "message_start"),
    "responses": CREATED + IN_PROGRESS + event({"type": "response.output_item.added"}, "response.output_item.added"),
    "no JSON": b"data: hello\n\n",
    "only the end": b"data: [DONE]\n\n",
}


@given(st.sampled_from([*((b, "failed") for b in FAILED.values()), *((b, "begun") for b in BEGUN.values())]), st.binary())
def test_each_is_seen_with_its_event_and_whatever_follows(case, rest):
    opening, wanted = case
    seen = [read_opening(opening[:at]) for at in range(len(opening))] + [read_opening(opening)]
    first = next(at for at, found in enumerate(seen) if found != "open")
    assert set(seen[:first]) <= {"open"}
    assert set(seen[first:]) == {wanted}
    assert read_opening(opening + rest) == wanted


def test_an_announcement_is_no_answer():
    for data in (b"", CREATED, CREATED + IN_PROGRESS, CREATED[:-1], b"data: {", event({}, "response.queued")):
        assert read_opening(data) == "open", data


def test_half_an_event_is_kept_from_nobody():
    for data in (b"d", b"e", b"data: {", b"event: "):
        assert read_opening(data) == "open", data
    for data in (b'data: {"i', b"event: m", b":", b"id", b"x", CREATED + b'data: {"t'):
        assert read_opening(data) == "begun", data


def test_nothing_is_held_without_end():
    assert read_opening(event({"instructions": "x" * HELD_BYTES}, "response.created")) == "begun"
    assert read_opening(b'data: {"error": ' + b"x" * HELD_BYTES) == "begun"


@pytest.mark.parametrize("name", FAILED)
def test_failures(name):
    assert read_opening(FAILED[name]) == "failed"
