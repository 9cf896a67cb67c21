"""From an engine's answer to the client: each piece as it comes, with back-pressure both ways."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
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


class Step(Protocol):
    """Something that a stream passes on its way: whole events come out of it."""

    def feed(self, data: bytes) -> bytes:
        """What goes on with these bytes."""

    def end(self) -> bytes:
        """What goes on when nothing more comes."""


class HideUsage:
    """Takes out the usage event that the gateway asked for and the client didn't."""

    def __init__(self) -> None:
        self._splitter = EventSplitter()

    def feed(self, data: bytes) -> bytes:
        """See `Step`."""
        return b"".join(event for event in self._splitter.feed(data) if not is_usage_only(event))

    def end(self) -> bytes:
        """See `Step`."""
        return self._splitter.rest()


class Relay:
    """A sink that passes an answer on to a client.

    Args:
        client: who gets it.
        reader: looks at each piece as it comes from the engine.
        steps: what the bytes pass on the way; without any they go on as they are, whatever they are.
        is_over: asked after each piece when there are steps; True ends the relay without ending the client's answer.
    """

    def __init__(
        self, client: Client, reader: AnswerReader, steps: Sequence[Step] = (), is_over: Callable[[], bool] = lambda: False
    ) -> None:
        self._client = client
        self._reader = reader
        self._steps = steps
        self._is_over = is_over
        self._over = False
        self._error: GatewayError | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def run(self, response: Response) -> GatewayError | None:
        """Pass on the whole body; gives the error when it broke off after the client's answer had begun."""
        self._client.on_pressure(response.pause, response.resume)
        response.pipe(self)
        if not self._over:  # a short answer is complete by now
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._over = True
        return self._error

    def feed(self, data: bytes) -> None:
        """See `Sink`."""
        self._reader.see(data)
        if self._steps:
            if self._over:
                return
            for step in self._steps:
                data = step.feed(data)
            if data:
                self._client.write(data)
            if self._is_over():
                self._settle(None)
        else:
            self._client.write(data)

    def end(self) -> None:
        """See `Sink`."""
        if self._over:
            return
        rest = b""
        for step in self._steps:
            rest = (step.feed(rest) if rest else b"") + step.end()
        if rest:
            self._client.write(rest)
        if not self._is_over():
            self._client.finish()
        self._settle(None)

    def fail(self, error: GatewayError) -> None:
        """See `Sink`."""
        if self._over:
            return
        between_events = bool(self._steps) or self._reader.between_events  # steps let whole events out
        self._client.break_off(error, between_events, self._reader.tail)
        self._settle(error)

    def _settle(self, error: GatewayError | None) -> None:
        if self._over:
            return
        self._over, self._error = True, error
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


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
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return not found.choices and bytes(found.usage) != b"null"
