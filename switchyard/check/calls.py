"""Tool calls on their way through a stream, in any protocol. How a protocol spells them is its own module."""

from __future__ import annotations

from typing import Protocol

from switchyard.check.events import Message
from switchyard.check.tools import MAX_ARGUMENT_CHARACTERS, GivenTools


class Call:
    """One call: what came of it so far.

    Attributes:
        name: of the tool.
        judged: nothing more may come; it is good, or the stream has a problem.
        kept: good, as are all calls before it: it may be shown.
    """

    __slots__ = ("good", "judged", "kept", "last", "name", "parts", "size")

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.parts: list[str] = []
        self.size = 0
        self.last = ""  # character that is not blank
        self.judged = self.good = self.kept = False

    def add(self, text: str) -> None:
        """More of its arguments."""
        self.parts.append(text)
        self.size += len(text)
        self.last = text.rstrip()[-1:] or self.last

    @property
    def text(self) -> str:
        """Its arguments."""
        return "".join(self.parts)


class Thread:
    """The calls of one message (chat may have several messages in a stream), in order.

    A bad call ends what is shown of its message, so a call counts only together with those before it.
    """

    __slots__ = ("_kept", "calls", "open")

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.open: list[Call] = []
        self._kept = 0

    def begin(self, call: Call) -> Call:
        """The next call."""
        self.calls.append(call)
        self.open.append(call)
        return call

    @property
    def whole(self) -> bool:
        """Whether all of its calls may be shown."""
        return self._kept == len(self.calls)

    def settle(self) -> None:
        """Calls have been judged."""
        while self._kept < len(self.calls) and self.calls[self._kept].good:
            self.calls[self._kept].kept = True
            self._kept += 1
        self.open = [call for call in self.open if not call.judged]


class Told(Protocol):
    """What a client has been told of a message so far."""

    def note(self, message: Message) -> None:
        """A message was released."""

    def note_usage(self, message: Message) -> None:
        """A message came; whether it is released doesn't matter."""


class Reader:
    """Base of the three protocols' readers: finds the calls in a stream's messages and judges them.

    Attributes:
        problem: why a call must not be shown; the first one found.
        failed: the engine itself has told of a failure; calls that are open will not be completed.
        ending: the end of the message has begun; only usage can still come.
        told: what the client was told; kept up by whoever releases messages.
    """

    told: Told

    def __init__(self, tools: GivenTools) -> None:
        self.tools = tools
        self.problem: str | None = None
        self.failed = False
        self.ending = False

    def read(self, message: Message) -> tuple[list[Call], bool]:
        """The calls that a message is part of, and whether it may overtake calls that are held (text in chat)."""
        raise NotImplementedError

    def end(self) -> None:
        """The message is over: judge what is open."""
        raise NotImplementedError

    def cut(self, message: Message, calls: list[Call]) -> Message | None:
        """What may be shown of a held message once the stream has a problem."""
        return message if calls and all(call.kept for call in calls) else None

    def judge(self, thread: Thread, calls: list[Call]) -> None:
        """Nothing more will come of these calls."""
        if self.failed:
            return  # what was open stays unfinished, and unseen
        for call in calls:
            if self.problem is not None:
                break
            call.judged = True
            self.problem = self.verdict(call)
            call.good = self.problem is None
        thread.settle()

    def verdict(self, call: Call) -> str | None:
        """What is wrong with a complete call."""
        return self.tools.problem_of(call.name, call.text)

    def add(self, thread: Thread, call: Call, text: str) -> Call:
        """More arguments of a call; what comes after its end makes a bad call of its own."""
        if call.judged:
            return self.blame(thread, "the arguments of a call go on after its end") if text.strip() else call
        call.add(text)
        if call.size > MAX_ARGUMENT_CHARACTERS:
            return self.blame(thread, f"the arguments of a call are longer than {MAX_ARGUMENT_CHARACTERS} characters", call)
        return call

    def blame(self, thread: Thread, words: str, call: Call | None = None) -> Call:
        """A call is bad for another reason than its tool's."""
        if self.problem is None and not self.failed:
            self.problem = words
        if call is None:
            call = thread.begin(Call())
        call.judged = True
        thread.settle()
        return call
