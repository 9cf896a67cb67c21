"""Measuring an OpenAI-compatible URL: batches of streamed chat requests with prompts that nobody has in a cache."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from random import Random
from statistics import median
from typing import Any

import httpx

from switchyard.bench.figures import Row, Timing, summarise
from switchyard.upstream.sse import EventSplitter, event_data

WORDS = ("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state", "family")
TOKENS_A_WORD = 1.3
"""A first guess, corrected by what the engine counts."""
LATENCY_ASKS = 5
CONNECT_LIMIT_S = 10.0
ANSWER_LIMIT_S = 1800.0


class BenchFailed(Exception):
    """It can't be measured; the message says why."""


class Bench:
    """Measures one URL.

    Args:
        client: with the base URL and the key.
        model: to ask for.
        prompt_tokens: wanted length of prompts.
        answer_tokens: wanted length of answers.
        random: of prompts; unique ones, so that no prefix cache helps.
    """

    def __init__(self, client: httpx.AsyncClient, model: str, prompt_tokens: int, answer_tokens: int, random: Random) -> None:
        self._client = client
        self._model = model
        self._prompt_tokens = prompt_tokens
        self._answer_tokens = answer_tokens
        self._random = random
        self._words = max(1, round(prompt_tokens / TOKENS_A_WORD))

    async def run(self, concurrencies: Sequence[int], runs: int, tell: Callable[[str], None]) -> list[Row]:
        """One row for each number of requests at once.

        Raises:
            BenchFailed: it doesn't answer, or answers nonsense.
        """
        await self._warm_up()
        latency_s = await self._latency_s()
        rows = []
        for concurrency in concurrencies:
            batches, failures = [], []
            for i in range(runs):
                tell(f"{concurrency} at once, run {i + 1} of {runs}")
                found = await asyncio.gather(*(self._ask() for _ in range(concurrency)), return_exceptions=True)
                batches.append([t for t in found if isinstance(t, Timing)])
                failures += [e for e in found if isinstance(e, BaseException)]
            for failure in failures:
                if not isinstance(failure, BenchFailed | httpx.HTTPError):
                    raise failure
            if failures and not any(batches):
                raise BenchFailed(f"{concurrency} at once: no request was answered; the last: {failures[-1]}")
            rows.append(summarise(concurrency, batches, latency_s, len(failures)))
        return rows

    async def _warm_up(self) -> None:
        """Twice: the first prompt tells how many tokens a word has here, the second one is nearly right."""
        for _ in range(2):
            try:
                timing = await self._ask()
            except httpx.HTTPError as error:
                raise BenchFailed(str(error) or type(error).__name__) from None
            self._words = max(1, round(self._words * self._prompt_tokens / max(1, timing.prompt_tokens)))

    async def _latency_s(self) -> float:
        """What a request without work takes: the model list, as llama-benchy's latency mode `api` has it."""
        times = []
        for _ in range(LATENCY_ASKS):
            began_s = time.monotonic()
            try:
                (await self._client.get("/v1/models")).raise_for_status()
            except httpx.HTTPError:
                return 0.0
            times.append(time.monotonic() - began_s)
        return median(times)

    def _prompt(self) -> str:
        return f"{self._random.getrandbits(64):016x} " + " ".join(self._random.choices(WORDS, k=self._words))

    async def _ask(self) -> Timing:
        body = {
            "model": self._model, "messages": [{"role": "user", "content": self._prompt()}], "stream": True,
            "stream_options": {"include_usage": True}, "temperature": 0, "max_tokens": self._answer_tokens,
            "min_tokens": self._answer_tokens, "ignore_eos": True, "cache_prompt": False,
        }  # fmt: skip
        sent_s = time.monotonic()
        first_s = first_token_s = last_token_s = 0.0
        texts = 0
        usage: dict[str, int] = {}
        async with self._client.stream("POST", "/v1/chat/completions", json=body) as answer:
            if answer.status_code != 200:
                text = (await answer.aread()).decode(errors="replace")
                raise BenchFailed(f"status {answer.status_code}: {text[:300]}")
            async for data in _events(answer):
                now_s = time.monotonic()
                first_s = first_s or now_s
                event = _parse(data)
                usage = event.get("usage") or usage
                delta = (event["choices"][0].get("delta") or {}) if event.get("choices") else {}
                if delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning"):
                    first_token_s = first_token_s or now_s
                    last_token_s = now_s
                    texts += 1
        if not texts:
            raise BenchFailed("an answer without text")
        prompt, tokens = usage.get("prompt_tokens"), usage.get("completion_tokens")
        if prompt is None or tokens is None:
            raise BenchFailed("the stream ends without usage: stream_options.include_usage is not obeyed")
        return Timing(sent_s, first_s, first_token_s, last_token_s, prompt, tokens, tokens / texts)


async def _events(answer: httpx.Response) -> AsyncIterator[bytes]:
    """The data of each event. httpx's own lines also end at U+2028 and the like, which stand in texts of models."""
    splitter = EventSplitter()
    async for piece in answer.aiter_bytes():
        for event in splitter.feed(piece):
            if (data := event_data(event)) not in {b"", b"[DONE]"}:
                yield data


def _parse(data: bytes) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        raise BenchFailed(f"an event that is no JSON object: {data[:100].decode(errors='replace')}")
    if "error" in event:
        raise BenchFailed(f"an error in the stream: {str(event['error'])[:300]}")
    return event


async def measure(
    url: str, key: str, model: str | None, prompt_tokens: int, answer_tokens: int, concurrencies: Sequence[int], runs: int,
    tell: Callable[[str], None], seed: int | None = None,
) -> tuple[str, list[Row]]:  # fmt: skip
    """Measure a URL; gives the model that was asked and the figures.

    Raises:
        BenchFailed: it can't be measured.
    """
    headers = {"authorization": f"Bearer {key}"} if key else {}
    limits = httpx.Limits(max_connections=None)
    timeout = httpx.Timeout(ANSWER_LIMIT_S, connect=CONNECT_LIMIT_S)
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=timeout, limits=limits, trust_env=False) as client:
        model = model or await _first_model(client)
        bench = Bench(client, model, prompt_tokens, answer_tokens, Random(seed))
        return model, await bench.run(concurrencies, runs, tell)


async def _first_model(client: httpx.AsyncClient) -> str:
    try:
        answer = await client.get("/v1/models")
        name = answer.json()["data"][0]["id"] if answer.is_success else None
    except httpx.HTTPError as error:
        raise BenchFailed(f"can't be asked: {error or type(error).__name__} (does it run there?)") from None
    except (ValueError, LookupError, TypeError):
        name = None
    if not isinstance(name, str):
        raise BenchFailed("it doesn't say which models it has: name one with --model")
    return name
