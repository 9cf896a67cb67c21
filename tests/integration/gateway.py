"""The gateway under test: in this process, with a thread and a socket of its own, or as the `switchyard serve` of a shell.

In this process it starts in a moment, and tests can change its limits; as a process it shows exit codes, signals and
output. Policies are written here as dicts of the YAML file's form.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Self

from switchyard import app
from switchyard.api.server import make_server
from switchyard.cli.serve import listen
from switchyard.config.load import parse_policy
from switchyard.config.secrets import Secrets
from switchyard.pools.discovery import Resolve, resolve

from .client import Answer, Client, eventually
from .engine import DeadPort, Engine

Json = dict[str, Any]


def pool(*engines: Engine | DeadPort | str, **settings: Any) -> Json:
    """A pool's block. Its engines serve the first one's model; probes come often, so that tests need not wait."""
    models = [e.model for e in engines if isinstance(e, Engine)]
    urls = [e if isinstance(e, str) else e.url for e in engines]
    block = {"model": models[0] if models else "acme/none", "replicas": urls, "health": {"every_s": 0.25, "token_every_s": 0}}
    return block | settings


def policy(pools: Mapping[str, Json], routes: Mapping[str, Json] | None = None, **server: Any) -> Json:
    """A policy whose gateway ends quickly."""
    return {"version": 1, "server": {"drain_s": 1, **server}, "pools": dict(pools), "routes": dict(routes or {})}


class Observed:
    """What tests ask a running gateway, wherever it runs."""

    port: int

    def client(self, key: str | None = None) -> Client:
        """A client; with a key, one that shows it."""
        headers = [("authorization", f"Bearer {key}")] if key is not None else []
        client = Client(self.port, headers)
        self._clients.append(client)
        return client

    _clients: list[Client]

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's series that have these labels."""
        text = Client(self.port).get("/metrics").body.decode()
        total = 0.0
        for line in text.splitlines():
            found = re.fullmatch(rf"{name}(?:\{{(.*)\}})? (\S+)", line)
            if found and all(f'{k}="{v}"' in (found[1] or "") for k, v in labels.items()):
                total += float(found[2])
        return total

    def ready(self) -> Answer:
        return Client(self.port).get("/readyz")

    def decisions(self, key: str | None = None) -> list[Json]:
        """The latest records, newest first."""
        headers = [("authorization", f"Bearer {key}")] if key is not None else []
        return Client(self.port).get("/admin/decisions", headers).json()

    def record(self, key: str | None = None) -> Json:
        """The newest record."""
        return self.decisions(key)[0]

    def wait_idle(self) -> None:
        """Wait until nothing runs and nothing waits."""
        eventually(lambda: not self.metric("switchyard_in_flight") and not self.metric("switchyard_queued"))

    def close_clients(self) -> None:
        """Close what tests left open."""
        for client in self._clients:
            client.close()
        self._clients.clear()


class Gateway(Observed):
    """A gateway in this process. A context manager: inside, it serves.

    Args:
        policy: as a dict.
        keys: API keys, admin key, pools' keys.
        ready: wait until /readyz is 200; else only until it has asked its engines once.
        resolve: looks up names for pools that are found by DNS.
        send_buffer: bytes that the kernel may keep for a client; small to see back-pressure at once.
    """

    running: set[Gateway] = set()

    def __init__(
        self,
        policy: Json,
        *,
        keys: Secrets | None = None,
        ready: bool = True,
        send_buffer: int | None = None,
        resolve: Resolve = resolve,
    ) -> None:
        self._clients = []
        self._ready = ready
        self._listener = listen("127.0.0.1", 0)
        if send_buffer is not None:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        self.port: int = self._listener.getsockname()[1]
        parsed = parse_policy(json.dumps(policy).encode())
        self.inner = app.Gateway(parsed, keys or Secrets(), Random(7), resolve=resolve)
        settings = parsed.server
        self._server = make_server(self.inner.app, self.inner.door, settings.drain_delay_s, settings.drain_s)
        self._thread = threading.Thread(target=self._server.run, args=([self._listener],), name="gateway")
        self._failures = _Failures()

    def __enter__(self) -> Self:
        logging.getLogger().addHandler(self._failures)
        self._thread.start()
        try:
            eventually(self._is_up, 30)  # a busy machine starts slowly, and how fast is no test
        except BaseException:
            self.stop()
            raise
        Gateway.running.add(self)
        return self

    def _is_up(self) -> bool:
        answer = self.ready()
        return answer.status == 200 or (not self._ready and "starting" not in answer.json().get("reason", ""))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        Gateway.running.discard(self)
        self.close_clients()
        try:
            if error is None and not self.stopped:
                self.wait_idle()
        finally:
            self.stop()

    def wait_idle(self) -> None:
        """See `Observed`; looks inside, since a draining gateway takes no questions."""
        eventually(lambda: not any(p.queued or any(r.in_flight for r in p.replicas) for p in self.inner.pools.values()))

    def terminate(self) -> None:
        """What SIGTERM does."""
        self._server.handle_exit(signal.SIGTERM, None)

    @property
    def stopped(self) -> bool:
        return not self._thread.is_alive()

    def stop(self) -> None:
        """End, and fail when something failed inside."""
        self._server.should_exit = True
        self._thread.join(10)
        assert self.stopped, "the gateway goes on after it was told to end"
        logging.getLogger().removeHandler(self._failures)
        self.check()

    def expect_failures(self) -> list[str]:
        """What has failed inside the gateway until now: no fault of the gateway's where a test has brought it about.

        All gateways of this process hear of it: a line in the log has no gateway.
        """
        found = self._failures.found
        for gateway in {self, *Gateway.running}:
            gateway._failures.found = []
        return found

    def check(self) -> None:
        """Fail when a request or a task has failed inside the gateway."""
        found, self._failures.found = self._failures.found, []
        assert not found, found


class _Failures(logging.Handler):
    """Collects what the gateway logs when its own code fails."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.found.append(logging.Formatter().format(record))


class Serve(Observed):
    """`switchyard serve` as a process. A context manager: inside, it serves or has failed.

    Args:
        policy: as a dict, or the text of a file.
        folder: for its files.
        options: further arguments.
        environment: further variables.
    """

    def __init__(self, policy: Json | str, folder: Path, *options: str, environment: Mapping[str, str] | None = None) -> None:
        self._clients = []
        self.file = folder / "policy.yaml"
        self.file.write_text(policy if isinstance(policy, str) else json.dumps(policy, indent=1))
        self._log = folder / "gateway.log"
        command = [str(Path(sys.executable).with_name("switchyard")), "serve", str(self.file), *options]
        command += [] if "--port" in options else ["--port", "0"]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, env=os.environ | dict(environment or {})
            )

    @property
    def output(self) -> str:
        """All that it wrote."""
        return self._log.read_text()

    def __enter__(self) -> Self:
        try:
            eventually(lambda: self.process.poll() is not None or "switchyard listens on" in self.output, 15)
            if found := re.search(r"listens on http://\S+:(\d+)", self.output):
                self.port = int(found[1])
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close_clients()
        self.stop()

    def wait_ready(self) -> None:
        """Wait until it takes traffic."""

        def is_ready() -> bool:
            try:
                return self.ready().status == 200
            except ConnectionError:
                return False

        eventually(is_ready, 15)

    def exit_code(self, within_s: float = 50) -> int:
        """Wait for its end."""
        return self.process.wait(within_s)

    def terminate(self) -> float:
        """Send SIGTERM; gives the time."""
        self.process.send_signal(signal.SIGTERM)
        return time.monotonic()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(5)
