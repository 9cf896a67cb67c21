"""The kept connections to one engine. Each replica has its own pool, so that a hung engine can't starve another.

Kept connections are closed by us after `IDLE_S`, before engines do it (vLLM: 5 s), so that a request rarely meets a
connection that is just being closed; when it does, `StaleConnection` says that a fresh one may be tried.
"""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from switchyard.config.pool import Timeouts
from switchyard.errors import GatewayError, Unreachable, UpstreamTimeout
from switchyard.upstream.connection import Connection, Response

IDLE_S = 4.0
SWEEP_S = 0.25  # how often limits are looked at, and so their precision
MAX_IDLE = 256


class ConnectFailed(Exception):
    """No connection came up: the engine can't have seen the request."""

    def __init__(self, error: GatewayError) -> None:
        super().__init__(error.message)
        self.error = error


class ConnectionPool:
    """Connections to one engine.

    Args:
        url: http://host:port of the engine.
        label: the replica's name, for messages.
        timeouts: the pool's limits.

    Attributes:
        heard_s: when bytes last came from the engine, by the loop's clock; 0 before.
    """

    def __init__(self, url: str, label: str, timeouts: Timeouts) -> None:
        self.url = url
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port or 80
        self.host_header = parts.netloc.encode("ascii")
        self.label = label
        self.heard_s = 0.0
        self._timeouts = timeouts
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()
        self._connecting = 0

    def reconfigure(self, timeouts: Timeouts, label: str) -> None:
        """Go on under other limits, and with another name in messages."""
        self._timeouts, self.label = timeouts, label

    @property
    def busy(self) -> bool:
        """Whether an answer is on its way, or a connection for one."""
        return bool(self._connecting) or any(c.response is not None for c in self._all)

    async def send(self, request: bytes | list[bytes], fresh: bool = False) -> Response:
        """Send a request on a kept connection, or on a new one.

        Raises:
            ConnectFailed: no connection came up within `connect_s`.
        """
        while self._idle and not fresh:
            kept = self._idle.pop()
            if kept.usable:
                return kept.send(request)
        return (await self._connect()).send(request)

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        connection = Connection(self, self.label, loop)
        self._connecting += 1
        try:
            async with asyncio.timeout(self._timeouts.connect_s):
                await loop.create_connection(lambda: connection, self._host, self._port)
        except TimeoutError:
            limit = self._timeouts.connect_s
            raise ConnectFailed(UpstreamTimeout(f"{self.label} took no connection within {limit:g} s")) from None
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            raise ConnectFailed(Unreachable(f"{self.label} can't be reached: {reason}")) from None
        except asyncio.CancelledError:
            connection.abort()  # it may have come up in this very moment
            raise
        finally:
            self._connecting -= 1
        self._all.add(connection)
        return connection

    def give_back(self, connection: Connection) -> None:
        """Keep a connection for the next request."""
        if len(self._idle) < MAX_IDLE:
            self._idle.append(connection)
        else:
            connection.abort()

    def forget(self, connection: Connection) -> None:
        """A connection is gone."""
        self._all.discard(connection)

    def sweep(self, now_s: float) -> None:
        """Close what was idle too long, and end answers that are past a limit. Called every `SWEEP_S`."""
        limits = self._timeouts
        self._idle = [c for c in self._idle if c.usable]
        for connection in list(self._all):
            response = connection.response
            if response is None:
                if now_s - connection.moved_s > IDLE_S:
                    connection.abort()
                continue
            if now_s - connection.sent_s > limits.total_s:
                connection.fail(UpstreamTimeout(f"{self.label} did not finish within {limits.total_s:g} s"))
            elif connection.waiting_for_client:
                continue
            elif not response.has_begun():  # its head may be there: vLLM sends that before a prefill of minutes
                if now_s - connection.sent_s > limits.first_byte_s:
                    connection.fail(UpstreamTimeout(f"{self.label} did not begin to answer within {limits.first_byte_s:g} s"))
            elif now_s - connection.moved_s > limits.idle_s:
                connection.fail(UpstreamTimeout(f"{self.label} sent nothing for {limits.idle_s:g} s"))

    def close(self) -> None:
        """Close all connections; answers on their way break off."""
        for connection in list(self._all):
            connection.abort()
        self._idle.clear()
