"""A raw client on blocking sockets: sends any bytes, reads as slowly as it likes, leaves when it likes.

Also what tests read answers with: event streams by the SSE specification, and the error shapes of the protocols.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

Pairs = Iterable[tuple[str, str]]
PROTOCOLS = ("chat", "responses", "messages")
"""Those with event streams and error events of their own."""
PATHS = {
    "chat": "/v1/chat/completions", "completions": "/v1/completions", "responses": "/v1/responses", "messages": "/v1/messages",
    "count": "/v1/messages/count_tokens", "embeddings": "/v1/embeddings", "rerank": "/v1/rerank", "score": "/v1/score",
    "tokenize": "/tokenize",
}  # fmt: skip


def ask(kind: str, text: str = "hi", model: str = "small", **more: Any) -> tuple[str, dict[str, Any]]:
    """Path and body of an endpoint, by its short name."""
    messages = [{"role": "user", "content": text}]
    fields: dict[str, Any] = {
        "chat": {"messages": messages}, "messages": {"max_tokens": 32, "messages": messages}, "count": {"messages": messages},
        "responses": {"input": text}, "completions": {"prompt": text}, "embeddings": {"input": text},
        "rerank": {"query": text, "documents": [text]}, "score": {"text_1": text, "text_2": text}, "tokenize": {"prompt": text},
    }[kind]  # fmt: skip
    return PATHS[kind], {"model": model, **fields, **more}


@dataclass
class Answer:
    """An answer, as far as it came.

    Attributes:
        complete: its framing says that it ended.
    """

    status: int
    headers: list[tuple[str, str]]
    body: bytes = b""
    complete: bool = False

    def all(self, name: str) -> list[str]:
        """Every value of a header."""
        return [value for key, value in self.headers if key == name]

    def header(self, name: str) -> str | None:
        return next(iter(self.all(name)), None)

    @property
    def pool(self) -> str | None:
        return self.header("x-switchyard-pool")

    @property
    def replica(self) -> str | None:
        return self.header("x-switchyard-replica")

    @property
    def reason(self) -> str:
        return self.header("x-switchyard-reason") or ""

    @property
    def code(self) -> str | None:
        """The code of an error that the gateway made."""
        return self.header("x-switchyard-error")

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[tuple[str, str]]:
        """The events of the body: name and data."""
        return read_events(self.body)


class Connection:
    """One connection to the gateway.

    Args:
        port: on loopback.
        receive_buffer: bytes that the kernel may take for us; small for a client that doesn't read.
    """

    def __init__(self, port: int, *, receive_buffer: int | None = None, timeout_s: float = 10) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(timeout_s)
        self.socket.connect(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._read = bytearray()

    def send(self, data: bytes) -> None:
        """Any bytes."""
        self.socket.sendall(data)

    def ask(self, path: str, body: Any = None, headers: Pairs = (), *, method: str = "POST") -> None:
        """Send a request, without waiting for its answer."""
        self.send(request_bytes(path, body, headers, method=method))

    def head(self) -> Answer:
        """Wait for status and headers; interim answers are skipped."""
        while True:
            raw = self.read_until(b"\r\n\r\n")
            first, *lines = raw[:-4].decode("latin-1").split("\r\n")
            pairs = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
            answer = Answer(int(first.split(" ")[1]), pairs)
            if answer.status >= 200:
                return answer

    def answer(self, *, to_head: bool = False) -> Answer:
        """Wait for a whole answer; an incomplete one when the connection ends before."""
        return self.rest(self.head(), to_head=to_head)

    def rest(self, answer: Answer, *, to_head: bool = False) -> Answer:
        """The body of an answer whose head was read; what was read of the body already must be put in front."""
        length = answer.header("content-length")
        if to_head or answer.status in {204, 304}:
            answer.complete = True
        elif answer.header("transfer-encoding") == "chunked":
            answer.body, answer.complete = self._chunks()
        elif length is not None:
            answer.body = self._take(int(length))
            answer.complete = len(answer.body) == int(length)
        else:
            answer.body = self.read_to_end()
            answer.complete = True
        return answer

    def read_until(self, mark: bytes) -> bytes:
        """Raw bytes up to and with the mark."""
        while (at := self._read.find(mark)) < 0:
            if not self._receive():
                raise ConnectionError(f"the gateway closed; it had sent {bytes(self._read)!r}")
        data = bytes(self._read[: at + len(mark)])
        del self._read[: len(data)]
        return data

    def read_to_end(self) -> bytes:
        """Raw bytes until the gateway closes."""
        while self._receive():
            pass
        data = bytes(self._read)
        self._read.clear()
        return data

    def closed(self, within_s: float = 20) -> bool:
        """Whether the gateway closes within the time, sending nothing more."""
        self.socket.settimeout(within_s)
        try:
            return not self._receive() and not self._read
        except TimeoutError:
            return False

    def silent(self, for_s: float = 0.2) -> bool:
        """Whether nothing comes for a while, and the connection stays."""
        self.socket.settimeout(for_s)
        try:
            return self._receive() and False
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(10)

    def leave(self) -> None:
        """Close."""
        self.socket.close()

    def reset(self) -> None:
        """Close with RST."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def _receive(self) -> bool:
        try:
            data = self.socket.recv(65536)
        except ConnectionResetError:
            return False
        self._read += data
        return bool(data)

    def _take(self, count: int) -> bytes:
        while len(self._read) < count and self._receive():
            pass
        data = bytes(self._read[:count])
        del self._read[:count]
        return data

    def _chunks(self) -> tuple[bytes, bool]:
        body = bytearray()
        try:
            while size := int(self.read_until(b"\r\n"), 16):
                piece = self._take(size + 2)
                body += piece[:size]
                if len(piece) < size + 2:
                    return bytes(body), False
            self.read_until(b"\r\n")
        except ConnectionError:
            return bytes(body), False
        return bytes(body), True


class Client:
    """Opens connections; `close` closes those that a test left open.

    Args:
        port: on loopback.
        headers: sent with each request.
    """

    def __init__(self, port: int, headers: Pairs = ()) -> None:
        self.port = port
        self._headers = list(headers)
        self._opened: list[Connection] = []

    def open(self, **options: Any) -> Connection:
        connection = Connection(self.port, **options)
        self._opened.append(connection)
        return connection

    def start(self, path: str, body: Any = None, headers: Pairs = (), **options: Any) -> Connection:
        """Send a request on a connection of its own, without waiting for the answer."""
        connection = self.open(**options)
        connection.ask(path, body, [*self._headers, *headers])
        return connection

    def post(self, path: str, body: Any = None, headers: Pairs = ()) -> Answer:
        return self._once("POST", path, body, headers)

    def get(self, path: str, headers: Pairs = (), *, method: str = "GET") -> Answer:
        return self._once(method, path, None, headers)

    def _once(self, method: str, path: str, body: Any, headers: Pairs) -> Answer:
        connection = Connection(self.port)
        try:
            connection.ask(path, body, [*self._headers, *headers], method=method)
            return connection.answer(to_head=method == "HEAD")
        finally:
            connection.leave()

    def close(self) -> None:
        for connection in self._opened:
            connection.leave()
        self._opened.clear()


def request_bytes(path: str, body: Any = None, headers: Pairs = (), *, method: str = "POST", version: str = "1.1") -> bytes:
    """A request; a body that isn't bytes is sent as JSON. Content-Length is right unless given."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    pairs = list(headers)
    names = {name.lower() for name, _ in pairs}
    lines = [f"{method} {path} HTTP/{version}"]
    lines += ["host: localhost"] if "host" not in names else []
    lines += ["content-type: application/json"] if body is not None and "content-type" not in names else []
    if body is not None and not names & {"content-length", "transfer-encoding"}:
        lines.append(f"content-length: {len(data)}")
    lines += [f"{name}: {value}" for name, value in pairs]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + data


# ---- reading ----


def read_events(body: bytes) -> list[tuple[str, str]]:
    """Name and data of the complete events of a stream, by the specification."""
    events: list[tuple[str, str]] = []
    name, data = "message", []
    for line in re.split(r"\r\n|\r|\n", body.decode().removeprefix("\ufeff"))[:-1]:
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                events.append((name, "\n".join(data)))
            name, data = "message", []
        elif field == "event":
            name = value
        elif field == "data":
            data.append(value)
    return events


def error_of(kind: str, body: Any) -> dict[str, Any]:
    """The error in a body of the protocol's shape; fails when it has another."""
    error = body["error"]
    if kind in {"messages", "count"}:
        assert body["type"] == "error", body
        assert set(error) == {"type", "message"}, body
    else:
        assert set(error) >= {"message", "type", "param", "code"}, body
    assert error["message"], body
    return error


def eventually(condition: Callable[[], Any], within_s: float = 20) -> Any:
    """Wait until a condition holds; gives what it gave."""
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"it did not come true within {within_s:g} s"
        time.sleep(0.005)
    return found
