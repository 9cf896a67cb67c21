"""What the demo asks, on all three protocols, and how the first words are read out of each answer."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from switchyard.upstream.sse import EventSplitter, event_data

ANSWER_TOKENS = 24
_HARD = (
    "Design a distributed rate limiter for a multi-region deployment and prove that its algorithm never admits more than the "
    "limit under concurrent requests. Derive the complexity of every operation, discuss the trade-offs between a token bucket "
    "and a sliding window, show how you would debug a race condition in it, and outline how to migrate a running system to it "
    "step by step without losing a request. Then refactor the design so that clock skew of up to 200 ms does no harm."
)
_ARITHMETIC = "How many times does an eagle beat its wings in 3 hours, at 12 a minute, if it rests 20 minutes in each hour?"
_WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="


@dataclass(frozen=True)
class Ask:
    """One request of the demo.

    Attributes:
        title: what it shows.
        path: endpoint.
        body: JSON body.
        headers: besides the content type.
        status: the status it should get.
    """

    title: str
    path: str
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)
    status: int = 200


@dataclass(frozen=True)
class Shown:
    """What came back, as the demo shows it."""

    title: str
    endpoint: str
    expected: bool
    status: int
    pool: str
    replica: str
    reason: str
    stream: bool
    first_token_ms: float | None
    total_ms: float
    text: str


def make_asks() -> Iterator[Ask]:
    """The demo's requests, in order."""
    chat, session = "/v1/chat/completions", {"x-session-id": "demo-conversation"}

    def user(text: str) -> dict[str, Any]:
        return {"role": "user", "content": text}

    def body(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"model": "auto", "messages": list(messages), "max_tokens": ANSWER_TOKENS, "stream": True, **more}

    tool = {"type": "function", "function": {"name": "get_weather", "description": "Weather in a city", "parameters": _WEATHER}}
    schema = {"name": "city", "schema": _WEATHER}
    image = {
        "role": "user",
        "content": [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": _PIXEL}}],
    }
    yield Ask("a trivial question, streamed", chat, body(user("Say hello in one short sentence.")))
    yield Ask("the same without a stream", chat, body(user("Say hello in one short sentence."), stream=False))
    yield Ask("a question with arithmetic", chat, body(user(_ARITHMETIC)))
    yield Ask("a hard task", chat, body(user(_HARD)))
    yield Ask("tools are offered", chat, body(user("What is the weather in Paris?"), tools=[tool]))
    yield Ask(
        "a JSON Schema must be followed", chat,
        body(user("Name a city as JSON."), response_format={"type": "json_schema", "json_schema": schema}),
    )  # fmt: skip
    yield Ask("an image that no pool can see", chat, body(image), status=400)
    history = [user("Debug this: two threads deadlock in a concurrent algorithm. Prove your fix, derive its complexity.")]
    for turn, follow_up in enumerate(("Thanks, that helps.", "What is a mutex?", ""), 1):
        yield Ask(f"a session, turn {turn}", chat, body(*history), session)
        history = [*history, {"role": "assistant", "content": "Let me think."}, user(follow_up)]
    yield Ask("Anthropic's protocol, as Claude Code speaks", "/v1/messages", body(user("Say thanks in one short sentence.")))
    yield Ask(
        "the Responses protocol, as Codex speaks", "/v1/responses",
        {"model": "auto", "input": "List three colours.", "max_output_tokens": ANSWER_TOKENS, "stream": True},
    )  # fmt: skip
    yield Ask("a pool asked for by its name", chat, body(user("Say hello.")) | {"model": "big"})


async def send(client: httpx.AsyncClient, ask: Ask) -> Shown:
    """Send one request and read its answer to the end."""
    began = time.perf_counter()
    first_token_ms: float | None = None
    stream = bool(ask.body.get("stream"))
    text = ""
    async with client.stream("POST", ask.path, json=ask.body, headers=ask.headers) as answer:
        if answer.status_code == 200 and stream:
            events = EventSplitter()
            async for received in answer.aiter_bytes():
                piece = "".join(map(read_piece, events.feed(received)))
                if piece and first_token_ms is None:
                    first_token_ms = (time.perf_counter() - began) * 1000
                text += piece
        else:
            text = read_whole(await answer.aread())
    headers = answer.headers
    return Shown(
        ask.title, ask.path, answer.status_code == ask.status, answer.status_code, headers.get("x-switchyard-pool", "-"),
        headers.get("x-switchyard-replica", "-"), headers.get("x-switchyard-reason", headers.get("x-switchyard-error", "")),
        stream, first_token_ms, (time.perf_counter() - began) * 1000, " ".join(text.split()),
    )  # fmt: skip


def read_piece(event_: bytes) -> str:
    """The text in one event of any of the protocols."""
    try:
        event = json.loads(event_data(event_))
    except ValueError:
        return ""
    if event.get("type") == "response.output_text.delta":
        return str(event["delta"])
    if event.get("type") == "content_block_delta":
        return str(event["delta"].get("text", ""))
    choices = event.get("choices") or [{}]
    return str((choices[0].get("delta") or {}).get("content") or "")


def read_whole(body: bytes) -> str:
    """The text of a whole chat answer, or the message of an error."""
    answer = json.loads(body)
    if "error" in answer:
        return str(answer["error"]["message"])
    message = answer["choices"][0]["message"]
    return str(message.get("content") or message.get("tool_calls") or "")
