"""Requests on whose end two parties could disagree: refused, with the connection; nothing of them is served or sent on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .client import Client, Connection, ask, request_bytes
from .engine import Engine, chunk
from .gateway import Gateway, policy, pool

INNER = b"GET /admin/decisions HTTP/1.1\r\nhost: x\r\n\r\n"
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine() as engine:
        yield engine


@pytest.fixture(scope="module")
def gateway(engine: Engine) -> Iterator[Gateway]:
    with Gateway(policy({"small": pool(engine)})) as gateway:
        yield gateway


def answers(connection: Connection) -> bytes:
    """All that comes until the gateway closes; fails when it doesn't."""
    connection.socket.settimeout(5)
    return connection.read_to_end()


@pytest.mark.parametrize(
    "raw",
    [
        HEAD + b"content-length: 6\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + INNER,
        HEAD + b"transfer-encoding: chunked\r\ncontent-length: 6\r\n\r\n0\r\n\r\n" + INNER,
        HEAD + b"content-length: 5\r\ncontent-length: 6\r\n\r\n{}    " + INNER,
        HEAD + b"content-length: 2\r\ncontent-length: 2\r\n\r\n{}" + INNER,
        HEAD + b"content-length: 2, 2\r\n\r\n{}" + INNER,
        HEAD + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n" + INNER,
        HEAD + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n" + INNER,
        HEAD + b"transfer-encoding: chunked\r\ntransfer-encoding: cow\r\n\r\n0\r\n\r\n" + INNER,
        HEAD + b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n" + INNER,
        HEAD + b"content-length : 2\r\n\r\n{}" + INNER,
        HEAD + b"content-length: +2\r\n\r\n{}" + INNER,
        HEAD + b"content-length: -2\r\n\r\n{}" + INNER,
        HEAD + b"content-length: 0x2\r\n\r\n{}" + INNER,
        HEAD + b"content-length: 99999999999999999999999999\r\n\r\n{}" + INNER,
        HEAD + b"content-length: 2 2\r\n\r\n{}" + INNER,
        HEAD + b"transfer-encoding: chunked\r\n\r\n2\n{}\n0\n\n" + INNER,
        HEAD + b"transfer-encoding: chunked\r\n\r\n2;\n{}\r\n0\r\n\r\n" + INNER,
        HEAD + b"transfer-encoding: chunked\r\n\r\n 2\r\n{}\r\n0\r\n\r\n" + INNER,
        HEAD + b"transfer-encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n" + INNER,
        HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\n{}XX0\r\n\r\n" + INNER,
        HEAD + b"transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n{}\r\n0\r\n\r\n" + INNER,
        HEAD + b"x-nul: a\0b\r\ncontent-length: 2\r\n\r\n{}" + INNER,
        HEAD + b"x-cr: a\rb\r\ncontent-length: 2\r\n\r\n{}" + INNER,
        HEAD + b" folded: x\r\ncontent-length: 2\r\n\r\n{}" + INNER,
        HEAD + b"no colon\r\ncontent-length: 2\r\n\r\n{}" + INNER,
        HEAD + b": no name\r\ncontent-length: 2\r\n\r\n{}" + INNER,
        HEAD + b"bad name: x\r\ncontent-length: 2\r\n\r\n{}" + INNER,
        b"POST /v1/chat/completions HTTP/1.1 \r\nhost: x\r\ncontent-length: 2\r\n\r\n{}" + INNER,
        b"POST /v1/chat/completions HTTP/9.9\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}" + INNER,
        b"POST /v1/chat completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}" + INNER,
    ],
)  # fmt: skip
def test_it_is_refused_and_the_rest_is_not_read(client: Client, engine: Engine, raw: bytes) -> None:
    connection = client.open()
    connection.send(raw)
    came = answers(connection)
    assert came.startswith(b"HTTP/1.1 400 "), came
    assert came.count(b"HTTP/1.1 ") == 1, came
    assert engine.work == []


def test_a_body_with_a_get_is_no_second_request(client: Client, engine: Engine) -> None:
    """What stands in a body is a body, whatever the method."""
    connection = client.open()
    connection.ask("/v1/chat/completions", INNER, method="GET")
    came = answers(connection)
    assert came.startswith(b"HTTP/1.1 405 ")
    assert came.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("path", ["/healthz", "/v1/models", "/nowhere"])
def test_a_body_that_nobody_reads_is_no_second_request(client: Client, path: str) -> None:
    connection = client.open()
    connection.ask(path, INNER, [("connection", "close")], method="GET")
    assert answers(connection).count(b"HTTP/1.1 ") == 1


def test_trailers_are_not_headers(client: Client, engine: Engine) -> None:
    raw = request_bytes(*ask("chat"))
    body = raw.partition(b"\r\n\r\n")[2]
    connection = client.open()
    trailer = b"0\r\nx-switchyard-pool: other\r\ncontent-length: 5\r\n\r\n"
    connection.send(HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunk(body) + trailer)
    answer = connection.answer()
    assert answer.status in {200, 400}
    if answer.status == 200:
        assert engine.last.all("content-length") == [str(len(engine.last.body))]
        assert engine.last.all("x-switchyard-pool") == []


def test_what_goes_on_is_unambiguous(client: Client, engine: Engine) -> None:
    """Chunk extensions, odd but legal: the engine gets one fresh length."""
    body = request_bytes(*ask("chat")).partition(b"\r\n\r\n")[2]
    connection = client.open()
    connection.send(HEAD + b'transfer-encoding: CHUNKED\r\n\r\n%x;name="v"\r\n%b\r\n0\r\n\r\n' % (len(body), body))
    assert connection.answer().status == 200
    assert engine.last.all("transfer-encoding") == []
    assert engine.last.all("content-length") == [str(len(engine.last.body))]


def test_an_engines_ambiguous_answer_is_not_passed(client: Client, engine: Engine) -> None:
    """The other side can be odd as well."""
    for raw in (
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}x",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: a\0b\r\ncontent-length: 2\r\n\r\n{}",
    ):
        engine.play([raw])
        assert client.post(*ask("chat")).status == 502, raw


def test_bytes_after_an_answer_are_no_answer(client: Client, engine: Engine) -> None:
    """An engine that sends too much poisons nothing: the next request gets a fresh connection."""
    engine.play(
        [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\npoisoned"],
        [b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfine"],
    )
    first = client.post(*ask("chat"))
    assert first.body == b"{}" or first.status == 502
    assert client.post(*ask("chat")).body == b"fine"
