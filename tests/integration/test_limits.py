"""Limits of the client's side: size, time and shape of what it sends. Exceeding one gives a prompt answer and harms nobody."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from switchyard.api import protocol

from .client import PATHS, Client, ask, error_of, eventually, request_bytes
from .engine import Engine, Gate, chunk, sse, stream
from .gateway import Gateway, policy, pool

Start = Callable[..., Any]
KINDS = pytest.mark.parametrize("kind", ["chat", "messages", "embeddings"])


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine() as engine:
        yield engine


@pytest.fixture(scope="module")
def gateway(engine: Engine) -> Iterator[Gateway]:
    with Gateway(policy({"small": pool(engine)}, max_body_mb=1)) as gateway:
        yield gateway


# ---- size ----


@KINDS
def test_a_long_body_is_refused_by_its_head(client: Client, engine: Engine, kind: str) -> None:
    """The client need not send it first."""
    connection = client.open()
    connection.send(f"POST {PATHS[kind]} HTTP/1.1\r\nhost: x\r\ncontent-length: 1048577\r\n\r\n".encode())
    answer = connection.answer()
    assert (answer.status, answer.code) == (413, "body_too_large")
    assert "1 MiB" in error_of(kind, answer.json())["message"]
    assert connection.closed()
    assert engine.work == []


def test_a_body_of_just_the_limit_is_served(client: Client, engine: Engine) -> None:
    path, body = ask("chat")
    body["x"] = "y" * (2**20 - len(json.dumps(body | {"x": ""}).encode()))
    assert len(json.dumps(body)) == 2**20
    assert client.post(path, body).status == 200
    assert engine.last.json() == body | {"model": "acme/small"}


def test_a_long_body_in_chunks_is_refused_on_the_way(client: Client, engine: Engine) -> None:
    connection = client.open()
    connection.ask(PATHS["chat"], b"", [("transfer-encoding", "chunked")])
    answer = None
    for _ in range(40):
        try:
            connection.send(chunk(b"x" * 65536))
        except ConnectionError:
            break
    answer = connection.answer()
    assert (answer.status, answer.code) == (413, "body_too_large")
    assert engine.work == []


@pytest.mark.parametrize("attempt", range(8))
def test_a_client_that_sends_it_all_first_still_reads_the_answer(client: Client, attempt: int) -> None:
    """Closing with unread bytes would reset the connection and could take the answer with it."""
    connection = client.open()
    with contextlib.suppress(ConnectionError):
        connection.ask(PATHS["chat"], b"x" * 8_000_000)
    assert connection.answer().status == 413


def test_the_decision_endpoint_has_the_same_limit(client: Client) -> None:
    answer = client.post("/v1/decision", {"model": "small", "x": "y" * 1_100_000})
    assert (answer.status, answer.code) == (413, "body_too_large")


@pytest.mark.parametrize("extra", [[("x-long", "y" * 70_000)], [(f"x-{n}", "1") for n in range(250)], [("x" * 70_000, "1")]])
@pytest.mark.parametrize("path", [PATHS["chat"], PATHS["messages"], "/healthz", "/nowhere"])
def test_a_long_head_is_refused(client: Client, engine: Engine, extra: list[tuple[str, str]], path: str) -> None:
    connection = client.open()
    connection.ask(path, ask("chat")[1], extra)
    answer = connection.answer()
    assert answer.status == 431
    assert error_of("messages" if path == PATHS["messages"] else "chat", answer.json())["message"]
    assert connection.closed()
    assert engine.work == []


def test_a_long_head_that_never_ends_is_refused(client: Client) -> None:
    """The parser keeps a header without end to itself, so its own count isn't enough."""
    connection = client.open(timeout_s=3)
    connection.send(b"POST /v1/chat/completions HTTP/1.1\r\nx-long: " + b"y" * 200_000)
    assert connection.answer().status == 431
    assert connection.closed()


def test_a_long_target_is_refused(client: Client) -> None:
    connection = client.open()
    connection.send(b"GET /" + b"y" * 200_000)
    assert connection.answer().status in {414, 431}


def test_a_head_of_agents_is_served(client: Client, engine: Engine) -> None:
    """Codex and Claude Code send some kilobytes of them."""
    given = [(f"x-header-{n}", "v" * 300) for n in range(100)]
    assert client.post(*ask("chat"), given).status == 200
    assert [(n, v) for n, v in engine.last.headers if n.startswith("x-header")] == given


# ---- time ----


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch, start: Start, engine: Engine) -> Gateway:
    """A gateway whose limits of minutes are shorter."""
    monkeypatch.setattr(protocol, "HEAD_LIMIT_S", 0.5)
    monkeypatch.setattr(protocol, "BODY_STALL_S", 0.5)
    monkeypatch.setattr(protocol, "KEEP_ALIVE_S", 1.0)
    monkeypatch.setattr("switchyard.app.CLIENT_SWEEP_S", 0.1)
    engine.reset()
    gateway: Gateway = start(Gateway(policy({"small": pool(engine)})))
    return gateway


def test_a_head_that_stalls(hasty: Gateway) -> None:
    connection = hasty.client().open()
    connection.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n")
    answer = connection.answer()
    assert answer.status == 408
    assert connection.closed()


def test_a_head_that_drips(hasty: Gateway) -> None:
    """A byte now and then doesn't buy more time."""
    connection = hasty.client().open()
    begun = time.monotonic()
    try:
        for byte in b"POST /v1/chat/completions HTTP/1.1\r\n" * 3:
            connection.send(bytes([byte]))
            time.sleep(0.05)
    except ConnectionError:
        pass
    assert time.monotonic() - begun < 4
    assert connection.answer().status == 408


@pytest.mark.parametrize("path", sorted(PATHS.values()))
def test_a_body_that_stalls(hasty: Gateway, engine: Engine, path: str) -> None:
    connection = hasty.client().open()
    connection.send(f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{{".encode())
    assert connection.answer().status == 408
    assert connection.closed()
    assert engine.work == []


@pytest.mark.parametrize("path", ["/v1/decision", "/nowhere", "/healthz"])
def test_a_body_that_stalls_on_the_control_plane(hasty: Gateway, path: str) -> None:
    connection = hasty.client().open(timeout_s=4)
    connection.send(f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{{".encode())
    assert connection.answer().status in {404, 405, 408}
    assert connection.closed()


def test_leaving_in_the_middle_of_a_body_is_no_failure(client: Client, gateway: Gateway) -> None:
    """Nor is it worth a traceback in the log."""
    for path in ("/v1/decision", "/v1/chat/completions"):
        connection = client.open()
        connection.send(f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{{".encode())
        connection.silent(0.05)
        connection.leave()
    assert client.get("/healthz").status == 200
    gateway.check()


def test_a_body_that_comes_slowly_is_served(hasty: Gateway, engine: Engine) -> None:
    """The limit is for a pause, not for the whole: a phone sends pictures for minutes."""
    path, body = ask("chat")
    raw = request_bytes(path, body)
    connection = hasty.client().open()
    begin = raw.index(b"\r\n\r\n") + 4
    connection.send(raw[:begin])
    for at in range(begin, len(raw), 10):
        connection.send(raw[at : at + 10])
        time.sleep(0.15)
    assert connection.answer().status == 200


def test_idle_connections_close(hasty: Gateway) -> None:
    connection = hasty.client().start(*ask("chat"))
    assert connection.answer().status == 200
    assert connection.closed(20)
    untouched = hasty.client().open()
    assert untouched.closed(20)


def test_a_list_asked_for_earlier_cuts_no_stream(hasty: Gateway, engine: Engine) -> None:
    """The time that an idle connection has ends with its next request, whoever served the one before."""
    connection = hasty.client().open()
    connection.ask("/v1/models", method="GET")
    assert connection.answer().status == 200
    content = [sse({"n": n}) for n in range(20)]
    engine.play(stream(*(step for event in content for step in (event, 0.1))))
    connection.ask(*ask("chat", stream=True))
    answer = connection.answer()
    assert (answer.complete, answer.body) == (True, b"".join(content))


def test_a_request_that_runs_long_is_not_late(hasty: Gateway, engine: Engine) -> None:
    gate = Gate()
    engine.play([gate, *stream(sse({"late": True}))])
    connection = hasty.client().start(*ask("chat", stream=True))
    assert connection.silent(1.6)
    gate.open()
    assert connection.answer().body == sse({"late": True})


def test_a_client_that_takes_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch, start: Start, engine: Engine) -> None:
    monkeypatch.setattr(protocol, "WRITE_STALL_S", 0.5)
    monkeypatch.setattr("switchyard.app.CLIENT_SWEEP_S", 0.1)
    engine.reset()
    gateway = start(Gateway(policy({"small": pool(engine)}), send_buffer=16_384))
    engine.play(stream(*(b"x" * 65536 for _ in range(2000))))
    connection = gateway.client().start(*ask("chat", stream=True), receive_buffer=8192)
    assert engine.wait_for(1).gone.wait(20)
    eventually(lambda: gateway.metric("switchyard_requests_total", outcome="client_left") == 1)
    connection.leave()


# ---- shape ----


def test_expect_100_continue(client: Client, engine: Engine) -> None:
    path, body = ask("chat")
    data = json.dumps(body).encode()
    connection = client.open()
    connection.ask(path, b"", [("expect", "100-continue"), ("content-length", str(len(data)))])
    assert connection.read_until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.send(data)
    assert connection.answer().status == 200
    assert engine.last.all("expect") == []


@pytest.mark.parametrize(
    ("path", "method", "length", "status"),
    [("/v1/chat/completions", "POST", 5_000_000, 413), ("/v1/chat/completions", "PUT", 10, 405), ("/nowhere", "POST", 10, 404)],
)
def test_expect_100_continue_of_what_is_refused(client: Client, path: str, method: str, length: int, status: int) -> None:
    """The answer comes at once, in place of the 100."""
    connection = client.open()
    connection.ask(path, b"", [("expect", "100-continue"), ("content-length", str(length))], method=method)
    assert connection.read_until(b"\r\n").split(b" ")[1] == str(status).encode()


def test_a_client_of_http_1_0(client: Client, engine: Engine) -> None:
    for body_of in (ask("chat"), ask("chat", stream=True)):
        connection = client.open()
        path, body = body_of
        connection.send(request_bytes(path, body, version="1.0"))
        answer = connection.answer()
        assert answer.status == 200
        assert answer.all("transfer-encoding") == []
        assert b"Hello" in answer.body
        assert connection.closed(20)


def test_connection_close_is_done(client: Client) -> None:
    connection = client.start(*ask("chat"), [("connection", "close")])
    answer = connection.answer()
    assert (answer.status, answer.header("connection")) == (200, "close")
    assert connection.closed(20)


def test_many_requests_on_one_connection(client: Client, engine: Engine) -> None:
    connection = client.open()
    for n in range(30):
        path, body = ask(("chat", "messages", "responses", "embeddings")[n % 4], stream=n % 3 == 0)
        connection.ask(path, body)
        assert connection.answer().status == 200
        if n % 5 == 0:
            connection.ask("/v1/models", method="GET")
            assert connection.answer().json()["object"] == "list"
        if n % 7 == 0:
            connection.ask(path, b"{")
            assert connection.answer().status == 400
    assert len(engine.work) == 30


@pytest.mark.parametrize("first", ["chat", "stream", "models"])
@pytest.mark.parametrize("second", ["chat", "models"])
def test_a_pipelined_request_is_answered_in_turn_or_not_at_all(client: Client, engine: Engine, first: str, second: str) -> None:
    """Never out of turn, and the connection never hangs: RFC 9112 9.3.2 lets a client send again what got no answer."""
    raw = {
        "chat": request_bytes(*ask("chat")), "stream": request_bytes(*ask("chat", stream=True)),
        "models": request_bytes("/v1/models", method="GET"),
    }  # fmt: skip
    connection = client.open()
    connection.send(raw[first] + raw[second])
    one = connection.answer()
    assert one.status == 200
    assert (b'"list"' in one.body) == (first == "models")
    connection.socket.settimeout(3)
    try:
        two = connection.answer()
    except ConnectionError:
        return
    assert two.status == 200
    assert (b'"list"' in two.body) == (second == "models")


def test_a_broken_request_harms_no_other(client: Client, gateway: Gateway) -> None:
    kept = client.start(*ask("chat"))
    assert kept.answer().status == 200
    for raw in (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\r\n\r\n\r\nnonsense\r\n\r\n",
        b"GET\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ):
        connection = client.open()
        connection.send(raw)
        assert connection.answer().status == 400
        assert connection.closed()
    kept.ask(*ask("chat"))
    assert kept.answer().status == 200
