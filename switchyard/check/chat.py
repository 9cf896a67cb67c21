"""Tool calls of chat completions streams: finding them, and going on after them.

A call has no end of its own here. It is over when the choice is finished, or when another call or text begins and its
arguments are complete; until then deltas of several calls may come in turn.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from switchyard.check.calls import Call, Reader, Thread
from switchyard.check.events import Message, as_dict, as_index, dicts, summed
from switchyard.check.tools import GivenTools


@dataclass(slots=True)
class Choice:
    """What a client was told of one choice.

    Attributes:
        role: its role was sent.
        calls: number of calls, which is the index of the next one.
        finished: its finish_reason was sent.
    """

    role: bool = False
    calls: int = 0
    finished: bool = False


@dataclass(slots=True)
class ChatTold:
    """What a client was told of an answer.

    Attributes:
        head: `id`, `created` and `model`, as far as they are known.
        usage: of the first stream; may be known without having been told.
        choices: by index.
        call_ids: ids of the calls.
    """

    head: dict[str, Any] = field(default_factory=dict)
    usage: dict[str, Any] | None = None
    choices: dict[int, Choice] = field(default_factory=dict)
    call_ids: set[str] = field(default_factory=set)

    def note_usage(self, message: Message) -> None:
        """See `Told`."""
        if isinstance(message.get("usage"), dict):
            self.usage = message["usage"]  # counts so far, where every chunk has them

    def note(self, message: Message) -> None:
        """See `Told`."""
        if len(self.head) < 3:
            for name in ("id", "created", "model"):
                if message.get(name) is not None:
                    self.head.setdefault(name, message[name])
        for choice in dicts(message.get("choices")):
            told = self.choices.setdefault(as_index(choice.get("index")) or 0, Choice())
            delta = as_dict(choice.get("delta"))
            told.role = told.role or bool(delta.get("role"))
            told.finished = told.finished or choice.get("finish_reason") is not None
            for entry in dicts(delta.get("tool_calls")):
                index, call_id = as_index(entry.get("index")), entry.get("id")
                new_id = isinstance(call_id, str) and call_id != "" and call_id not in self.call_ids
                told.calls = max(told.calls, index + 1) if index is not None else told.calls + new_id
                if isinstance(call_id, str):
                    self.call_ids.add(call_id)


class _ChoiceThread(Thread):
    """Calls of one choice, and how their deltas name them."""

    __slots__ = ("by_index", "ids", "latest")

    def __init__(self) -> None:
        super().__init__()
        self.by_index: dict[int, Call] = {}
        self.ids: set[str] = set()
        self.latest: Call | None = None

    def find(self, entry: Message) -> Call:
        """The call that a delta is about. Without an index, an id that is new begins a call."""
        index, call_id = as_index(entry.get("index")), entry.get("id")
        call = self.by_index.get(index) if index is not None else self.latest
        new_id = isinstance(call_id, str) and call_id != "" and call_id not in self.ids
        if call is None or (index is None and new_id):
            call = self.begin(Call())
            if index is not None:
                self.by_index[index] = call
        if isinstance(call_id, str):
            self.ids.add(call_id)
        self.latest = call
        return call


class ChatReader(Reader):
    """See `Reader`."""

    def __init__(self, tools: GivenTools) -> None:
        super().__init__(tools)
        self.told = ChatTold()
        self._threads: dict[int, _ChoiceThread] = {}

    def read(self, message: Message) -> tuple[list[Call], bool]:
        """See `Reader`."""
        self.told.note_usage(message)
        choices = dicts(message.get("choices"))
        if not choices and message.get("error") is not None:
            self.failed = True
        touched: list[Call] = []
        only_text = bool(choices)
        for choice in choices:
            thread = self._thread(choice)
            delta = as_dict(choice.get("delta"))
            entries = dicts(delta.get("tool_calls"))
            touched += [self._take(thread, entry) for entry in entries]
            if choice.get("finish_reason") is not None:
                self.ending = True
                self.judge(thread, thread.open)
                only_text = False
            elif entries:
                only_text = False
            elif any(isinstance(v, str) and v for name, v in delta.items() if name != "role"):
                self.judge(thread, _complete(thread))
            elif thread.open:
                only_text = False  # it says nothing, so it may as well keep its place
        return touched, only_text

    def end(self) -> None:
        """See `Reader`."""
        for thread in self._threads.values():
            self.judge(thread, thread.open)

    def cut(self, message: Message, calls: list[Call]) -> Message | None:
        """See `Reader`: choices whose calls are all good stay; of the others, the good calls before the bad one."""
        left = iter(calls)
        choices = []
        for choice in dicts(message.get("choices")):
            thread = self._thread(choice)
            delta = as_dict(choice.get("delta"))
            entries = dicts(delta.get("tool_calls"))
            kept = [entry for entry in entries if next(left).kept]
            if thread.whole:
                choices.append(choice)
            elif kept:
                choices.append({**choice, "delta": {**delta, "tool_calls": kept}, "finish_reason": None})
        if not choices:
            return None
        return message if choices == message["choices"] else {**message, "choices": choices}

    def _thread(self, choice: Message) -> _ChoiceThread:
        return self._threads.setdefault(as_index(choice.get("index")) or 0, _ChoiceThread())

    def _take(self, thread: _ChoiceThread, entry: Message) -> Call:
        call = thread.find(entry)
        if len(thread.open) > 1 or call not in thread.open:
            self.judge(thread, [one for one in _complete(thread) if one is not call])
        function = as_dict(entry.get("function") or entry.get("custom"))
        name = function.get("name")
        if isinstance(name, str) and name not in ("", call.name):  # some repeat it, some send it in pieces
            if call.judged:
                return self.blame(thread, "a call changes its name after its end")
            call.name += name
        text = function.get("arguments", function.get("input"))
        if isinstance(text, str):
            return self.add(thread, call, text)
        if text is not None:
            return self.blame(thread, "the arguments of a call are no text", None if call.judged else call)
        return call


def _complete(thread: Thread) -> list[Call]:
    """Open calls whose arguments are a whole object: nothing that belongs to them can follow."""
    return [call for call in thread.open if call.last == "}" and _is_json(call.text)]


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


class ChatContinuation:
    """Lets a second stream go on in the first one's answer.

    Args:
        told: what the client has of it.
    """

    def __init__(self, told: ChatTold) -> None:
        self._told = told
        self._places: dict[int, dict[Any, int]] = {}

    def opening(self) -> list[Message]:
        """What must be said before the second stream's first message."""
        return []

    def adapt(self, message: Message) -> Message | None:
        """The message as a part of the first answer; None for one that has no place in it."""
        told = self._told
        if message.get("error") is not None and not message.get("choices"):
            return message
        message = {**message, **{name: value for name, value in told.head.items() if name in message}}
        if isinstance(message.get("usage"), dict):
            message["usage"] = summed(told.usage, message["usage"])
        choices = dicts(message.get("choices"))
        if not choices:
            return message
        message["choices"] = [c for choice in choices if (c := self._choice(choice)) is not None]
        return message if message["choices"] else None

    def _choice(self, choice: Message) -> Message | None:
        index = as_index(choice.get("index")) or 0
        told = self._told.choices.get(index)
        if told is None:
            return choice
        if told.finished:
            return None
        delta = dict(as_dict(choice.get("delta")))
        finish = choice.get("finish_reason")
        if told.role and delta.pop("role", None) is not None and finish is None and not any(delta.values()):
            return None  # the chunk that only opens an answer
        if delta.get("tool_calls"):
            delta["tool_calls"] = [self._call(index, told, entry) for entry in dicts(delta["tool_calls"])]
        choice = {**choice, "delta": delta}
        if finish == "stop" and told.calls:
            choice["finish_reason"] = "tool_calls"  # a client that sees "stop" may not run the calls it was shown
        return choice

    def _call(self, choice: int, told: Choice, entry: Message) -> Message:
        places = self._places.setdefault(choice, {})
        index, call_id = as_index(entry.get("index")), entry.get("id")
        key = index if index is not None else call_id or next(reversed(places), None)
        place = places.pop(key, told.calls + len(places))
        places[key] = place  # the latest is last: a delta without any name belongs to it
        entry = {**entry, "index": place}
        if call_id and call_id in self._told.call_ids:
            entry["id"] = f"{call_id}-2"  # engines that count their ids would give one id to two calls
        return entry
