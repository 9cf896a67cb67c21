"""Makes a bigger pool's stream the rest of a message that another stream began.

The second stream is not checked again. Where it breaks off or tells of an error, so does the message.
"""

from __future__ import annotations

from switchyard.check.calls import Told
from switchyard.check.chat import ChatContinuation, ChatTold
from switchyard.check.events import BOM, made, read_event, rewritten
from switchyard.check.messages import MessagesContinuation, MessagesTold
from switchyard.check.responses import ResponsesContinuation, ResponsesTold
from switchyard.upstream.sse import EventSplitter


class Continuation:
    """Between the second engine's stream and the client.

    Args:
        protocol: chat, messages or responses.
        carried: what the client was told before, from the first stream's gate.
    """

    def __init__(self, protocol: str, carried: Told) -> None:
        self._splitter = EventSplitter()
        self._begun = False
        self._adapter: ChatContinuation | MessagesContinuation | ResponsesContinuation
        if isinstance(carried, ChatTold):
            self._adapter = ChatContinuation(carried)
        elif isinstance(carried, MessagesTold):
            self._adapter = MessagesContinuation(carried)
        else:
            assert isinstance(carried, ResponsesTold), protocol
            self._adapter = ResponsesContinuation(carried)

    def feed(self, data: bytes) -> bytes:
        """What goes to the client with these bytes."""
        return b"".join(map(self._adapted, self._splitter.feed(data)))

    def end(self) -> bytes:
        """What goes to the client when the engine has sent everything."""
        rest = self._splitter.rest()
        return self._adapted(rest) if rest else b""

    def _adapted(self, event: bytes) -> bytes:
        before = b""
        if not self._begun:
            self._begun = True
            event = event.removeprefix(BOM)
            before = b"".join(map(made, self._adapter.opening()))
        _, messages = read_event(event)
        if not messages:
            return before + event
        if len(messages) > 1:  # an engine that forgets empty lines: each message becomes an event
            changed = [m for message in messages if (m := self._adapter.adapt(message)) is not None]
            return before + b"".join(rewritten(b"data:\n\n", message) for message in changed)
        left = self._adapter.adapt(messages[0])
        if left is None:
            return before
        return before + (event if left is messages[0] else rewritten(event, left))
