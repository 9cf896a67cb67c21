"""A failure inside a stream, in the endpoint's own protocol, after a half event was closed (field case F09)."""

import json

import pytest

from switchyard.api.envelope import stream_error
from switchyard.errors import BrokenStream, Draining, UpstreamTimeout
from switchyard.upstream.sse import EventSplitter, event_data

ERROR = BrokenStream("qwen-1 broke off in mid-answer")


def events(data: bytes) -> list[bytes]:
    splitter = EventSplitter()
    found = splitter.feed(data)
    assert splitter.rest() == b""
    return found


def name_of(event: bytes) -> str:
    return next((line[7:].decode() for line in event.split(b"\n") if line.startswith(b"event: ")), "message")


@pytest.mark.parametrize("protocol", ["chat", "completions"])
def test_openai_streams_get_an_error_object(protocol):
    (event,) = events(stream_error(protocol, ERROR, True, b""))
    body = json.loads(event_data(event))
    assert (name_of(event), body["error"]["message"], body["error"]["code"]) == ("message", ERROR.message, "upstream_broken")
    assert b"[DONE]" not in event


@pytest.mark.parametrize(
    ("error", "kind"), [(ERROR, "api_error"), (UpstreamTimeout("slow"), "timeout_error"), (Draining("bye"), "overloaded_error")]
)
def test_messages_gets_an_error_event(error, kind):
    (event,) = events(stream_error("messages", error, True, b""))
    assert name_of(event) == "error"
    assert json.loads(event_data(event)) == {"type": "error", "error": {"type": kind, "message": error.message}}


TAIL = (
    b'event: response.created\ndata: {"response":{"id":"resp_old","object":"response"},"sequence_number":0}\n\n'
    b'event: x\ndata: {"response":{"id":"resp_a7","object":"response"},"sequence_number" : 41}\n\n'
    b'event: x\ndata: {"item_id":"msg_1","sequence_number":42}\n\n'
)


@pytest.mark.parametrize(
    ("tail", "id_", "number"),
    [
        (TAIL, "resp_a7", 43),
        (b"", "resp_failed", 0),
        (b'{"sequence_number":"x"}', "resp_failed", 0),
        (TAIL[:-30], "resp_a7", 42),
    ],
)
def test_responses_fails_with_its_own_ids_and_numbers(tail, id_, number):
    (event,) = events(stream_error("responses", ERROR, True, tail))
    body = json.loads(event_data(event))
    assert name_of(event) == body["type"] == "response.failed"
    assert (body["sequence_number"], body["response"]["id"], body["response"]["status"]) == (number, id_, "failed")
    assert body["response"]["error"] == {"code": "server_error", "message": ERROR.message}


@pytest.mark.parametrize("protocol", ["chat", "completions", "messages", "responses"])
@pytest.mark.parametrize("half", [b'data: {"cho', b"data: {}\n", b"event: x\ndata: {}", b": comment"])
def test_a_half_event_is_closed_and_never_continued(protocol, half):
    *_, last = events(half + stream_error(protocol, ERROR, False, half))
    assert ERROR.message in json.loads(event_data(last)).get("error", {}).get("message", "") or protocol == "responses"
    assert half not in last


def test_between_events_nothing_is_closed():
    assert not stream_error("chat", ERROR, True, b"").startswith(b"\n")
    assert stream_error("chat", ERROR, False, b"").startswith(b"\n\n")
