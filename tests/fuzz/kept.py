"""Inputs that once broke a rule, made short. What was wrong stands in the name."""

from __future__ import annotations

from typing import NamedTuple

from .seeds import request


class Kept(NamedTuple):
    """An input that failed; `target` is a key of `targets.TARGETS`."""

    name: str
    target: str
    data: bytes


MODELS = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"
OFFER = b"connection: upgrade\r\nupgrade: h2c\r\n"
IN_ONE, APART = b"\x00\x00\x00\x00", b"\x08"
"""Choices of the target `front`: all bytes in one piece, or a first piece of so many bytes and time to answer it."""

KEPT = [
    Kept(
        "uvicorn's timer of an answered request cut the next one",
        "front",
        APART + bytes([len(MODELS), 0, 0]) + MODELS + request(),
    ),
    Kept(
        "trailers became headers, for the engine too",
        "front",
        IN_ONE + b"POST /v1/score HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nx-t: 1\r\n\r\n",
    ),
    Kept("an offer to upgrade lost the body", "front", IN_ONE + request(lines=OFFER.decode())),
    Kept(
        "an offer to upgrade lost a chunked body",
        "front",
        IN_ONE + b"POST /v1/score HTTP/1.1\r\nhost: x\r\n" + OFFER + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    ),
    Kept("a long body after an offer to upgrade", "front", IN_ONE + request(body=b"x" * 5000, lines=OFFER.decode())),
    Kept(
        "bytes after an answered offer to upgrade kept the connection for ever",
        "front",
        APART
        + b"\x60\x00\x00"
        + b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
        + b"more" * 20,
    ),
    Kept(
        "a stalled body for the control plane was waited for without end", "front", IN_ONE + request(target="/v1/decision")[:-1]
    ),
    Kept(
        "a request without a version was served",
        "front",
        IN_ONE + b"POST /v1/score\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}",
    ),
    Kept(
        "half an answer behind an answer got into the next one",
        "engine",
        bytes(5) + b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nco",
    ),
    Kept(
        "a broken character in a message's text was a 500", "body", b'\x00\x00{"messages":[{"role":"user","content":"\xff"}]}'
    ),
    Kept(
        "a broken character in a tool call was a 500",
        "body",
        b'\x00\x00{"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"\xff"}}]}]}',
    ),
    Kept(
        "a number beyond all integers in an engine's error",
        "envelope",
        bytes(5) + b'{"error":{"code":' + b"9" * 5000 + b"}}",
    ),
    Kept(
        "the usage that the gateway had asked for was not taken out",
        "sse",
        bytes(5) + b'data: {"choices":[],"usage":{"prompt_tokens":9}}\n\ndata: [DONE]\n\n',
    ),
]
