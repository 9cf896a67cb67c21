"""The server around it all: uvicorn's, with our protocol on its connections and an end in steps."""

from __future__ import annotations

import math
import socket
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from uvicorn.config import Config
from uvicorn.server import Server

from switchyard.api.door import Door
from switchyard.api.protocol import KEEP_ALIVE_S, GatewayProtocol

SWEEP_S = 1.0  # how often client connections are held against their limits


def make_server(
    app: Any, door: Door, drain_delay_s: float, drain_s: float, on_serving: Callable[[], None] = lambda: None
) -> Server:
    """The server around the control plane's ASGI app, with the data plane in front of it.

    Args:
        app: ASGI app whose lifespan state has the same door under `door`.
        door: shared by all connections.
        drain_delay_s: after a signal, time until the listener closes; /readyz is 503 already.
        drain_s: time that running requests have after that; then they end with an error.
        on_serving: called once, when it has started and takes requests.
    """
    config = Config(
        app, http=GatewayProtocol, loop="uvloop" if sys.platform != "win32" else "asyncio", ws="none", lifespan="on",
        log_config=None, access_log=False, server_header=False, proxy_headers=False, timeout_keep_alive=int(KEEP_ALIVE_S),
        timeout_graceful_shutdown=max(1, math.ceil(drain_s)),
    )  # fmt: skip
    return _DrainingServer(config, door, drain_delay_s, on_serving)


class _DrainingServer(Server):
    """Ends in steps: not ready at once, no listener after the delay, then what runs may end. A second signal ends at once."""

    def __init__(self, config: Config, door: Door, drain_delay_s: float, on_serving: Callable[[], None]) -> None:
        super().__init__(config)
        self._door = door
        self._drain_delay_s = drain_delay_s
        self._on_serving = on_serving
        self._close_at_s = 0.0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn."""
        await super().startup(sockets)
        if self.started:
            self._on_serving()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal; unlike uvicorn's own, it is not raised again at the end: draining is a good end, with exit code 0."""
        if self._door.draining:
            self.should_exit = self.force_exit = self._door.refusing = True
        self._door.draining = True
        self._close_at_s = time.monotonic() + self._drain_delay_s

    async def on_tick(self, counter: int) -> bool:
        """See uvicorn; called ten times a second."""
        if self._door.draining and time.monotonic() >= self._close_at_s:
            self.should_exit = self._door.refusing = True
        return await super().on_tick(counter)
