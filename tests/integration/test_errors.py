"""Errors: each in the endpoint's own shape, with the right status, saying whose fault it is; engines' own pass on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from .client import PATHS, Answer, Client, ask, error_of
from .engine import JSON_TYPE, Engine, Pairs, reply
from .gateway import Gateway, policy, pool

KINDS = pytest.mark.parametrize("kind", sorted(PATHS))
OPENAI = {"error": {"message": "max_tokens is too large", "type": "BadRequestError", "param": "max_tokens", "code": 400}}
ANTHROPIC = {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long"}}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine() as engine:
        yield engine


@pytest.fixture(scope="module")
def gateway(engine: Engine) -> Iterator[Gateway]:
    pools = {"small": pool(engine, accepts=["tools"]), "chats": pool(engine, speaks=["chat"])}
    classified = {"classify": [{"type": "embedded"}], "choose": [{"p_at_least": 0.5, "use": "small"}, {"use": "chats"}]}
    with Gateway(policy(pools, {"auto": classified})) as gateway:
        yield gateway


def refusal(kind: str, answer: Answer, status: int, code: str) -> dict[str, Any]:
    """An error of the gateway's own; gives the inner object."""
    assert (answer.status, answer.code) == (status, code)
    assert answer.header("content-type") == "application/json"
    error = error_of(kind, answer.json())
    if kind not in {"messages", "count"}:
        assert error["code"] == code
    return error


# ---- the client's faults ----


@KINDS
@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'"hi"', b"null", b"17", b'{"model":"small"', b'{"model":"small"}x', b"\xff\xfe{}", b"{'model':'small'}",
     b'\xef\xbb\xbf{"model":"small"}', b'{"model":"small",}'],
)  # fmt: skip
def test_no_json_object(client: Client, engine: Engine, kind: str, body: bytes) -> None:
    answer = client.post(PATHS[kind], body)
    error = refusal(kind, answer, 400, "invalid_request")
    assert error["type"] == "invalid_request_error"
    assert engine.work == []


@KINDS
@pytest.mark.parametrize("model", ["null", "5", '""', "[]", '{"a":1}', None])
def test_no_model_name(client: Client, engine: Engine, kind: str, model: str | None) -> None:
    answer = client.post(PATHS[kind], f'{{"model":{model}}}'.encode() if model else b'{"messages":[]}')
    error = refusal(kind, answer, 400, "invalid_request")
    assert "model" in error["message"]
    if kind == "chat":
        assert error["param"] == "model"
    assert engine.work == []


@KINDS
@pytest.mark.parametrize(
    "model", ["nobody", "../admin", "http://h/v1", "a%2f..%2fb", "x?y#z", "small ", "SMALL", "\ud83d", "x" * 5000]
)
def test_an_unknown_model(client: Client, engine: Engine, kind: str, model: str) -> None:
    answer = client.post(PATHS[kind], {"model": model, "messages": []})
    error = refusal(kind, answer, 404, "model_not_found")
    assert "small" in error["message"], "what is there is said"
    assert len(answer.body) < 2000
    assert engine.work == []


@pytest.mark.parametrize("key", [b'"model"', b'"mo\\u0064el"'])
def test_the_model_twice(client: Client, engine: Engine, key: bytes) -> None:
    """Engines differ in which one counts, so neither does."""
    answer = client.post(PATHS["chat"], b'{"model":"small","messages":[],%b:"chats"}' % key)
    refusal("chat", answer, 400, "invalid_request")
    assert engine.work == []


@pytest.mark.parametrize("model", ["small", "auto"])
@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"%b","messages":[{"role":"user","content":"\xff"}]}',
        b'{"model":"%b","messages":[{"role":"\xff","content":"hi"}]}',
        b'{"model":"%b","messages":[{"role":"user","content":[{"type":"text","text":"\xc3"}]}]}',
        b'{"model":"%b","messages":[{"role":"assistant","tool_calls":[{"function":{"name":"\xff","arguments":"{}"}}]}]}',
        b'{"model":"%b","messages":[{"role":"tool","content":"\xff"}]}',
        b'{"model":"%b","messages":[],"tools":[{"function":{"name":"\xff"}}]}',
        b'{"model":"%b","messages":[],"metadata":{"user_id":"\xff"}}',
        b'{"model":"%b","messages":[],"max_tokens":"\xff"}',
        b'{"model":"%b","messages":[],"\xff":1}',
        b'{"model":"\xff","messages":[],"x":"%b"}',
    ],
)
def test_broken_utf8_is_no_fault_of_the_gateway(client: Client, engine: Engine, model: str, body: bytes) -> None:
    """Served by the engine's verdict, or refused with 400 or 404; never a 500."""
    engine.play(reply({}))
    for kind in ("chat", "messages"):
        answer = client.post(PATHS[kind], body % model.encode())
        assert answer.status in {200, 400, 404}, answer
        if answer.status != 200:
            error_of(kind, answer.json())


@pytest.mark.parametrize("type_", [None, "text/plain", "application/json; charset=utf-16", "application/x-www-form-urlencoded"])
def test_the_content_type_does_not_matter(client: Client, engine: Engine, type_: str | None) -> None:
    connection = client.open()
    body = json.dumps(ask("chat")[1]).encode()
    line = f"content-type: {type_}\r\n" if type_ else ""
    connection.send(
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{line}content-length: {len(body)}\r\n\r\n".encode() + body
    )
    assert connection.answer().status == 200
    assert engine.last.all("content-type") == ([type_] if type_ else [])


@pytest.mark.parametrize(
    "messages", ["hi", 5, None, {}, [1, "x", None, [], {}], [{"role": 1, "content": 2}], [{"content": [[]]}]]
)
@pytest.mark.parametrize("kind", ["chat", "messages", "responses"])
def test_odd_messages_are_the_engines_to_judge(client: Client, engine: Engine, kind: str, messages: Any) -> None:
    engine.play(reply({}))
    path, body = ask(kind, model="auto")
    body["input" if kind == "responses" else "messages"] = messages
    answer = client.post(path, body)
    assert answer.status == 200, answer
    assert engine.last.json() == body | {"model": "acme/small"}


@pytest.mark.parametrize("stream", ["true", 1, None, {}])
def test_odd_values_of_stream_are_the_engines_to_judge(client: Client, engine: Engine, stream: Any) -> None:
    engine.play(reply({}))
    path, body = ask("chat", stream=stream)
    assert client.post(path, body).status == 200
    assert engine.last.json()["stream"] == stream


@KINDS
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_a_wrong_method(client: Client, engine: Engine, kind: str, method: str) -> None:
    refusal(kind, client.get(PATHS[kind], method=method), 405, "method_not_allowed")


def test_head_has_no_body(client: Client, engine: Engine) -> None:
    """RFC 9110 9.3.2: a client takes what follows for the next answer."""
    for path, status in ((PATHS["chat"], 405), ("/", 200), ("/healthz", 200), ("/readyz", 200), ("/nowhere", 404)):
        connection = client.open()
        connection.ask(path, method="HEAD")
        assert connection.answer(to_head=True).status == status, path
        connection.socket.settimeout(0.15)
        try:
            rest = connection.socket.recv(100)
        except TimeoutError:
            rest = b""
        assert rest == b"", path


@pytest.mark.parametrize(
    "path", ["/v1/nothing", "/v1/chat/completions/", "/v1", "/V1/CHAT/COMPLETIONS", "/v1/chat", "/v1/audio/speech"]
)
def test_an_unknown_path(client: Client, engine: Engine, path: str) -> None:
    refusal("chat", client.post(path, ask("chat")[1]), 404, "endpoint_not_found")
    assert engine.work == []


def test_a_protocol_that_no_pool_speaks(client: Client, engine: Engine) -> None:
    error = refusal("messages", client.post(*ask("messages", model="chats")), 404, "endpoint_not_found")
    assert "messages" in error["message"]
    assert engine.work == []


# ---- the engine's faults ----


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422, 429, 500, 502, 503, 529])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("kind", "body"), [("chat", OPENAI), ("responses", OPENAI), ("embeddings", OPENAI), ("messages", ANTHROPIC)]
)
def test_an_error_of_the_right_shape_passes_untouched(
    client: Client, engine: Engine, kind: str, body: dict[str, Any], stream: bool, status: int
) -> None:
    written = json.dumps(body, indent=3).encode()
    engine.play(
        reply(written, status, [("content-type", "application/json; charset=utf-8"), ("retry-after", "7"), ("x-own", "1")])
    )
    answer = client.post(*ask(kind, stream=stream))
    assert (answer.status, answer.body) == (status, written)
    assert answer.header("content-type") == "application/json; charset=utf-8"
    assert (answer.header("retry-after"), answer.header("x-own")) == ("7", "1")
    assert answer.code is None, "it is not the gateway's"
    assert answer.pool == "small"


@pytest.mark.parametrize("kind", ["chat", "messages", "responses"])
@pytest.mark.parametrize(
    ("status", "body", "headers", "words"),
    [
        (502, b"<html><head><style>x{}</style></head><body><h1>Bad Gateway</h1></body></html>", [("content-type", "text/html")],
         "Bad Gateway"),
        (500, b"Internal Server Error", [("content-type", "text/plain")], "Internal Server Error"),
        (403, b"", [], "403"),
        (400, b'{"object":"error","message":"maximum context length is 10","code":400}', [JSON_TYPE], "maximum context length"),
        (422, b'{"detail":[{"loc":["body","messages"],"msg":"field required"}]}', [JSON_TYPE], "field required"),
        (404, b'{"detail":"Not Found"}', [JSON_TYPE], "Not Found"),
        (500, b'{"error":"out of memory"}', [JSON_TYPE], "out of memory"),
        (500, b'{"error":null}', [JSON_TYPE], ""),
        (500, b"\xff\xfe\x00", [JSON_TYPE], "500"),
        (503, b"x" * 5_000_000, [("content-type", "text/plain")], "xxx"),
        (500, b'{"error":{"message":""}}', [JSON_TYPE], ""),
        (400, b"[" * 50_000, [JSON_TYPE], "400"),
    ],
)  # fmt: skip
def test_any_other_error_is_put_into_the_shape(
    client: Client, engine: Engine, kind: str, status: int, body: bytes, headers: Pairs, words: str
) -> None:
    engine.play(reply(body, status, headers))
    answer = client.post(*ask(kind, stream=True))
    assert answer.status == status
    assert answer.header("content-type") == "application/json"
    error = error_of(kind, answer.json())
    assert words in error["message"]
    assert "<" not in error["message"]
    assert len(error["message"]) < 2000


@pytest.mark.parametrize("kind", ["chat", "messages"])
def test_the_other_protocols_error_is_put_into_the_shape(client: Client, engine: Engine, kind: str) -> None:
    """vLLM answers OpenAI-shaped on /v1/messages for missing fields, and llama.cpp always."""
    engine.play(reply({"error": {"message": "no", "type": "BadRequestError", "param": None, "code": 400}}, 400))
    assert error_of(kind, client.post(*ask(kind)).json())["message"] == "no"


def test_an_error_with_status_200_passes(client: Client, engine: Engine) -> None:
    engine.play(reply({"error": {"message": "x", "code": 502}}))
    answer = client.post(*ask("chat"))
    assert (answer.status, answer.json()) == (200, {"error": {"message": "x", "code": 502}})


@pytest.mark.parametrize("kind", ["chat", "messages", "count"])
@pytest.mark.parametrize("status", [301, 302, 307, 308, 304, 300])
def test_a_redirect_is_not_followed_and_not_passed(client: Client, engine: Engine, kind: str, status: int) -> None:
    engine.play(reply(b"", status, [("location", "http://169.254.169.254/latest")]))
    answer = client.post(*ask(kind))
    refusal(kind, answer, 502, "upstream_unreachable")
    assert answer.header("location") is None
    assert len(engine.work) == 1


def test_a_redirect_of_a_stored_response_is_not_passed(client: Client, engine: Engine) -> None:
    path, body = ask("responses")
    id_ = client.post(path, body).json()["id"]
    engine.play_at(f"{path}/{id_}", reply(b"", 307, [("location", "http://169.254.169.254/latest")]))
    answer = client.get(f"{path}/{id_}")
    assert (answer.status, answer.header("location")) == (502, None)


def test_an_overflow_is_no_fault_of_the_replica(client: Client, gateway: Gateway, engine: Engine) -> None:
    engine.play(
        reply(
            {"error": {"message": "This model's maximum context length is 10 tokens", "type": "BadRequestError", "code": 400}},
            400,
        )
    )
    for _ in range(15):
        answer = client.post(*ask("chat"))
        assert (answer.status, answer.json()["error"]["message"][:29]) == (400, "This model's maximum context ")
    assert gateway.metric("switchyard_replica_up", pool="small") == 1
    assert len(engine.work) == 15


# ---- the record ----


def test_errors_are_counted_by_their_code(client: Client, gateway: Gateway, engine: Engine) -> None:
    before = gateway.metric("switchyard_errors_total", code="model_not_found")
    client.post(*ask("chat", model="nobody"))
    assert gateway.metric("switchyard_errors_total", code="model_not_found") == before + 1
    record = gateway.record()
    assert (record["outcome"], record["error"], record["status"]) == ("refused", "model_not_found", 404)
    engine.play(reply(OPENAI, 400))
    client.post(*ask("chat"))
    record = gateway.record()
    assert (record["outcome"], record["error"], record["status"]) == ("engine_error", "", 400)
