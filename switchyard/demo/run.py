"""The demo: three small real engines as two pools, the gateway in front, and a handful of requests through it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from importlib import resources
from pathlib import Path

import httpx

from switchyard.api.server import make_server
from switchyard.app import Gateway
from switchyard.config.load import parse_policy
from switchyard.config.policy import Policy
from switchyard.config.secrets import Secrets
from switchyard.demo.engine import EmbeddedEngine
from switchyard.demo.requests import Shown, make_asks, send

Say = Callable[[str], None]
READY_LIMIT_S = 30.0
TEXT_COLUMNS = 56


def demo_policy(urls: list[str]) -> Policy:
    """The shipped demo policy, with its engines' URLs replaced by these, in the order of the file."""
    text = resources.files("switchyard.demo").joinpath("demo.yaml").read_text()
    found = re.findall(r"http://127\.0\.0\.1:\d+", text)
    for placeholder, url in zip(found, urls, strict=True):
        text = text.replace(placeholder, url)
    return parse_policy(text.encode(), "demo.yaml")


class Demo:
    """One run.

    Args:
        model: the GGUF file.
        say: takes progress lines.
    """

    def __init__(self, model: Path, say: Say) -> None:
        self._say = say
        self._began = time.monotonic()
        self._engines = [EmbeddedEngine(model) for _ in range(3)]
        self.first_answer_s: float | None = None

    async def run(self, listener: socket.socket, once: bool, as_json: bool) -> bool:
        """Show the requests, then serve on until a signal comes; True when every answer was as expected."""
        host, port = listener.getsockname()[:2]
        url = f"http://{host}:{port}"
        async with contextlib.AsyncExitStack() as stack:
            self._say("starting three engines (llama.cpp with SmolLM2-135M): small-1, big-1, big-2")
            await asyncio.gather(*(stack.enter_async_context(engine) for engine in self._engines))
            policy = demo_policy([engine.url for engine in self._engines])
            gateway = Gateway(policy, Secrets())
            server = make_server(gateway.app, gateway.door, 0, 5)
            serving = asyncio.create_task(server.serve([listener]))
            try:
                async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as client:
                    await _wait_ready(client, serving)
                    self._say(f"the gateway listens on {url}")
                    shown = [s async for s in self._show(client, quiet=as_json)]
                good = all(s.expected for s in shown)
                if as_json:
                    answers = [asdict(s) for s in shown]
                    print(
                        json.dumps(
                            {"url": url, "good": good, "first_answer_s": self.first_answer_s, "answers": answers}, indent=2
                        )
                    )
                if not once:
                    self._say(_closing(url))
                    await serving
                return good
            finally:
                server.should_exit = True
                await asyncio.gather(serving, return_exceptions=True)

    async def _show(self, client: httpx.AsyncClient, quiet: bool) -> AsyncIterator[Shown]:
        if not quiet:
            print(f"\n{'request':44} {'pool':6} {'replica':8} {'first token':>11}  why / first words", flush=True)
        for ask in make_asks():
            shown = await send(client, ask)
            if self.first_answer_s is None:
                self.first_answer_s = round(time.monotonic() - self._began, 2)
            if not quiet:
                print(_line(shown), flush=True)
            yield shown


async def _wait_ready(client: httpx.AsyncClient, serving: asyncio.Task[None]) -> None:
    deadline = time.monotonic() + READY_LIMIT_S
    while time.monotonic() < deadline and not serving.done():
        with contextlib.suppress(httpx.TransportError):
            if (await client.get("/readyz")).status_code == 200:
                return
        await asyncio.sleep(0.05)
    if serving.done():
        serving.result()
    raise TimeoutError(f"the gateway was not ready within {READY_LIMIT_S:g} s")


def _line(shown: Shown) -> str:
    first = f"{shown.first_token_ms:.0f} ms" if shown.first_token_ms is not None else "-"
    mark = "" if shown.expected else "  UNEXPECTED"
    words = shown.text if len(shown.text) <= TEXT_COLUMNS else shown.text[: TEXT_COLUMNS - 3] + "..."
    if shown.status == 200:
        return f"{shown.title:44} {shown.pool:6} {shown.replica:8} {first:>11}  {shown.reason}{mark}\n{'':74}{words!r}"
    return f"{shown.title:44} {shown.pool:6} {shown.replica:8} {shown.status:>11}  {shown.reason}{mark}\n{'':74}{shown.text}"


def _closing(url: str) -> str:
    return f"""
Both pools hold the same small model: this shows routing, not quality. The gateway keeps serving; Ctrl-C ends it all. Try:

  curl -si {url}/v1/chat/completions -d '{{"model": "auto", "messages": [{{"role": "user", "content": "Hi!"}}]}}'
  curl -s  {url}/v1/models
  curl -s  {url}/v1/decision -d '{{"model": "auto", "messages": [{{"role": "user", "content": "Prove it."}}]}}'
  curl -s  {url}/metrics | grep switchyard_decisions

  pip install openai, then in Python:
    from openai import OpenAI
    client = OpenAI(base_url="{url}/v1", api_key="none")
    print(client.chat.completions.create(model="auto", messages=[{{"role": "user", "content": "Hi!"}}]))

  Claude Code: ANTHROPIC_BASE_URL={url} ANTHROPIC_API_KEY=none claude   (a 135M model won't get far with it)
"""
