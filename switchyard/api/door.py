"""What all client connections of a gateway share: keys, limits, and where requests go."""

from __future__ import annotations

import itertools
import logging
import math
import secrets
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from switchyard.api.auth import Keys
from switchyard.errors import GatewayError

if TYPE_CHECKING:
    from switchyard.api.exchange import Exchange
    from switchyard.api.protocol import GatewayProtocol

log = logging.getLogger("switchyard.server")

Run = Callable[["Exchange"], Coroutine[Any, Any, None]]
RunStored = Callable[["Exchange", str], Coroutine[Any, Any, None]]


class Door:
    """What all client connections share.

    Args:
        keys: who may call.
        max_body_bytes: longest body.
        max_connections: most client connections at the same time.
        run: serves a request of the data plane.
        run_stored: serves a request for a stored response, by its id.
        count_refusal: told of every request that is refused before the pipeline sees it.
    """

    def __init__(
        self,
        keys: Keys,
        max_body_bytes: int,
        max_connections: int,
        run: Run,
        run_stored: RunStored,
        count_refusal: Callable[[GatewayError], None],
    ) -> None:
        self.keys = keys
        self.max_body_bytes = max_body_bytes
        self.max_connections = max_connections
        self.run = run
        self.run_stored = run_stored
        self.count_refusal = count_refusal
        self.draining = False  # /readyz says so; the listener may stay for a while, and who still comes is served
        self.refusing = False  # the listener is closed: nothing new on connections that are still open
        self._complained_s = -math.inf
        self.connections: set[GatewayProtocol] = set()
        self._prefix = secrets.token_hex(5)
        self._numbers = itertools.count(1)

    def next_id(self) -> str:
        """A request id that no other gateway gives."""
        return f"req-{self._prefix}-{next(self._numbers):x}"

    def complain_of_crowd(self) -> None:
        """Log, once a minute at most, that connections are turned away."""
        now_s = time.monotonic()
        if now_s - self._complained_s > 60:
            self._complained_s = now_s
            log.warning("%d client connections: more are turned away (server.max_connections)", self.max_connections)

    def sweep(self, now_s: float) -> None:
        """Close connections that are past one of their limits. Called every `SWEEP_S`."""
        for connection in list(self.connections):
            connection.check_limits(now_s)
