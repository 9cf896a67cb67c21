"""A raw client on asyncio: sends any bytes, reads as slowly as it likes, leaves when it likes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable

from integration.client import Answer


async def until(condition: Callable[[], bool], within_s: float) -> bool:
    """Wait for something that another thread does; whether it came true in time."""
    for _ in range(int(within_s / 0.01)):
        if condition():
            return True
        await asyncio.sleep(0.01)
    return condition()


class Wire:
    """One connection to the gateway; `open` makes it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int, *, receive_buffer: int | None = None) -> Wire:
        """Connect; with a small buffer of the kernel for a client that reads slowly."""
        sock = socket.socket()
        sock.setblocking(False)
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return cls(*await asyncio.open_connection(sock=sock, limit=32 * 1024))
        except BaseException:
            sock.close()
            raise

    async def send(self, data: bytes) -> None:
        """Send, and wait until the kernel has it all."""
        self._writer.transport.set_write_buffer_limits(high=0)
        self._writer.write(data)
        await self._writer.drain()

    async def head(self) -> Answer:
        """Wait for status and headers.

        Raises:
            ConnectionError: none came.
        """
        try:
            raw = await self._reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            raise ConnectionError(f"closed after {error.partial[:100]!r}") from None
        first, *lines = raw[:-4].decode("latin-1").split("\r\n")
        pairs = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        return Answer(int(first.split(" ")[1]), pairs)

    async def pieces(self, answer: Answer) -> AsyncIterator[bytes]:
        """The body as it comes; sets `complete` when its framing says that it ended."""
        try:
            if answer.header("transfer-encoding") == "chunked":
                while size := int(await self._reader.readuntil(b"\r\n"), 16):
                    yield (await self._reader.readexactly(size + 2))[:-2]
                await self._reader.readexactly(2)
            else:
                left = int(answer.header("content-length") or 0)
                while left:
                    data = await self._reader.read(min(left, 16 * 1024))
                    if not data:
                        return
                    left -= len(data)
                    yield data
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        answer.complete = True

    async def rest(self, answer: Answer) -> Answer:
        """The whole body."""
        answer.body = b"".join([piece async for piece in self.pieces(answer)])
        return answer

    async def leave(self) -> None:
        """Close."""
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    async def reset(self) -> None:
        """Close with RST."""
        sock: socket.socket = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()
