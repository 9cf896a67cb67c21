"""HTTP/1.1 read strictly, by RFC 9112 and independently of the gateway's parser: requests and answers in a byte stream."""

from __future__ import annotations

import re
from dataclasses import dataclass

from switchyard.api.endpoints import ENDPOINTS, STORED

TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_REQUEST_LINE = re.compile(rb"(" + TOKEN + rb") ([\x21-\x7e\x80-\xff]+) HTTP/(\d)\.(\d)")
_STATUS_LINE = re.compile(rb"HTTP/1\.1 (\d{3}) [\t\x20-\x7e]*")
_HEADER = re.compile(
    rb"(" + TOKEN + rb"):[ \t]*((?:[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)?)[ \t]*"
)
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,16})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?")


class Malformed(ValueError):
    """It is no HTTP/1.1."""


class _Short(Exception):
    """More bytes are to come."""


@dataclass
class Message:
    """A complete request."""

    method: bytes
    target: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes

    @property
    def for_data_plane(self) -> bool:
        path = self.target.partition(b"?")[0]
        return path in ENDPOINTS or STORED.fullmatch(path) is not None


@dataclass
class Answer:
    """An answer, as far as it came; interim ones are left out."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes
    complete: bool


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def line(self) -> bytes:
        end = self.data.find(b"\r\n", self.at)
        if end < 0:
            raise _Short
        line = self.data[self.at : end]
        self.at = end + 2
        return line

    def take(self, count: int) -> bytes:
        if len(self.data) - self.at < count:
            raise _Short
        self.at += count
        return self.data[self.at - count : self.at]

    def headers(self) -> list[tuple[bytes, bytes]]:
        found = []
        while line := self.line():
            match = _HEADER.fullmatch(line)
            if match is None:
                raise Malformed(f"no header: {line!r}")
            found.append((match[1].lower(), match[2]))
        return found

    def chunks(self) -> bytes:
        body = b""
        while True:
            size = _CHUNK.fullmatch(line := self.line())
            if size is None:
                raise Malformed(f"no chunk size: {line!r}")
            if not int(size[1], 16):
                self.headers()  # trailers
                return body
            body += self.take(int(size[1], 16))
            if self.take(2) != b"\r\n":
                raise Malformed("a chunk goes on after its end")


def read_requests(data: bytes) -> tuple[list[Message], str]:
    """The complete requests at the beginning of the data, and why the next one is none; empty when it is only short."""
    reader, found = _Reader(data), []
    try:
        while reader.at < len(data):
            found.append(_read_request(reader))
            if found[-1].method == b"CONNECT" or _closes(found[-1]):
                break
    except _Short:
        pass
    except Malformed as error:
        return found, str(error)
    return found, ""


def _closes(message: Message) -> bool:
    return any(b"close" in value.lower() for name, value in message.headers if name == b"connection")


def _read_request(reader: _Reader) -> Message:
    while not (line := reader.line()):  # empty lines before a request are to be left out (RFC 9112 2.2)
        pass
    first = _REQUEST_LINE.fullmatch(line)
    if first is None:
        raise Malformed(f"no request line: {line!r}")
    headers = reader.headers()
    lengths = [value for name, value in headers if name == b"content-length"]
    codings = [value.lower() for name, value in headers if name == b"transfer-encoding"]
    body = b""
    if codings:
        if lengths or codings != [b"chunked"]:
            raise Malformed("its length is ambiguous")
        body = reader.chunks()
    elif lengths:
        if len(lengths) > 1 or not re.fullmatch(rb"\d{1,18}", lengths[0]):
            raise Malformed("its length is no number")
        body = reader.take(int(lengths[0]))
    return Message(first[1], first[2], headers, body)


def read_answers(data: bytes) -> list[Answer]:
    """The answers in the data; the last one may be cut.

    Raises:
        Malformed: they are none.
    """
    reader, found = _Reader(data), []
    while reader.at < len(data):
        try:
            line = reader.line()
            match = _STATUS_LINE.fullmatch(line)
            if match is None:
                raise Malformed(f"no status line: {line!r}")
            pairs = reader.headers()
        except _Short:
            found.append(Answer(0, {}, b"", False))
            break
        status = int(match[1])
        names = [name for name, _ in pairs]
        framing = [n for n in names if n in {b"content-length", b"transfer-encoding"}]
        if len(framing) > 1:
            raise Malformed(f"framed twice: {pairs}")
        if status < 200:
            continue
        headers = dict(pairs)
        start = reader.at
        try:
            if headers.get(b"x-head-only") == b"1" or status in {204, 304}:
                body = b""
            elif headers.get(b"transfer-encoding") == b"chunked":
                body = reader.chunks()
            elif b"content-length" in headers:
                body = reader.take(int(headers[b"content-length"]))
            else:
                body = reader.take(len(data) - reader.at)
            found.append(Answer(status, headers, body, True))
        except _Short:
            found.append(Answer(status, headers, data[start:], False))
            break
    return found
