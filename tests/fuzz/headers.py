"""Headers that cross, in both directions."""

from __future__ import annotations

import contextlib
import re

import httptools

from switchyard.upstream.headers import to_client, to_engine

from .choices import Choices

TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
HOP_BY_HOP = {
    b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade",
    b"proxy-authenticate",
}  # fmt: skip
CREDENTIALS = {b"authorization", b"proxy-authorization", b"x-api-key", b"api-key", b"x-goog-api-key", b"cookie"}


def assert_sane(name: bytes, value: bytes) -> None:
    """Nothing that could end a line is in a header that the parser let through."""
    assert TOKEN.fullmatch(name), name
    assert not re.search(rb"[\r\n\0]", value), (name, value)


class _Head:
    """Headers as a parser gives them, in lower case."""

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.complete:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.complete = True


def headers(data: bytes) -> None:
    """No header of a client or an engine ends a line, names a hop, or carries a credential to the other side."""
    choices = Choices(data)
    key = "sk-pool" if choices.below(2) else None
    lines = choices.rest()[:8000]
    asked = _parse_head(httptools.HttpRequestParser, b"POST /v1/chat/completions?x=1 HTTP/1.1\r\n", lines)
    if asked is not None:
        _check_to_engine(asked, key)
    answered = _parse_head(httptools.HttpResponseParser, b"HTTP/1.1 200 OK\r\n", lines)
    if answered is not None:
        named = _named_by_connection(answered)
        for name, value in to_client(answered):
            assert_sane(name, value)
            assert name not in HOP_BY_HOP | named | {b"content-length"}, name


def _parse_head(parser: type, first: bytes, lines: bytes) -> list[tuple[bytes, bytes]] | None:
    head = _Head()
    with contextlib.suppress(httptools.HttpParserError, httptools.HttpParserUpgrade):
        parser(head).feed_data(first + lines + b"\r\n\r\n")
    return head.headers if head.complete else None


def _named_by_connection(found: list[tuple[bytes, bytes]]) -> set[bytes]:
    named = {part.strip().lower() for name, value in found if name == b"connection" for part in value.split(b",")}
    return named - {b"close", b"keep-alive", b""}


def _check_to_engine(asked: list[tuple[bytes, bytes]], key: str | None) -> None:
    for name, value in asked:
        assert_sane(name, value)
    raw = to_engine(
        b"POST", b"/v1/chat/completions?x=1", asked, host=b"engine:80", length=12, key=key, extra=(b"x-request-id: r-1",)
    )
    assert raw.endswith(b"\r\n\r\n")
    first, *rest = raw[:-4].split(b"\r\n")
    assert first == b"POST /v1/chat/completions?x=1 HTTP/1.1"
    sent: list[tuple[bytes, bytes]] = []
    for line in rest:
        assert b"\r" not in line
        assert b"\n" not in line
        name, colon, value = line.partition(b": ")
        assert colon, line
        assert_sane(name, value)
        sent.append((name, value))
    own = {b"host": b"engine:80", b"content-length": b"12", b"x-request-id": b"r-1"}
    if key is not None:
        own[b"authorization"] = b"Bearer sk-pool"
    for name, value in own.items():
        assert [v for n, v in sent if n == name] == [value], name
    passed = [pair for pair in sent if pair[0] not in own]
    named = _named_by_connection(asked)
    for name, _ in passed:
        assert name not in HOP_BY_HOP | CREDENTIALS | named | {b"expect"}, name
    kept = [pair for pair in asked if pair in passed]
    assert passed == kept, "a header was changed, or its order"
