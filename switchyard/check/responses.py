"""Tool calls of Responses streams: finding them, and going on after them.

A call is an output item; it is over with its `output_item.done`, which repeats it as a whole, and `response.completed`
repeats it again. Everything that is said of a call must be good, since clients differ in what they read. Engines may
leave out `output_index` and `sequence_number` (llama.cpp does); then items are known by their ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from switchyard.check.calls import Call, Reader, Thread
from switchyard.check.events import Message, as_dict, as_index, dicts, summed
from switchyard.check.tools import GivenTools

CALL_TEXTS = {"function_call": "arguments", "custom_tool_call": "input"}
_OPENERS = {"response.created", "response.in_progress", "response.queued"}
_ENDINGS = {"response.completed", "response.incomplete", "response.failed", "response.cancelled"}
_CALL_DELTAS = {"response.function_call_arguments.delta", "response.custom_tool_call_input.delta"}
_CALL_DONE = {"response.function_call_arguments.done": "arguments", "response.custom_tool_call_input.done": "input"}
_PARTS = {
    "response.output_text": "output_text",
    "response.refusal": "refusal",
    "response.reasoning_text": "reasoning_text",
    "response.reasoning_summary_text": "summary_text",
}
_WHERE = ("item_id", "output_index", "content_index", "summary_index")


def _keys(message: Message) -> list[int | str]:
    """Everything by which a message names its item, the surest first."""
    item = as_dict(message.get("item"))
    found = [as_index(message.get("output_index")), item.get("id"), item.get("call_id"), message.get("item_id")]
    return [key for key in found if isinstance(key, int | str) and key != ""]


@dataclass(slots=True, eq=False)
class _Item:
    """An output item that the client was told of, and what is still open in it.

    Attributes:
        item: as it was told last.
        where: names of the item in messages about it.
        done: its end was told.
        parts: of its content, by content and summary index.
        texts: the text of each part.
        open_texts: parts whose text has no end, with the stem of its events and where they stand.
        open_parts: parts without an end.
    """

    item: Message
    where: Message
    done: bool = False
    parts: dict[Any, Message] = field(default_factory=dict)
    texts: dict[Any, list[str]] = field(default_factory=dict)
    open_texts: dict[Any, tuple[str, Message]] = field(default_factory=dict)
    open_parts: dict[Any, tuple[str, Message]] = field(default_factory=dict)

    def note(self, kind: str, message: Message) -> None:
        """A message about its content."""
        stem, _, verb = kind.rpartition(".")
        part = (message.get("content_index"), message.get("summary_index"))
        where = {name: message[name] for name in _WHERE if name in message}
        if stem in _PARTS and verb == "delta":
            self.parts.setdefault(part, {"type": _PARTS[stem]})
            self.open_texts[part] = (stem, where)
            self.texts.setdefault(part, []).append(str(message.get("delta", "")))
        elif stem in _PARTS and verb == "done":
            self.open_texts.pop(part, None)
        elif stem.endswith("part") and verb in {"added", "done"}:
            self.parts[part] = as_dict(message.get("part"))
            if verb == "added":
                self.open_parts[part] = (stem, where)
            else:
                self.open_parts.pop(part, None)

    def close(self) -> Iterator[Message]:
        """The messages that end it properly."""
        for part, (stem, where) in self.open_texts.items():
            name = "refusal" if stem == "response.refusal" else "text"
            logprobs: Message = {"logprobs": []} if stem == "response.output_text" else {}
            yield {"type": f"{stem}.done", **where, name: "".join(self.texts[part]), **logprobs}
        for part, (stem, where) in self.open_parts.items():
            yield {"type": f"{stem}.done", **where, "part": self._part(part)}
        self.item = {**self.item, "status": "completed"}
        for name, there in (("content", False), ("summary", True)):
            whole = [self._part(part) for part in self.parts if (part[1] is not None) is there]
            if whole:
                self.item[name] = whole
        self.done = True
        yield {"type": "response.output_item.done", **self.where, "item": self.item}

    def _part(self, part: Any) -> Message:
        found = self.parts[part]
        if part not in self.texts:
            return found
        extra: Message = {"annotations": []} if found.get("type") == "output_text" else {}
        name = "refusal" if found.get("type") == "refusal" else "text"
        return {**extra, **found, name: "".join(self.texts[part])}


@dataclass(slots=True)
class ResponsesTold:
    """What a client was told of a response.

    Attributes:
        started: its response.created was sent.
        head: `id`, `created_at` and `model`, as far as they are known.
        usage: of the first stream; may be known without having been told.
        number: the next sequence number; None where the engine gives none.
        place: the next output index; None where the engine gives none.
        items: in order.
        ids: of items and calls.
    """

    started: bool = False
    head: dict[str, Any] = field(default_factory=dict)
    usage: dict[str, Any] | None = None
    number: int | None = None
    place: int | None = None
    items: list[_Item] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    _by_key: dict[int | str, _Item] = field(default_factory=dict)

    def note_usage(self, message: Message) -> None:
        """See `Told`."""
        usage = as_dict(message.get("response")).get("usage")
        if isinstance(usage, dict):
            self.usage = usage

    def note(self, message: Message) -> None:
        """See `Told`."""
        kind = str(message.get("type"))
        number, place = as_index(message.get("sequence_number")), as_index(message.get("output_index"))
        if number is not None:
            self.number = max(self.number or 0, number + 1)
        if place is not None:
            self.place = max(self.place or 0, place + 1)
        if kind in _OPENERS:
            self.started = True
        response = as_dict(message.get("response"))
        for name in ("id", "created_at", "model"):
            if response.get(name) is not None:
                self.head.setdefault(name, response[name])
        keys = _keys(message)
        if keys:
            self._note_item(kind, keys, message)

    def _note_item(self, kind: str, keys: Iterable[int | str], message: Message) -> None:
        found = next((self._by_key[key] for key in keys if key in self._by_key), None)
        item = message.get("item")
        if isinstance(item, dict):
            if found is None or kind == "response.output_item.added":
                found = _Item(item, {"output_index": message["output_index"]} if "output_index" in message else {})
                self.items.append(found)
            found.item, found.done = item, kind == "response.output_item.done"
            self._by_key.update(dict.fromkeys(keys, found))
            self.ids.update(item[name] for name in ("id", "call_id") if isinstance(item.get(name), str))
        elif found is not None:
            found.note(kind, message)


def is_call(item: Message) -> bool:
    """Whether an item of an output is a tool call; an engine may put anything into its type."""
    kind = item.get("type")
    return isinstance(kind, str) and kind in CALL_TEXTS


class _ItemCall(Call):
    """A call, and everything that was said of it."""

    __slots__ = ("finals", "names")

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.finals: list[str] = []

    def hear(self, name: Any, text: Any) -> None:
        """Its name or its whole arguments, told at once."""
        if isinstance(name, str) and name and name not in self.names:
            self.names.append(name)
        if isinstance(text, str) and text.strip() and text not in self.finals:
            self.finals.append(text)

    def says(self, name: Any, text: Any) -> bool:
        """Whether this is no news."""
        if name not in (None, "", *self.names):
            return False
        return text is None or (isinstance(text, str) and (not text.strip() or text in (self.text, *self.finals)))


class ResponsesReader(Reader):
    """See `Reader`."""

    def __init__(self, tools: GivenTools) -> None:
        super().__init__(tools)
        self.told = ResponsesTold()
        self._thread = Thread()
        self._by_key: dict[int | str, _ItemCall] = {}
        self._latest: _ItemCall | None = None

    def read(self, message: Message) -> tuple[list[Call], bool]:
        """See `Reader`."""
        kind = str(message.get("type"))
        self.told.note_usage(message)
        touched: list[Call] = []
        whole = [one for one in dicts(as_dict(message.get("response")).get("output")) if is_call(one)]
        if kind in _ENDINGS:
            self._read_ending(kind, whole)
        item = as_dict(message.get("item"))
        if is_call(item):
            touched.append(self._read_item(kind, message, item))
        elif kind in _CALL_DELTAS:
            touched.append(self.add(self._thread, self._find(message), str(message.get("delta") or "")))
        elif kind in _CALL_DONE:
            touched.append(self._hear(self._find(message), message.get("name"), message.get(_CALL_DONE[kind])))
        touched += map(self._read_whole, whole)
        if kind in {"error", "response.failed"} and self.problem is None:
            self.failed = True
        return touched, False

    def _read_ending(self, kind: str, whole: list[Message]) -> None:
        """Calls that had no end of their own have it here, and may be told as a whole only here."""
        self.ending = True
        for item in whole:
            call = next((self._by_key[key] for key in _keys({"item": item}) if key in self._by_key), None)
            if call is not None and not call.judged:
                self._hear(call, item.get("name"), item.get(CALL_TEXTS[item["type"]]))
        if kind != "response.failed":
            self.end()

    def _find(self, message: Message) -> _ItemCall:
        keys = _keys(message)
        call = next((self._by_key[key] for key in keys if key in self._by_key), None if keys else self._latest)
        return call if call is not None else self._begin(keys)

    def _begin(self, keys: list[int | str]) -> _ItemCall:
        call = _ItemCall()
        self._thread.begin(call)
        self._by_key.update(dict.fromkeys(keys, call))
        self._latest = call
        return call

    def _read_item(self, kind: str, message: Message, item: Message) -> Call:
        new = kind == "response.output_item.added"
        call = self._begin(_keys(message)) if new else self._find(message)
        heard = self._hear(call, item.get("name"), item.get(CALL_TEXTS[item["type"]]))
        if kind == "response.output_item.done" and not call.judged:
            self.judge(self._thread, [call])
        return heard

    def _read_whole(self, item: Message) -> Call:
        """A call inside a whole response: one that was told before, or one that is told only here."""
        name, text = item.get("name"), item.get(CALL_TEXTS[item["type"]])
        for known in self._thread.calls:
            if isinstance(known, _ItemCall) and known.good and known.says(name, text):
                return known
        call = self._begin([])
        self._hear(call, name, text)
        self.judge(self._thread, [call])
        return call

    def _hear(self, call: _ItemCall, name: Any, text: Any) -> Call:
        if call.judged:
            return call if call.says(name, text) else self.blame(self._thread, "a call changes after its end")
        if text is not None and not isinstance(text, str):
            return self.blame(self._thread, "the arguments of a call are no text", call)
        call.hear(name, text)
        return call

    def verdict(self, call: Call) -> str | None:
        """See `Reader`: under each of its names, each text of its arguments must be good."""
        assert isinstance(call, _ItemCall)
        texts = dict.fromkeys([call.text, *call.finals] if call.text.strip() or not call.finals else call.finals)
        found = (self.tools.problem_of(name, text) for name in call.names or [""] for text in texts)
        return next((problem for problem in found if problem is not None), None)

    def end(self) -> None:
        """See `Reader`."""
        self.judge(self._thread, self._thread.open)


class ResponsesContinuation:
    """Lets a second stream go on in the first one's response.

    Args:
        told: what the client has of it.
    """

    def __init__(self, told: ResponsesTold) -> None:
        self._told = told
        self._numbered = told.number is not None
        self._number = told.number or 0
        self._place = len(told.items) if told.place is None else told.place
        self._places: dict[int | str, int] = {}

    def opening(self) -> list[Message]:
        """What must be said before the second stream's first message: the end of items that were going on."""
        return [self._count(message) for item in self._told.items if not item.done for message in item.close()]

    def adapt(self, message: Message) -> Message | None:
        """The message as a part of the first response; None for one that has no place in it."""
        kind = message.get("type")
        if kind == "error":
            return message
        if kind in _OPENERS and self._told.started:
            return None
        message = dict(message)
        self._put(str(kind), message)
        if isinstance(message.get("item"), dict):
            message["item"] = self._item(message["item"])
        if message.get("item_id") in self._told.ids:
            message["item_id"] = f"{message['item_id']}-2"
        if isinstance(message.get("response"), dict):
            message["response"] = self._response(message["response"], kind in _ENDINGS)
        return self._count(message)

    def _count(self, message: Message) -> Message:
        if self._numbered or "sequence_number" in message:
            message["sequence_number"] = self._number
            self._number += 1
        return message

    def _put(self, kind: str, message: Message) -> None:
        """Give the message's item its place behind those of the first stream."""
        keys = _keys(message)
        if not keys:
            return
        place = next((self._places[key] for key in keys if key in self._places), None)
        if place is None or kind == "response.output_item.added":
            place = self._place
            self._place += 1
        self._places.update(dict.fromkeys(keys, place))
        if self._told.place is not None or "output_index" in message:
            message["output_index"] = place

    def _item(self, item: Message) -> Message:
        """An item with ids of its own: engines that count theirs would give one id to two items."""
        taken = {n: f"{item[n]}-2" for n in ("id", "call_id") if isinstance(item.get(n), str) and item[n] in self._told.ids}
        return {**item, **taken} if taken else item

    def _response(self, response: Message, ending: bool) -> Message:
        response = {**response, **self._told.head}
        if ending and isinstance(response.get("output"), list):
            first = [item.item for item in self._told.items]
            response["output"] = first + [self._item(one) if isinstance(one, dict) else one for one in response["output"]]
        if isinstance(response.get("usage"), dict):
            response["usage"] = summed(self._told.usage, response["usage"])
        return response
