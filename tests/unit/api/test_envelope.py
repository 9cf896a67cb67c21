"""Errors in the shape of the endpoint, as a body: the gateway's own, and an engine's where it has another shape."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.api.envelope import EXCERPT_CHARACTERS, engine_error_body, error_body
from switchyard.errors import LEAVES

from ..json_text import VALUES

OPENAI = ["chat", "completions", "embeddings", "responses", "rerank", "score", "tokenize"]


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: leaf.code)
def test_an_error_of_the_gateways_own(leaf):
    error = leaf('say "why" ü ok', param="model")
    for protocol in OPENAI:
        body = json.loads(error_body(protocol, error))
        assert body == {"error": {"message": 'say "why" ü ok', "type": leaf.type, "param": "model", "code": leaf.code}}
    body = json.loads(error_body("messages", error))
    assert body == {"type": "error", "error": {"type": leaf.anthropic_type, "message": 'say "why" ü ok'}}


OPENAI_ERROR = {"error": {"message": "no", "type": "BadRequestError", "param": None, "code": 400}}
ANTHROPIC_ERROR = {"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}
LLAMA_ERROR = {"error": {"code": 501, "message": "no embeddings", "type": "not_supported_error"}}


@pytest.mark.parametrize(
    ("protocol", "body", "fits"),
    [
        ("chat", OPENAI_ERROR, True),
        ("chat", LLAMA_ERROR, True),
        ("responses", OPENAI_ERROR, True),
        ("chat", {**OPENAI_ERROR, "x_future": 1}, True),
        ("messages", ANTHROPIC_ERROR, True),
        ("messages", {**ANTHROPIC_ERROR, "request_id": "r"}, True),
        ("messages", OPENAI_ERROR, False),
        ("chat", {"error": {"message": "", "type": "x"}}, False),
        ("chat", {"error": {"message": "no", "type": None}}, False),
        ("chat", {"error": {"message": ["no"], "type": "x"}}, False),
        ("chat", {"error": "no"}, False),
        ("chat", {"object": "error", "message": "no", "code": 400}, False),
        ("chat", {"detail": "Not Found"}, False),
        ("chat", [OPENAI_ERROR], False),
        ("chat", None, False),
    ],
)
def test_an_error_that_has_the_shape_passes_untouched(protocol, body, fits):
    found = engine_error_body(protocol, 400, "application/json", json.dumps(body).encode())
    assert (found is None) is fits


# body of the engine, status, message, OpenAI type, code
WRAPPED = [
    (b'{"object":"error","message":"too long","type":"BadRequestError","param":"x","code":40}', 400, "too long",
     "BadRequestError", 40),
    (b'{"detail":"Not Found"}', 404, "Not Found", "invalid_request_error", 404),
    (b'{"detail":[{"loc":["body","max_tokens"],"msg":"Field required"},{"loc":[],"msg":"bad"}]}', 422,
     "body.max_tokens: Field required; bad", "invalid_request_error", 422),
    (b'{"detail":["plain",{"a":1}]}', 422, "plain; {'a': 1}", "invalid_request_error", 422),
    (b'{"error":"model overloaded"}', 503, "model overloaded", "server_error", 503),
    (b'{"message":"unauthorized"}', 401, "unauthorized", "authentication_error", 401),
    (b'{"error":{"message":"slow down"}}', 429, "slow down", "rate_limit_error", 429),
    (b"forbidden", 403, "the engine answered with status 403: forbidden", "permission_error", 403),
    (b"", 500, "the engine answered with status 500 and no body", "server_error", 500),
    (b"  \n ", 502, "the engine answered with status 502 and no body", "server_error", 502),
    (b"null", 500, "the engine answered with status 500: null", "server_error", 500),
    (b"\xff\xfe", 500, "the engine answered with status 500: \ufffd\ufffd", "server_error", 500),
]  # fmt: skip


@pytest.mark.parametrize(("body", "status", "message", "kind", "code"), WRAPPED, ids=range(len(WRAPPED)))
def test_another_shape_is_wrapped_with_the_engines_own_words(body, status, message, kind, code):
    found = json.loads(engine_error_body("chat", status, "application/json", body))["error"]
    assert (found["message"], found["type"], found["code"]) == (message, kind, code)
    assert set(found) == {"message", "type", "param", "code"}
    found = json.loads(engine_error_body("messages", status, "application/json", body))
    assert (found["type"], found["error"]["message"]) == ("error", message)
    assert set(found["error"]) == {"type", "message"}


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "invalid_request_error"), (401, "authentication_error"), (403, "permission_error"), (404, "not_found_error"),
     (413, "request_too_large"), (418, "invalid_request_error"), (429, "rate_limit_error"), (500, "api_error"),
     (502, "api_error"), (503, "overloaded_error"), (504, "timeout_error"), (529, "overloaded_error")],
)  # fmt: skip
def test_the_anthropic_type_of_a_status(status, kind):
    assert json.loads(engine_error_body("messages", status, "text/plain", b"x"))["error"]["type"] == kind


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        (
            "text/html",
            b"<html><head><title>502</title><style>p{}</style></head><body><h1>Bad Gateway</h1><script>x()</script></body>",
        ),
        ("text/plain", b"\n <!DOCTYPE html><p>502 Bad Gateway</p><SCRIPT type='x'>x()</SCRIPT>"),
        ("TEXT/HTML; charset=utf-8", b"502 <b\nid=1>Bad Gateway</b>"),
    ],
)
def test_markup_is_never_shown(content_type, body):
    message = json.loads(engine_error_body("chat", 502, content_type, body))["error"]["message"]
    assert message == "the engine answered with status 502: 502 Bad Gateway"


def test_long_words_of_an_engine_are_cut():
    for body in (
        b"x" * 100_000,
        json.dumps({"message": "x" * 100_000}).encode(),
        json.dumps({"detail": ["x" * 9999] * 9}).encode(),
    ):
        message = json.loads(engine_error_body("chat", 500, "text/plain", body))["error"]["message"]
        assert len(message) <= 4 * EXCERPT_CHARACTERS + 50


@pytest.mark.parametrize("entry", [{"msg": "bad", "loc": None}, {"msg": None, "loc": "body"}, {"msg": "bad", "loc": 3}])
def test_an_odd_entry_of_a_validation_list(entry):
    body = json.dumps({"detail": [entry]}).encode()
    assert json.loads(engine_error_body("chat", 422, "application/json", body))["error"]["message"]


@pytest.mark.parametrize("body", [b'{"error":[""]}', b'{"detail":[""]}', b'{"detail":[{"msg":""}]}'])
def test_an_engine_without_words_gets_some(body):  # BUG: the message is empty, a shape that no client expects
    assert json.loads(engine_error_body("chat", 500, "application/json", body))["error"]["message"]


DETAILS = VALUES.map(lambda v: b'{"detail":[{"msg":"m","loc":' + v + b"}]}")


@given(
    VALUES | DETAILS | st.binary(max_size=40) | VALUES.map(lambda v: b'{"error":' + v + b"}"),
    st.sampled_from(["chat", "messages"]),
)
def test_no_body_of_an_engine_makes_it_fail(body, protocol):
    found = engine_error_body(protocol, 500, "application/json", body)
    assert found is None or json.loads(found)["error"]["message"]
