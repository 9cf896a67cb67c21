"""Both SDKs on a real small model: llama.cpp's server from `xllamacpp`, as the demo starts it. It tests plumbing, not wit."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from anthropic import Anthropic
from integration.client import Client, ask, error_of, eventually
from integration.gateway import Gateway
from integration.one_engine import one_engine_gateway
from openai import OpenAI

from switchyard.bench.measure import measure
from switchyard.demo.engine import EmbeddedEngine
from switchyard.demo.model import fetch_model

HI: list[Any] = [{"role": "user", "content": "Say hello."}]
SLOT_TOKENS = 2048


@pytest.fixture(scope="module")
def real_engine() -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine(fetch_model()) as engine:
        asyncio.run(engine.wait_ready())
        yield engine


@pytest.fixture(scope="module")
def gateway(real_engine: EmbeddedEngine) -> Iterator[Gateway]:
    with one_engine_gateway(real_engine.url, 20_000) as gateway:
        yield gateway


@pytest.fixture
def openai_sdk(gateway: Gateway) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"http://127.0.0.1:{gateway.port}/v1", api_key="none", max_retries=0, timeout=50) as client:
        yield client


@pytest.fixture
def anthropic_sdk(gateway: Gateway) -> Iterator[Anthropic]:
    with Anthropic(base_url=f"http://127.0.0.1:{gateway.port}", api_key="none", max_retries=0, timeout=50) as client:
        yield client


def test_chat(openai_sdk: OpenAI) -> None:
    answer = openai_sdk.chat.completions.create(model="small", messages=HI, max_tokens=8, temperature=0)
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert 0 < answer.usage.completion_tokens <= 8


def test_a_chat_stream_is_the_same_text(openai_sdk: OpenAI, gateway: Gateway) -> None:
    """And its usage is known to the gateway, though the client didn't ask."""
    whole = openai_sdk.chat.completions.create(model="small", messages=HI, max_tokens=8, temperature=0)
    chunks = list(openai_sdk.chat.completions.create(model="small", messages=HI, max_tokens=8, temperature=0, stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
    assert all(c.choices for c in chunks)
    tokens = gateway.record()["tokens"]
    assert whole.usage is not None
    assert tokens["output"] == whole.usage.completion_tokens
    assert tokens["input"] == whole.usage.prompt_tokens


def test_chat_with_tools_and_a_schema_is_accepted(openai_sdk: OpenAI) -> None:
    tool: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    assert openai_sdk.chat.completions.create(model="small", messages=HI, max_tokens=4, tools=[tool]).choices
    schema: Any = {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}},
    }
    answer = openai_sdk.chat.completions.create(
        model="small", messages=HI, max_tokens=40, temperature=0, response_format=schema
    )
    assert (answer.choices[0].message.content or "").lstrip().startswith("{")


def test_completions(openai_sdk: OpenAI) -> None:
    answer = openai_sdk.completions.create(model="small", prompt="One, two,", max_tokens=4)
    assert answer.choices[0].text
    pieces = list(openai_sdk.completions.create(model="small", prompt="One, two,", max_tokens=4, stream=True))
    assert "".join(p.choices[0].text for p in pieces if p.choices)


def test_responses(openai_sdk: OpenAI) -> None:
    answer = openai_sdk.responses.create(model="small", input="Say hello.", max_output_tokens=8)
    assert answer.output_text
    events = openai_sdk.responses.create(model="small", input="Say hello.", max_output_tokens=8, stream=True)
    kinds = [event.type for event in events]  # llama.cpp's have no indices, so no helper of the SDK here
    assert kinds[0] == "response.created"
    assert "response.output_text.delta" in kinds
    assert kinds[-1] in {"response.completed", "response.incomplete"}


def test_messages(anthropic_sdk: Anthropic) -> None:
    answer: Any = anthropic_sdk.messages.create(model="claude-small", max_tokens=8, messages=HI)
    assert answer.content[0].text
    assert answer.usage.output_tokens > 0
    events: list[Any] = list(anthropic_sdk.messages.create(model="small", max_tokens=8, messages=HI, stream=True))
    assert "".join(e.delta.text for e in events if e.type == "content_block_delta")
    assert events[-1].type == "message_stop"  # llama.cpp now and then leaves message_start out, so no helper of the SDK here


def test_count_tokens(anthropic_sdk: Anthropic) -> None:
    short = anthropic_sdk.messages.count_tokens(model="small", messages=HI).input_tokens
    longer = anthropic_sdk.messages.count_tokens(
        model="small", messages=[{"role": "user", "content": "word " * 100}]
    ).input_tokens
    assert 0 < short < longer


def test_its_context_is_read(openai_sdk: OpenAI) -> None:
    """llama.cpp divides its context by its slots; that share is what a request can get."""
    assert openai_sdk.models.retrieve("small").model_dump()["max_model_len"] == SLOT_TOKENS


def test_more_than_its_context(openai_sdk: OpenAI, anthropic_sdk: Anthropic, gateway: Gateway) -> None:
    """A little more is the engine's refusal, much more the gateway's; both are a 400 in the protocol's shape."""
    for words in (2500, 20_000):
        text = "word " * words
        with pytest.raises(openai.BadRequestError):
            openai_sdk.chat.completions.create(model="small", messages=[{"role": "user", "content": text}], max_tokens=4)
        answer = Client(gateway.port).post(*ask("messages", text))
        assert answer.status == 400
        error_of("messages", answer.json())
    assert gateway.metric("switchyard_replica_up", pool="small") == 1


def test_clamped_output(openai_sdk: OpenAI, gateway: Gateway) -> None:
    raw = openai_sdk.chat.completions.with_raw_response.create(
        model="big", messages=HI, max_tokens=32_000, stop=["."], temperature=0
    )
    assert "lowered from 32000" in raw.headers["x-switchyard-reason"]


def test_the_judge_gives_a_probability(gateway: Gateway) -> None:
    """A real model's log-probabilities of one token; at chance, but read."""
    answer = Client(gateway.port).post(*ask("chat", "What is two plus two?", "auto", max_tokens=2))
    assert answer.status == 200
    decision = gateway.record()["decision"]
    assert decision["kind"] == "score", decision
    assert decision["classifier"] == "model judge"
    assert 0 < decision["p"] < 1


def test_leaving_frees_the_slot(gateway: Gateway, real_engine: EmbeddedEngine) -> None:
    """llama.cpp stops working for a client that has left: its slots are all free again, so that four more can come."""
    client = gateway.client()
    path, body = ask("chat", "Tell me a very long story.", stream=True, max_tokens=1500)
    for _ in range(4):
        connection = client.start(path, body)
        connection.read_until(b"data: ")
        connection.leave()
    gateway.wait_idle()

    def busy() -> float:
        text = Client(real_engine.port).get("/metrics").body.decode()
        return sum(float(line.split()[1]) for line in text.splitlines() if line.startswith("llamacpp:requests_processing"))

    eventually(lambda: busy() == 0, 10)
    assert client.post(*ask("chat", max_tokens=2)).status == 200


def test_bench_measures_it_through_the_gateway_and_direct(gateway: Gateway, real_engine: EmbeddedEngine) -> None:
    """Both ways are the same engine, so figures are alike; how alike depends on what else this machine does.

    The prompts are always the same ones: to some this small model has nothing to say but its end token.
    """
    urls = {f"http://127.0.0.1:{gateway.port}": "small", real_engine.url: "smollm2"}
    through, direct = (
        asyncio.run(measure(url, "", model, 200, 16, [1], 2, lambda _: None, seed=3))[1][0].as_dict()
        for url, model in urls.items()
    )
    for row in (through, direct):
        assert row["prompt_tokens"] == pytest.approx(200, rel=0.2)
        assert row["answer_tokens"] == 16
        assert row["failed"] == 0
    for name in ("prefill_tokens_s", "decode_tokens_s"):
        ratio = through[name]["total"]["mean"] / direct[name]["total"]["mean"]
        assert 1 / 5 < ratio < 5
