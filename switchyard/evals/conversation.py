"""One trial's talk with the gateway: every request is labelled, numbered and kept, whoever makes it.

A suite that brings its own client (tool-eval-bench) is given `http`, so labels and records don't depend on it.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx

SHOWN = (
    "x-request-id",
    "x-switchyard-pool",
    "x-switchyard-replica",
    "x-switchyard-reason",
    "x-switchyard-error",
    "retry-after",
)
MOST_KEPT = 4 << 20  # bytes of an answer in the raw log


class Refused(Exception):
    """The gateway or an engine gave no answer to grade: an error status, a broken body, a time-out."""


@dataclass(slots=True)
class Kept:
    """One request and what came back, for the raw log.

    Attributes:
        id: the request id that we chose; the record has it as `client_request_id`.
        status: 0 when nothing came.
        trouble: why nothing, or not all, came.
        unreachable: the gateway took no connection, or dropped it without an answer.
    """

    id: str
    path: str
    request: Any
    began_s: float
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    answer: bytearray = field(default_factory=bytearray)
    wall_s: float = 0.0
    trouble: str = ""
    unreachable: bool = False

    def as_dict(self) -> dict[str, Any]:
        """For the raw log."""
        return {**asdict(self), "answer": self.answer.decode(errors="replace")}


class Conversation:
    """What a suite needs to try a case: where to ask, as what, and with which client.

    Args:
        base_url: of the gateway, without /v1.
        model: name to ask for: a route or a pool.
        label: goes into `x-switchyard-case` and, as the session's name, into `x-session-id`.
        api_key: the gateway's key, if it wants one.
        transport: shared by all conversations of a run; stays open.
        timeout_s: longest silence.
        settings: fields for every request body, like temperature or seed.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        label: str,
        api_key: str | None,
        transport: httpx.AsyncBaseTransport,
        timeout_s: float,
        settings: dict[str, Any] | None = None,
    ) -> None:
        self.base_url, self.model, self.label = base_url, model, label
        self.timeout_s = timeout_s
        self.settings = settings or {}
        self.kept: list[Kept] = []
        headers = {"x-switchyard-case": label, "x-session-id": label, "accept-encoding": "identity"}
        if api_key is not None:
            headers["authorization"] = f"Bearer {api_key}"
        self.http = httpx.AsyncClient(
            base_url=base_url, transport=_Recording(transport, headers, label, self.kept), timeout=timeout_s
        )

    async def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        """Ask for a chat completion, not streamed; gives the first choice's message.

        Raises:
            Refused: there is no answer to grade.
        """
        asked = {"model": self.model, **self.settings, **body}
        try:
            answer = await self.http.post("/v1/chat/completions", json=asked)
        except httpx.HTTPError as error:
            raise Refused(f"{type(error).__name__}: {error}") from error
        if answer.status_code != 200:
            raise Refused(f"HTTP {answer.status_code}: {_message(answer)}")
        try:
            message = answer.json()["choices"][0]["message"]
            if not isinstance(message, dict):
                raise TypeError
        except (ValueError, LookupError, TypeError):
            raise Refused(f"the answer is no chat completion: {answer.text[:200]!r}") from None
        return message


def _message(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])[:300]
    except (ValueError, LookupError, TypeError):
        return answer.text[:300]


class _Recording(httpx.AsyncBaseTransport):
    """Adds the conversation's headers to each request and keeps what passes."""

    def __init__(self, inner: httpx.AsyncBaseTransport, headers: dict[str, str], label: str, kept: list[Kept]) -> None:
        self._inner, self._headers, self._label, self._kept = inner, headers, label, kept

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        request.headers.update(self._headers)
        request.headers["x-request-id"] = request_id = f"{self._label}@{len(self._kept)}"
        began_s = time.monotonic()
        kept = Kept(request_id, request.url.path, _parsed(request.content), time.time())
        self._kept.append(kept)
        try:
            response = await self._inner.handle_async_request(request)
        except httpx.TransportError as error:
            kept.trouble, kept.wall_s = f"{type(error).__name__}: {error}", time.monotonic() - began_s
            kept.unreachable = not isinstance(error, httpx.TimeoutException)
            raise
        kept.status = response.status_code
        kept.headers = {name: response.headers[name] for name in SHOWN if name in response.headers}
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _Tee(response.stream, kept, began_s)
        return response


class _Tee(httpx.AsyncByteStream):
    """Keeps an answer's bytes as they pass."""

    def __init__(self, stream: httpx.AsyncByteStream, kept: Kept, began_s: float) -> None:
        self._stream, self._kept, self._began_s = stream, kept, began_s

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._stream:
                if len(self._kept.answer) < MOST_KEPT:
                    self._kept.answer += piece
                yield piece
        except httpx.TransportError as error:
            self._kept.trouble = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._kept.wall_s = time.monotonic() - self._began_s

    async def aclose(self) -> None:
        await self._stream.aclose()


def _parsed(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return content.decode(errors="replace")
