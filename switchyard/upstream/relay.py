"""From an engine's answer to the client: each piece as it comes, with back-pressure both ways."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec

from switchyard.errors import GatewayError
from switchyard.upstream.connection import Headers, Response
from switchyard.upstream.sse import AnswerReader, EventSplitter, event_data


class Client(Protocol):
    """The client's side of a request, as far as relaying needs it."""

    def start(self, status: int, headers: Headers, length: int | None) -> None:
        """Status and headers of the answer; a body of unknown length when `length` is None."""

    def write(self, data: bytes) -> None:
        """A piece of the body."""

    def finish(self) -> None:
        """The body is complete."""

    def break_off(self, error: GatewayError, between_events: bool, tail: bytes) -> None:
        """The body can't be completed: say so in the stream, or end the connection where no stream is.

        Args:
            error: what happened.
            between_events: whether the stream stands at the end of an event.
            tail: the last bytes of the engine's stream.
        """

    def on_pressure(self, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        """Whom to call when the client reads slower than the engine writes, and when it has caught up."""


class Relay:
    """A sink that passes an answer on to a client.

    Args:
        client: who gets it.
        reader: looks at each piece.
        hide_usage: take out the usage event that the gateway asked for and the client didn't.
    """

    def __init__(self, client: Client, reader: AnswerReader, hide_usage: bool = False) -> None:
        self._client = client
        self._reader = reader
        self._splitter = EventSplitter() if hide_usage else None
        self._done: asyncio.Future[GatewayError | None] = asyncio.get_running_loop().create_future()

    async def run(self, response: Response) -> GatewayError | None:
        """Pass on the whole body; gives the error when it broke off after the client's answer had begun."""
        self._client.on_pressure(response.pause, response.resume)
        response.pipe(self)
        return await self._done

    def feed(self, data: bytes) -> None:
        """See `Sink`."""
        self._reader.see(data)
        if self._splitter is None:
            self._client.write(data)
        else:
            kept = b"".join(e for e in self._splitter.feed(data) if not is_usage_only(e))
            if kept:
                self._client.write(kept)

    def end(self) -> None:
        """See `Sink`."""
        if self._splitter is not None and (rest := self._splitter.rest()):
            self._client.write(rest)
        self._client.finish()
        self._settle(None)

    def fail(self, error: GatewayError) -> None:
        """See `Sink`."""
        # With a splitter only whole events have gone out.
        between_events = self._splitter is not None or self._reader.between_events
        self._client.break_off(error, between_events, self._reader.tail)
        self._settle(error)

    def _settle(self, error: GatewayError | None) -> None:
        if not self._done.done():
            self._done.set_result(error)


class _UsageEvent(msgspec.Struct):
    choices: list[msgspec.Raw] | None = None
    usage: msgspec.Raw = msgspec.Raw(b"null")


_USAGE_EVENT = msgspec.json.Decoder(_UsageEvent)


def is_usage_only(event: bytes) -> bool:
    """Whether a chat or completions event carries usage and no choice."""
    if b'"usage"' not in event:
        return False
    try:
        found = _USAGE_EVENT.decode(event_data(event))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
    return not found.choices and bytes(found.usage) != b"null"
