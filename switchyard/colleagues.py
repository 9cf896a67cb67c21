"""What the workers of one `serve` ask each other, so that whoever answers an operator speaks for all of them.

Each listens on a socket in the folder that they have in common, which nobody else can open. A question is one line of JSON,
a name and its arguments; the answer is JSON, to the end of the connection. Limits, conversations and the like are shared
through Redis; this is for what one worker alone knows: its load, its records.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

ANSWER_LIMIT_S = 2.0
MAX_QUESTION_BYTES = 64 * 1024

log = logging.getLogger("switchyard.workers")


class Colleagues:
    """One worker's way to the others, and theirs to it.

    Args:
        folder: what all have in common.
        number: this one's, from 1.
        count: how many there are, this one among them.
        answers: what may be asked, by name; called with the question's arguments, gives something for JSON.
    """

    def __init__(self, folder: Path, number: int, count: int, answers: Mapping[str, Callable[..., Any]]) -> None:
        self.count = count
        self._folder = folder
        self._number = number
        self._others = [n for n in range(1, count + 1) if n != number]
        self._answers = answers

    async def listen(self) -> None:
        """Answer the others, for ever."""
        listener = await asyncio.to_thread(_bind, self._path(self._number))
        server = await asyncio.start_unix_server(self._answer, sock=listener, limit=MAX_QUESTION_BYTES)
        async with server:
            await server.serve_forever()

    async def ask(self, name: str, *arguments: Any) -> list[Any]:
        """What each of the others says; without those that don't answer in time, which may be starting or ending."""
        question = msgspec.json.encode([name, *arguments]) + b"\n"
        answers = await asyncio.gather(*(self._ask_one(number, question) for number in self._others))
        return [answer for answer in answers if answer is not None]

    def _path(self, number: int) -> Path:
        return self._folder / f"worker-{number}.sock"

    async def _ask_one(self, number: int, question: bytes) -> Any:
        try:
            async with asyncio.timeout(ANSWER_LIMIT_S):
                reader, writer = await asyncio.open_unix_connection(self._path(number))
                try:
                    writer.write(question)
                    return msgspec.json.decode(await reader.read())
                finally:
                    writer.close()
        except (OSError, TimeoutError, msgspec.MsgspecError) as error:
            log.warning("worker %d doesn't say what it knows: %s", number, str(error) or type(error).__name__)
            return None

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            name, *arguments = msgspec.json.decode(await reader.readline())
            writer.write(msgspec.json.encode(self._answers[name](*arguments)))
            await writer.drain()
        except (OSError, ValueError, LookupError, msgspec.MsgspecError) as error:
            log.warning("another worker's question got no answer: %s", str(error) or type(error).__name__)
        finally:
            writer.close()


def _bind(path: Path) -> socket.socket:
    """A socket in the place of the one that the worker of this number had before."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    return listener
