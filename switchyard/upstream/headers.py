"""Which headers cross the gateway: one function each way, for all endpoints.

Hop-by-hop headers, framing and Host belong to each connection; credentials stay on their side; everything else passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Pairs = Sequence[tuple[bytes, bytes]]

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"proxy-authenticate",
    }
)
_NOT_TO_ENGINE = _HOP_BY_HOP | {
    b"host", b"content-length", b"expect",
    b"authorization", b"proxy-authorization", b"x-api-key", b"api-key", b"x-goog-api-key", b"cookie",
    b"accept-encoding",  # answers are read on the way: they must come plain
    b"x-request-id", b"traceparent", b"tracestate", b"x-switchyard-pool", b"x-switchyard-case",
    b"x-switchyard-priority",
}  # fmt: skip
_NOT_TO_CLIENT = _HOP_BY_HOP | {b"content-length", b"date", b"server", b"x-request-id"}


def to_engine(
    method: bytes,
    path: bytes,
    headers: Pairs,
    *,
    host: bytes,
    length: int | None,
    key: str | None,
    extra: Iterable[bytes] = (),
) -> bytes:
    """The head of the request that an engine gets.

    Args:
        method: HTTP method.
        path: target, with its query.
        headers: the client's, names in lower case.
        host: value of Host.
        length: bytes of the body; None when there is no body.
        key: the pool's key; a client's own never gets here.
        extra: further complete header lines, without line end.
    """
    dropped = _with_named(_NOT_TO_ENGINE, headers)
    lines = [method + b" " + path + b" HTTP/1.1\r\nhost: " + host]
    lines += [name + b": " + value for name, value in headers if name not in dropped]
    if length is not None:
        lines.append(b"content-length: %d" % length)
    if key is not None:
        lines.append(b"authorization: Bearer " + key.encode("ascii"))
    lines += extra
    lines.append(b"\r\n")
    return b"\r\n".join(lines)


def to_client(headers: Pairs) -> list[tuple[bytes, bytes]]:
    """The engine's headers that a client gets; framing, date and the gateway's own are added elsewhere."""
    dropped = _with_named(_NOT_TO_CLIENT, headers)
    return [pair for pair in headers if pair[0] not in dropped]


def _with_named(dropped: frozenset[bytes], headers: Pairs) -> frozenset[bytes]:
    """Add the headers that a Connection header names: they are hop-by-hop too."""
    for name, value in headers:
        if name == b"connection" and value.lower() not in {b"keep-alive", b"close"}:
            dropped = dropped | {part.strip().lower() for part in value.split(b",")}
    return dropped
