"""Traffic at a steady rate, whatever becomes of the answers: each request is sent in its time and remembered."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import httpx


@dataclass
class Sent:
    """One request: when it was sent and ended (monotonic), its status (0 for a broken answer), and who answered."""

    sent_s: float
    ended_s: float
    status: int
    replica: str


@dataclass
class Steady:
    """A context manager: inside, traffic runs in a thread of its own.

    Args:
        port: the gateway's.
        per_s: requests a second.
        model: the route or pool.
        sessions: how many requests in a row belong to one conversation.
        limit_s: a client's own patience.
    """

    port: int
    per_s: float
    model: str = "small"
    sessions: int = 4
    limit_s: float = 30
    sent: list[Sent] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="steady traffic")
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(self.limit_s + 10)
        assert not self._thread.is_alive()

    def failed(self, since_s: float = 0.0) -> list[Sent]:
        """Those sent after a moment whose client got something else than a 200."""
        return [s for s in self.sent if s.status != 200 and s.sent_s >= since_s]

    async def _run(self) -> None:
        limits = httpx.Limits(max_connections=None)
        async with (
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", timeout=self.limit_s, limits=limits) as client,
            asyncio.TaskGroup() as tasks,
        ):
            began_s, count = time.monotonic(), 0
            while not self._stop.is_set():
                tasks.create_task(self._ask(client, count))
                count += 1
                await asyncio.sleep(max(0.0, began_s + count / self.per_s - time.monotonic()))

    async def _ask(self, client: httpx.AsyncClient, count: int) -> None:
        sent_s, status, replica = time.monotonic(), 0, ""
        body = {"model": self.model, "messages": [{"role": "user", "content": f"number {count}"}], "max_tokens": 2}
        try:
            answer = await client.post(
                "/v1/chat/completions", json=body, headers={"x-session-id": f"s{count // self.sessions}"}
            )
            status, replica = answer.status_code, answer.headers.get("x-switchyard-replica", "")
        except httpx.HTTPError:
            pass
        self.sent.append(Sent(sent_s, time.monotonic(), status, replica))
