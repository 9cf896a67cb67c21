"""Asking a running gateway to drain replicas, and to let them have requests again."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

from switchyard.cli.main import COULD_NOT_RUN, NOT_GOOD, CommandFailed

ANSWER_LIMIT_S = 5.0
LOOK_EVERY_S = 0.5


class Gateway:
    """The admin side of a gateway. A context manager.

    Args:
        url: where it is.
        key: its admin key; empty for none.
        key_env: variable that the key is from, for messages.
    """

    def __init__(self, url: str, key: str, key_env: str) -> None:
        self._url = url.rstrip("/")
        self._key_env = key_env
        headers = {"authorization": f"Bearer {key}"} if key else {}
        try:
            self._client = httpx.Client(base_url=self._url, headers=headers, timeout=ANSWER_LIMIT_S, trust_env=False)
        except httpx.InvalidURL as error:
            raise CommandFailed(f"--url {url}: {error}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._client.close()

    def drain(self, replicas: Sequence[tuple[str, str]], limit_s: float) -> None:
        """Drain replicas and wait until nothing runs on them; on failure they get requests again.

        Raises:
            CommandFailed: the gateway can't or won't, or requests still run after `limit_s`.
        """
        done: list[tuple[str, str]] = []
        try:
            for replica in replicas:
                self._act(replica, "drain")
                done.append(replica)
            self._wait_idle(replicas, limit_s)
        except (CommandFailed, KeyboardInterrupt):
            self.undrain(done)
            raise

    def undrain(self, replicas: Sequence[tuple[str, str]]) -> None:
        """Let replicas have requests again.

        Raises:
            CommandFailed: the gateway can't.
        """
        for replica in replicas:
            self._act(replica, "undrain")

    def _wait_idle(self, replicas: Sequence[tuple[str, str]], limit_s: float) -> None:
        ends_s = time.monotonic() + limit_s
        said = -1
        while (left := self._in_flight(replicas)) > 0:
            if time.monotonic() > ends_s:
                raise CommandFailed(
                    f"{left} requests still run there after {limit_s:g} s: nothing was lent; --wait waits longer", NOT_GOOD
                )
            if left != said:
                print(f"{left} requests still run there", file=sys.stderr)
            said = left
            time.sleep(LOOK_EVERY_S)

    def _in_flight(self, replicas: Sequence[tuple[str, str]]) -> int:
        pools = self._ask("GET", "/admin/pools")["pools"]
        found = {(pool["pool"], r["replica"]): r["in_flight"] for pool in pools for r in pool["replicas"]}
        return sum(found.get(replica, 0) for replica in replicas)

    def _act(self, replica: tuple[str, str], action: str) -> None:
        pool, label = map(quote, replica)
        self._ask("POST", f"/admin/pools/{pool}/replicas/{label}/{action}")

    def _ask(self, method: str, path: str) -> Any:
        try:
            answer = self._client.request(method, path)
        except httpx.HTTPError as error:
            why = str(error) or type(error).__name__
            raise CommandFailed(f"the gateway at {self._url} can't be asked: {why} (--no-gateway does without)") from None
        try:
            body = answer.json()
        except ValueError:
            body = None
        if answer.is_success and isinstance(body, dict):
            return body
        message = body["error"]["message"] if isinstance(body, dict) and isinstance(body.get("error"), dict) else path
        if answer.status_code in {401, 403}:
            message += f"; the key is read from the variable {self._key_env}"
        code = NOT_GOOD if answer.status_code == 409 else COULD_NOT_RUN
        raise CommandFailed(f"the gateway at {self._url} answers {answer.status_code}: {message}", code)
