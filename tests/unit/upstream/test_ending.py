"""How a stream ended by the engine's own word. The endings are those that vLLM 0.32 sends when one of its ranks dies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.upstream.ending import error_status

from . import streams as s

TEXT = s.chat(b'"content":"The"')
DEAD = b"EngineCore encountered an issue. See stack trace (above) for the root cause."
CHAT = b'data: {"error": {"message": "%s", "type": "InternalServerError", "param": null, "code": 500}}\n\n' % DEAD
MESSAGES = (
    b'event: error\ndata: {"type":"error","error":{"type":"internal_error","message":"2 validation errors for '
    rb"ChatCompletionStreamResponse\nmodel\n  Field required [type=missing, input_value={'error': {'code': 500}}]"
    b'"}}\n\n'
)
FAILED = s.event(b"response.failed", b'"response":{"id":"resp_1","status":"failed","error":{"code":"%s","message":"m"}}')
WELL = {
    "chat": TEXT + s.DONE,
    "chat without its last word": TEXT,
    "messages": s.TEXT_DELTA + s.BLOCK_STOP + s.MESSAGE_DELTA + s.MESSAGE_STOP,
    "responses": s.TEXT + s.COMPLETED,
    "responses with an empty error": s.event(b"response.completed", b'"response":{"status":"completed","error":null}'),
    "text about an error": s.chat(rb'"content":"{\"error\": {\"code\": 500}}"') + s.DONE,
    "an error before the last event": CHAT + TEXT + s.DONE,
    "nested beyond all sense": b'data: {"x":%b,"error":null}\n\n' % (b"[" * 50_000 + b"]" * 50_000),
    "no stream": b'{"error": {"code": 500}}',
    "half an event": b'data: {"error": {"code": 500',
    "nothing": b"",
    "nothing but its last word": s.DONE,
}


@pytest.mark.parametrize("tail", WELL.values(), ids=WELL)
def test_a_good_end(tail):
    assert error_status(tail) is None


@pytest.mark.parametrize(
    ("tail", "status"),
    [
        (TEXT + CHAT + s.DONE, 500),
        (TEXT + CHAT, 500),
        (CHAT + s.DONE, 500),
        ((TEXT + CHAT + s.DONE).replace(b"\n", b"\r\n"), 500),
        ((TEXT + CHAT + s.DONE).replace(b"\n", b"\r"), 500),
        (s.TEXT_DELTA + MESSAGES, 500),
        (s.TEXT + FAILED % b"server_error", 500),
        (s.TEXT + FAILED % b"rate_limit_exceeded", 429),
        (s.event(b"error", b'"code":"server_error","message":"m","param":null'), 500),
        (TEXT + b'data: {"error":{"message":"m","type":"BadRequestError","param":null,"code":400}}\n\n' + s.DONE, 400),
        (TEXT + b'data: {"error":{"message":"m","type":"invalid_request_error"}}\n\n', 400),
        (s.event(b"error", b'"error":{"type":"overloaded_error","message":"m"}'), 503),
        (TEXT + b'data: {"error":{"message":"m","code":7}}\n\n', 500),
        (TEXT + b'data: {"error":{}}\n\n', 500),
    ],
)
def test_an_error_at_the_end(tail, status):
    assert error_status(tail) == status


@given(st.one_of(st.binary(), st.binary().map(lambda data: TEXT + b'data: {"error":' + data + b"\n\n")))
def test_any_bytes(tail):
    assert error_status(tail) in {None, *range(400, 600)}
