"""One connection to an engine: what a late word of a client's side may do to the request after."""

import asyncio

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
