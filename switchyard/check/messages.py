"""Tool calls of Anthropic Messages streams: finding them, and going on after them.

A call is a `tool_use` block; its end is the block's. Blocks that the engine's side runs itself are none of ours.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from switchyard.check.calls import Call, Reader, Thread
from switchyard.check.events import Message, as_dict, as_index, summed
from switchyard.check.tools import GivenTools

_INPUT_COUNTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


@dataclass(slots=True)
class MessagesTold:
    """What a client was told of a message.

    Attributes:
        started: its message_start was sent.
        usage: of the first stream; may be known without having been told.
        blocks: number of blocks, which is the index of the next one.
        open: indices of blocks that were not stopped.
        call_ids: ids of the calls.
    """

    started: bool = False
    usage: dict[str, Any] = field(default_factory=dict)
    blocks: int = 0
    open: list[int] = field(default_factory=list)
    call_ids: set[str] = field(default_factory=set)

    def note_usage(self, message: Message) -> None:
        """See `Told`."""
        self.usage.update(_usage_in(message))

    def note(self, message: Message) -> None:
        """See `Told`."""
        kind = message.get("type")
        if kind == "message_start":
            self.started = True
        elif kind == "content_block_start":
            index = as_index(message.get("index"))
            index = self.blocks if index is None else index
            self.blocks = max(self.blocks, index + 1)
            self.open.append(index)
            block = as_dict(message.get("content_block"))
            if block.get("type") == "tool_use":
                self.call_ids.add(str(block.get("id")))
        elif kind == "content_block_stop" and self.open:
            index = as_index(message.get("index"))
            if index in self.open:
                self.open.remove(index)
            elif index is None:
                self.open.pop()


def _usage_in(message: Message) -> dict[str, Any]:
    """Counts so far; message_start and message_delta each have some."""
    inner = message if message.get("type") == "message_delta" else as_dict(message.get("message"))
    return as_dict(inner.get("usage"))


class _Block(Call):
    """A call; engines may put the whole input into its start."""

    __slots__ = ("given",)

    def __init__(self, name: str, given: Any) -> None:
        super().__init__(name)
        self.given = given

    @property
    def text(self) -> str:
        """See `Call`."""
        text = super().text
        return text if text.strip() or not self.given else json.dumps(self.given)


class MessagesReader(Reader):
    """See `Reader`."""

    def __init__(self, tools: GivenTools) -> None:
        super().__init__(tools)
        self.told = MessagesTold()
        self._thread = Thread()
        self._blocks: dict[int, Call] = {}
        self._latest = -1

    def read(self, message: Message) -> tuple[list[Call], bool]:
        """See `Reader`."""
        kind = message.get("type")
        self.told.note_usage(message)
        if kind == "error":
            self.failed = True
        elif kind in {"message_delta", "message_stop"}:
            self.ending = True
            self.end()
        elif kind in {"content_block_start", "content_block_delta", "content_block_stop"}:
            call = self._read_block(str(kind), message)
            return ([call] if call is not None else []), False
        return [], False

    def _read_block(self, kind: str, message: Message) -> Call | None:
        index = as_index(message.get("index"))
        if index is None:
            index = self._latest + (kind == "content_block_start")
        if kind == "content_block_start":
            self._latest = index
            block = as_dict(message.get("content_block"))
            if block.get("type") != "tool_use":
                self._blocks.pop(index, None)
                return None
            call = self._thread.begin(_Block(str(block.get("name") or ""), block.get("input")))
            self._blocks[index] = call
            return call
        found = self._blocks.get(index)
        if found is None:
            return None
        if kind == "content_block_stop":
            if not found.judged:
                self.judge(self._thread, [found])
            return found
        piece = as_dict(message.get("delta")).get("partial_json")
        if piece is None or isinstance(piece, str):
            return self.add(self._thread, found, piece or "")
        return self.blame(self._thread, "the arguments of a call are no text", None if found.judged else found)

    def end(self) -> None:
        """See `Reader`."""
        self.judge(self._thread, self._thread.open)


class MessagesContinuation:
    """Lets a second stream go on in the first one's message.

    Args:
        told: what the client has of it.
    """

    def __init__(self, told: MessagesTold) -> None:
        self._told = told
        self._usage: dict[str, Any] = {}
        self._indices: dict[int, int] = {}
        self._next = told.blocks

    def opening(self) -> list[Message]:
        """What must be said before the second stream's first message: the end of a text that was going on."""
        return [{"type": "content_block_stop", "index": index} for index in self._told.open]

    def adapt(self, message: Message) -> Message | None:
        """The message as a part of the first one; None for one that has no place in it."""
        kind = message.get("type")
        self._usage.update(_usage_in(message))
        if kind == "message_start":
            return None if self._told.started else message
        if kind == "message_delta":
            return self._ending(message)
        index = as_index(message.get("index"))
        if not str(kind).startswith("content_block_") or index is None:
            return message
        if kind == "content_block_start" or index not in self._indices:
            self._indices[index] = self._next
            self._next += 1
        message = {**message, "index": self._indices[index]}
        block = as_dict(message.get("content_block"))
        if block.get("type") == "tool_use" and block.get("id") in self._told.call_ids:
            message["content_block"] = {**block, "id": f"{block['id']}-2"}  # see ChatContinuation
        return message

    def _ending(self, message: Message) -> Message:
        total = summed(self._told.usage, self._usage)
        told = as_dict(message.get("usage"))
        names = [*told, *(n for n in _INPUT_COUNTS if n not in told and as_index(total.get(n)) is not None)]
        delta = as_dict(message.get("delta"))
        if delta.get("stop_reason") == "end_turn" and self._told.call_ids:
            delta = {**delta, "stop_reason": "tool_use"}
        return {**message, "delta": delta, "usage": {name: total.get(name) for name in names}}
