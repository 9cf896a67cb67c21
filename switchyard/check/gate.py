"""Holds the tool calls of a stream back until each is complete and judged; everything else passes at once.

Events go out as the bytes that came, in their order; only in chat, text overtakes a call that is still open. Once a call
is bad nothing more goes out: what was released is a good beginning of an answer, and `continuation.py` goes on from it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from switchyard.check.calls import Call, Reader, Told
from switchyard.check.chat import ChatReader
from switchyard.check.events import DONE, Message, read_event, rewritten
from switchyard.check.messages import MessagesReader
from switchyard.check.responses import ResponsesReader
from switchyard.check.tools import GivenTools
from switchyard.upstream.sse import EventSplitter

MAX_HELD_BYTES = 32 * 1024 * 1024  # an event for a token takes some 250 bytes

_READERS: dict[str, Callable[[GivenTools], Reader]] = {
    "chat": ChatReader,
    "messages": MessagesReader,
    "responses": ResponsesReader,
}


class StreamGate:
    """Between an engine's stream and the client.

    Args:
        protocol: chat, messages or responses.
        tools: what the request gave.
    """

    def __init__(self, protocol: str, tools: GivenTools) -> None:
        self._splitter = EventSplitter()
        self._reader = _READERS[protocol](tools)
        self._held: deque[tuple[bytes, list[Call]]] = deque()
        self._held_bytes = 0

    @property
    def problem(self) -> str | None:
        """Why the answer must go on elsewhere, for the record; None while there is no bad call."""
        return self._reader.problem

    @property
    def ending(self) -> bool:
        """Whether the stream's own end has begun. After a problem, only its usage can then be missing."""
        return self._reader.ending

    @property
    def carried(self) -> Told:
        """What the client was told: where a continuation begins."""
        return self._reader.told

    def feed(self, data: bytes) -> bytes:
        """What may go to the client with these bytes."""
        out: list[bytes] = []
        for event in self._splitter.feed(data):
            self._take(event, out)
        return b"".join(out)

    def end(self) -> bytes:
        """What may go to the client when the engine has sent everything; this judges calls that were never ended."""
        out: list[bytes] = []
        rest = self._splitter.rest()
        if rest:
            self._take(rest, out)
        if self.problem is None and not self._reader.failed:
            self._reader.end()
            if self.problem is None:
                self._flush(out)
            else:
                self._cut(out)
        last = b"".join(out)
        if self.problem is not None and last:
            last += b"\n\n"  # the engine's last event may lack its empty line, and more events will follow
        return last

    def _take(self, event: bytes, out: list[bytes]) -> None:
        reader = self._reader
        data, messages = read_event(event)
        if reader.problem is not None:
            for message in messages:
                reader.told.note_usage(message)
            return
        touched: list[Call] = []
        may_overtake = bool(messages)
        for message in messages:
            calls, only_text = reader.read(message)
            touched += calls
            may_overtake = may_overtake and only_text
        if data == DONE and not reader.failed:
            reader.ending = True
            reader.end()
        if self._held_bytes > MAX_HELD_BYTES and reader.problem is None:
            reader.problem = f"a tool call takes more than {MAX_HELD_BYTES} bytes of the stream"
        if reader.problem is not None:
            self._held.append((event, touched))
            self._cut(out)
            return
        if reader.failed:
            self._cut(out)
            if all(call.kept for call in touched):
                self._release(event, messages, out)
            return
        self._flush(out)
        if all(call.kept for call in touched) and (may_overtake or not self._held):
            self._release(event, messages, out)
        else:
            self._held.append((event, touched))
            self._held_bytes += len(event)

    def _flush(self, out: list[bytes]) -> None:
        """Release what waits for no call any more."""
        held = self._held
        while held and all(call.kept for call in held[0][1]):
            event, _ = held.popleft()
            self._held_bytes -= len(event)
            self._release(event, read_event(event)[1], out)

    def _cut(self, out: list[bytes]) -> None:
        """Release the good calls among what is held, and drop the rest."""
        for event, calls in self._held:
            _, messages = read_event(event)
            if len(messages) == 1:
                left = self._reader.cut(messages[0], calls)
                if left is not None:
                    self._release(event if left is messages[0] else rewritten(event, left), [left], out)
        self._held.clear()
        self._held_bytes = 0

    def _release(self, event: bytes, messages: list[Message], out: list[bytes]) -> None:
        for message in messages:
            self._reader.told.note(message)
        out.append(event)
