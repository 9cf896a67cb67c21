"""One request of a client, as the request path sees it, and the beginning of its record; `api/exchange.py` has the real one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from switchyard.errors import GatewayError
from switchyard.telemetry.record import Record
from switchyard.upstream.connection import Headers
from switchyard.upstream.relay import Client


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One path of the data plane.

    Attributes:
        path: as clients ask for it; also the path at the engine.
        protocol: family of its body.
        counting: it only counts tokens; its failures say nothing about an engine.
    """

    path: str
    protocol: str
    counting: bool = False


class Exchange(Client, Protocol):
    """One request of a client and the way back to it."""

    method: bytes
    target: bytes
    headers: Headers
    body: bytes
    request_id: str
    client_request_id: str
    key_name: str
    client_left: bool
    received_s: float
    endpoint: Endpoint

    @property
    def address(self) -> str:
        """The client's address, without its port."""

    @property
    def answered(self) -> bool:
        """Whether the head of an answer has been sent."""

    def refuse(self, error: GatewayError, headers: Headers) -> None:
        """Answer with an error of the gateway's own, in the endpoint's shape."""

    def pass_error(self, status: int, headers: Headers, body: bytes) -> None:
        """Answer with an engine's error: untouched where it has the endpoint's shape, else wrapped in it."""


def open_record(exchange: Exchange, headers: Mapping[str, str]) -> Record:
    """The record of a request that has just come."""
    return Record(
        id=exchange.request_id,
        path=exchange.endpoint.path,
        protocol=exchange.endpoint.protocol,
        began_s=exchange.received_s,
        client_id=exchange.client_request_id,
        key_name=exchange.key_name,
        case=headers.get("x-switchyard-case", "")[:128],
        request_bytes=len(exchange.body),
    )


def as_text(headers: Headers) -> dict[str, str]:
    """Headers by name; of a repeated one the last."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
