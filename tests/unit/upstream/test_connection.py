"""One connection to an engine: late words of a client's side, and looking at a body before it goes anywhere."""

import asyncio

import pytest

from switchyard.errors import BrokenStream
from switchyard.upstream.connection import Connection, Response

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Owner:
    """See `connection.Owner`."""

    heard_s = 0.0

    def give_back(self, connection: Connection) -> None:
        """Kept."""

    def forget(self, connection: Connection) -> None:
        """Closed."""


class Engine(asyncio.Protocol):
    """Answers each line."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._transport.write(ANSWER)


class Transport(asyncio.Transport):
    """To nowhere."""

    def write(self, data: bytes) -> None:
        """Gone."""

    def is_closing(self) -> bool:
        """Never."""
        return False

    def abort(self) -> None:
        """Nothing to close."""


class Sink:
    """A client that says that it is behind when the answer is complete: its own last bytes were too many."""

    def __init__(self, response: Response) -> None:
        self._response = response
        self.ended = asyncio.Event()

    def feed(self, data: bytes) -> None:
        """See `connection.Sink`."""

    def end(self) -> None:
        """See `connection.Sink`."""
        self._response.pause()
        self.ended.set()

    def fail(self, error: Exception) -> None:
        raise AssertionError(error)


def test_who_is_behind_when_his_answer_is_complete_holds_up_nobody_else(run):
    async def body() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Engine, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        connection = Connection(Owner(), "r", loop)
        await loop.create_connection(lambda: connection, "127.0.0.1", port)
        try:
            first = connection.send(b"one\n")
            sink = Sink(first)
            first.pipe(sink)
            async with asyncio.timeout(5):
                await sink.ended.wait()
            assert not connection.waiting_for_client
            second = connection.send(b"two\n")
            second.pause()
            first.resume()  # it has caught up, and says so late
            assert connection.waiting_for_client
            second.resume()
            async with asyncio.timeout(5):
                assert await second.read(10) == b"ok"
        finally:
            connection.abort()
            server.close()

    run(body())


def test_a_body_that_comes_with_its_end_while_somebody_looks_is_seen(run):
    """Both in one read: who waited for more sees it, then that there is no more, and who takes it gets all of it."""

    async def body() -> None:
        connection = Connection(Owner(), "r", asyncio.get_running_loop())
        connection.connection_made(Transport())
        response = connection.send(b"one\n")
        looking = asyncio.create_task(response.more())
        await asyncio.sleep(0)
        connection.data_received(ANSWER)
        assert await looking
        assert response.opening() == b"ok"
        assert not await response.more()
        assert await response.read(10) == b"ok"

    run(body())


def test_who_looks_hears_that_the_body_broke_off(run):
    async def body() -> None:
        connection = Connection(Owner(), "r", asyncio.get_running_loop())
        connection.connection_made(Transport())
        response = connection.send(b"one\n")
        connection.data_received(ANSWER[:-1])
        looking = asyncio.create_task(response.more())
        await asyncio.sleep(0)
        connection.connection_lost(ConnectionResetError())
        await looking
        assert response.opening() == b"o"
        with pytest.raises(BrokenStream):
            await response.more()

    run(body())
