"""The gateway before vLLM itself, with both SDKs: what only the real engine can prove. Run by `make test-vllm`.

The environment (2 GB) is built on the first run, by `vllm_env`. The model is small: it tests plumbing, not wit.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from anthropic import Anthropic, BadRequestError
from integration.client import Client, ask, error_of, eventually
from integration.gateway import Gateway
from integration.one_engine import one_engine_gateway
from openai import OpenAI
from pydantic import BaseModel
from vllm_env import ensure
from vllm_server import VllmServer

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]  # the first test builds the environment where it is missing

HI: list[Any] = [{"role": "user", "content": "Say hello."}]
CONTEXT = 2048
WEATHER: dict[str, Any] = {
    "name": "weather", "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
                   "required": ["city"], "additionalProperties": False},
}  # fmt: skip


class Verdict(BaseModel):
    good: bool


@pytest.fixture(scope="module")
def vllm() -> Iterator[VllmServer]:
    # Without whitespace between JSON's tokens: this model would write nothing else, up to the limit.
    compact = ["--structured-outputs-config", json.dumps({"backend": "xgrammar", "disable_any_whitespace": True})]
    with VllmServer(ensure(), max_model_len=CONTEXT, extra=compact) as server:
        asyncio.run(server.wait_ready())
        yield server


@pytest.fixture(scope="module")
def gateway(vllm: VllmServer) -> Iterator[Gateway]:
    with one_engine_gateway(vllm.url, 60_000) as gateway:
        yield gateway


@pytest.fixture
def openai_sdk(gateway: Gateway) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"http://127.0.0.1:{gateway.port}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


@pytest.fixture
def anthropic_sdk(gateway: Gateway) -> Iterator[Anthropic]:
    with Anthropic(base_url=f"http://127.0.0.1:{gateway.port}", api_key="none", max_retries=0, timeout=120) as client:
        yield client


@pytest.fixture(autouse=True)
def _nothing_left(gateway: Gateway) -> Iterator[None]:
    yield
    gateway.close_clients()
    gateway.wait_idle()
    gateway.check()


# ---- chat ----


def test_chat(openai_sdk: OpenAI, gateway: Gateway) -> None:
    raw = openai_sdk.chat.completions.with_raw_response.create(model="small", messages=HI, max_tokens=8, temperature=0)
    answer = raw.parse()
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 8
    assert answer.id.startswith(f"chatcmpl-{raw.request_id}-"), "vLLM puts the request's id into its own"
    assert gateway.record()["tokens"]["output"] == answer.usage.completion_tokens


def test_a_chat_stream(openai_sdk: OpenAI, gateway: Gateway) -> None:
    whole = openai_sdk.chat.completions.create(model="small", messages=HI, max_tokens=8, temperature=0)
    chunks = list(openai_sdk.chat.completions.create(model="small", messages=HI, max_tokens=8, temperature=0, stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
    assert all(c.choices for c in chunks), "the usage event that the gateway asked for is taken out"
    assert whole.usage is not None
    assert gateway.record()["tokens"]["output"] == whole.usage.completion_tokens
    asked = list(
        openai_sdk.chat.completions.create(
            model="small", messages=HI, max_tokens=8, stream=True, stream_options={"include_usage": True}
        )
    )
    assert asked[-1].usage is not None


@pytest.mark.parametrize("streamed", [False, True])
def test_tools(openai_sdk: OpenAI, streamed: bool) -> None:
    """Required and strict, so that even this model calls it; its result goes back."""
    tools: list[Any] = [{"type": "function", "function": {**WEATHER, "strict": True}}]
    asked: dict[str, Any] = {
        "model": "small",
        "messages": HI,
        "tools": tools,
        "tool_choice": "required",
        "max_tokens": 64,
        "temperature": 0,
    }
    if streamed:
        name, arguments = "", ""
        for chunk in openai_sdk.chat.completions.create(stream=True, **asked):
            for call in chunk.choices[0].delta.tool_calls or []:
                assert call.function is not None
                name += call.function.name or ""
                arguments += call.function.arguments or ""
        id_ = "call_1"
    else:
        message = openai_sdk.chat.completions.create(**asked).choices[0].message
        assert message.tool_calls
        found: Any = message.tool_calls[0]
        name, arguments, id_ = found.function.name, found.function.arguments, found.id
    assert name == "weather"
    assert json.loads(arguments)["city"] in {"Paris", "Rome"}
    call_back = {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
    history = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [call_back]},
        {"role": "tool", "tool_call_id": id_, "content": "sunny"},
    ]
    answer = openai_sdk.chat.completions.create(model="small", messages=history, tools=tools, max_tokens=8)
    assert answer.choices[0].finish_reason


def test_structured_output(openai_sdk: OpenAI) -> None:
    answer = openai_sdk.chat.completions.parse(
        model="small", messages=HI, response_format=Verdict, max_tokens=32, temperature=0
    )
    assert isinstance(answer.choices[0].message.parsed, Verdict)


def test_a_field_of_vllms_own(openai_sdk: OpenAI) -> None:
    answer = openai_sdk.chat.completions.create(
        model="small",
        messages=HI,
        max_tokens=8,
        extra_body={"structured_outputs": {"choice": ["left", "right"]}, "return_token_ids": True},
    )
    assert answer.choices[0].message.content in {"left", "right"}
    assert answer.choices[0].model_dump()["token_ids"]


def test_logprobs(openai_sdk: OpenAI) -> None:
    answer = openai_sdk.chat.completions.create(model="small", messages=HI, max_tokens=2, logprobs=True, top_logprobs=5)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content
    assert len(logprobs.content[0].top_logprobs) == 5
    chunks = list(
        openai_sdk.chat.completions.create(model="small", messages=HI, max_tokens=2, logprobs=True, top_logprobs=5, stream=True)
    )
    assert any(c.choices[0].logprobs is not None for c in chunks)


def test_completions(openai_sdk: OpenAI) -> None:
    pieces = list(openai_sdk.completions.create(model="small", prompt="One, two,", max_tokens=4, stream=True))
    assert "".join(p.choices[0].text for p in pieces)


# ---- Responses ----


def test_responses(openai_sdk: OpenAI) -> None:
    made = openai_sdk.responses.create(model="small", input="Say hello.", max_output_tokens=8)
    assert made.output_text
    with openai_sdk.responses.stream(model="small", input="Say hello.", max_output_tokens=8) as events:
        kinds = [event.type for event in events]
    assert kinds[0] == "response.created"
    assert "response.output_text.delta" in kinds
    assert kinds[-1] in {"response.completed", "response.incomplete"}


def test_a_response_by_its_id(openai_sdk: OpenAI, gateway: Gateway) -> None:
    """Without a store vLLM doesn't keep it; whatever it says, it is asked and its word comes through."""
    made = openai_sdk.responses.create(model="small", input="Say hello.", max_output_tokens=8)
    answer = Client(gateway.port).get(f"/v1/responses/{made.id}")
    assert answer.replica is not None
    assert answer.code is None, "the engine's answer, not the gateway's"
    if answer.status == 200:
        assert answer.json()["id"] == made.id
    else:
        error_of("responses", answer.json())


# ---- Messages ----


def test_messages(anthropic_sdk: Anthropic) -> None:
    answer: Any = anthropic_sdk.messages.create(model="claude-small", max_tokens=8, messages=HI)
    assert answer.content[0].text
    with anthropic_sdk.messages.stream(model="small", max_tokens=8, messages=HI) as running:
        assert "".join(running.text_stream)
        final = running.get_final_message()
    assert final.stop_reason in {"max_tokens", "end_turn"}
    assert final.usage.output_tokens > 0


def test_messages_with_tools(anthropic_sdk: Anthropic) -> None:
    tools: list[Any] = [{"name": "weather", "description": "w", "input_schema": WEATHER["parameters"]}]
    answer = anthropic_sdk.messages.create(
        model="small",
        max_tokens=64,
        messages=HI,
        tools=tools,
        tool_choice={"type": "tool", "name": "weather"},
        extra_body={"temperature": 0},
    )
    calls = [block for block in answer.content if block.type == "tool_use"]
    assert calls
    assert calls[0].name == "weather"
    result = {"type": "tool_result", "tool_use_id": calls[0].id, "content": "sunny"}
    history = [
        *HI,
        {"role": "assistant", "content": [calls[0].model_dump(exclude_none=True)]},
        {"role": "user", "content": [result]},
    ]
    assert anthropic_sdk.messages.create(model="small", max_tokens=8, messages=history, tools=tools).stop_reason


def test_count_tokens(anthropic_sdk: Anthropic) -> None:
    raw = anthropic_sdk.messages.with_raw_response.count_tokens(model="small", messages=HI)
    counted = raw.parse().input_tokens
    answer = anthropic_sdk.messages.create(model="small", max_tokens=1, messages=HI)
    assert "x-switchyard-estimate" not in raw.headers
    assert counted == answer.usage.input_tokens


# ---- limits ----


def test_its_context_is_read(openai_sdk: OpenAI) -> None:
    for name in ("small", "auto"):
        assert openai_sdk.models.retrieve(name).model_dump()["max_model_len"] == CONTEXT


def test_its_words_about_an_overflow_pass(openai_sdk: OpenAI, anthropic_sdk: Anthropic, gateway: Gateway) -> None:
    """A 400 before any event, streamed or not; nothing is held against the replica."""
    long: list[Any] = [{"role": "user", "content": "word " * 2500}]
    for streamed in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            openai_sdk.chat.completions.create(model="small", messages=long, max_tokens=4, stream=streamed)
        assert "maximum context length" in caught.value.message
    with pytest.raises(BadRequestError) as refused:
        anthropic_sdk.messages.create(model="small", messages=long, max_tokens=4)
    assert "context length" in str(refused.value)
    error_of("messages", refused.value.body)
    assert gateway.metric("switchyard_replica_up", pool="small") == 1


def test_clamped_output(openai_sdk: OpenAI) -> None:
    raw = openai_sdk.chat.completions.with_raw_response.create(
        model="big", messages=HI, max_tokens=32_000, stop=["."], temperature=0
    )
    assert "lowered from 32000" in raw.headers["x-switchyard-reason"]
    with pytest.raises(openai.BadRequestError):
        openai_sdk.chat.completions.create(model="small", messages=HI, max_tokens=32_000)


def test_what_it_doesnt_have(gateway: Gateway) -> None:
    """A model for text has no embeddings; its word, or ours where its list of paths says so."""
    answer = Client(gateway.port).post(*ask("embeddings"))
    assert 400 <= answer.status < 500
    error_of("embeddings", answer.json())


# ---- routing ----


def test_the_judge_gives_a_probability(gateway: Gateway) -> None:
    answer = Client(gateway.port).post(*ask("chat", "What is two plus two?", "auto", max_tokens=2))
    assert answer.status == 200
    decision = gateway.record()["decision"]
    assert (decision["kind"], decision["degraded"]) == ("score", False), decision
    assert 0 < decision["p"] < 1
    assert decision["classifier"] == "model judge"


def test_leaving_frees_its_place(gateway: Gateway, vllm: VllmServer) -> None:
    client = gateway.client()
    path, body = ask("chat", "Tell me a very long story.", stream=True, max_tokens=1500, ignore_eos=True)
    for _ in range(3):
        connection = client.start(path, body, timeout_s=60)
        connection.read_until(b"data: ")
        connection.leave()
    gateway.wait_idle()

    def running() -> float:
        text = Client(vllm.port).get("/metrics").body.decode()
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith("vllm:num_requests_running{"))

    eventually(lambda: running() == 0, 20)


def test_connections_that_it_closes_are_no_error(gateway: Gateway) -> None:
    """vLLM closes idle connections after 5 s; ours go before that, and a request in between finds a good one."""
    client = Client(gateway.port)
    for pause in (4.8, 5.05):
        assert client.post(*ask("chat", max_tokens=1)).status == 200
        gateway.client().open(timeout_s=30).silent(pause)
    assert client.post(*ask("chat", max_tokens=1)).status == 200
