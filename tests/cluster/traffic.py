"""What users do all the while: the official SDK, as it comes, asking at a low rate; and an eye on what the gateway knows."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from itertools import count

from httpx import HTTPError
from integration.client import Client
from openai import APIError, OpenAI

PAUSE_S = 0.3


@dataclass(frozen=True)
class Call:
    """One call of the SDK, its own retries included. Times are of the wall clock, as in records.

    Attributes:
        stream: whether it was one.
        first_s: when its first chunk came; 0 for none, and without a stream.
        problem: what the SDK raised; empty when all was well.
    """

    stream: bool
    began_s: float
    first_s: float
    ended_s: float
    problem: str


class Traffic:
    """A context manager: inside, calls are made, each a conversation of its own.

    Args:
        port: the gateway's, on loopback.
        model: what to ask for.
        streams: how many streams at a time.
        plain: how many calls without a stream at a time.
        retries: how often the SDK may try again by itself.
    """

    def __init__(self, port: int, model: str, *, streams: int = 2, plain: int = 1, retries: int = 0) -> None:
        self.calls: list[Call] = []
        self._sdk = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", timeout=60, max_retries=retries)
        self._model = model
        self._numbers = count()
        self._over = threading.Event()
        kinds = [True] * streams + [False] * plain
        self._threads = [threading.Thread(target=self._go_on, args=(kind,), name="traffic") for kind in kinds]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *of: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._sdk.close()

    def _go_on(self, stream: bool) -> None:
        while not self._over.wait(PAUSE_S):
            began_s, first = time.time(), [0.0]
            try:
                problem = self._stream(first) if stream else self._ask()
            except (APIError, HTTPError) as error:
                problem = f"{type(error).__name__}: {error}"
            self.calls.append(Call(stream, began_s, first[0], time.time(), problem))

    def _ask(self) -> str:
        answer = self._sdk.chat.completions.create(model=self._model, messages=[self._words()], max_tokens=6)
        return "" if answer.choices[0].finish_reason else "no finish_reason"

    def _stream(self, first: list[float]) -> str:
        last = None
        for chunk in self._sdk.chat.completions.create(model=self._model, messages=[self._words()], max_tokens=24, stream=True):
            first[0] = first[0] or time.time()
            last = chunk.choices[0].finish_reason if chunk.choices else last
        return "" if last else "the stream ended without a finish_reason"

    def _words(self) -> dict[str, str]:
        return {"role": "user", "content": f"Story number {next(self._numbers)}, please."}


class Watch:
    """What /readyz says about one replica."""

    def __init__(self, port: int, pool: str, replica: str) -> None:
        self._ask = Client(port)
        self._pool, self._replica = pool, replica
        self.problem = ""

    def state(self) -> str:
        """Its state now."""
        shown = self._ask.get("/readyz").json()["pools"][self._pool]["replicas"][self._replica]
        self.problem = shown.get("problem", "")
        return str(shown["state"])

    def until(self, state: str, within_s: float) -> float:
        """Wait for a state; gives the time at which it was seen."""
        deadline = time.time() + within_s
        while (now := self.state()) != state:
            assert time.time() < deadline, f"{self._replica} is {now} ({self.problem}), and not {state} after {within_s:g} s"
            time.sleep(0.05)
        return time.time()
