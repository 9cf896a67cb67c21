"""The Anthropic SDK against the gateway, with the fake engine behind it: what it reads, sends, calls and raises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic
from integration.client import eventually
from integration.engine import HANG, RESET, Engine, named, reply, stream
from integration.gateway import Gateway
from pydantic import BaseModel

from .conftest import KEY

TEXT = "Hello from the engine"
HI: list[Any] = [{"role": "user", "content": "hi"}]
TOOLS: list[Any] = [
    {
        "name": "weather",
        "description": "The weather of a city.",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    }
]


class Trip(BaseModel):
    city: str
    days: int


@pytest.fixture
def client(fake_gateway: Gateway, engine: Engine) -> Iterator[Anthropic]:
    with Anthropic(base_url=f"http://127.0.0.1:{fake_gateway.port}", api_key=KEY, max_retries=0, timeout=10) as client:
        yield client


@pytest.mark.parametrize("model", ["small", "auto", "claude-anything"])
def test_messages(client: Anthropic, engine: Engine, model: str) -> None:
    answer: Any = client.messages.create(
        model=model,
        max_tokens=32,
        messages=HI,
        system="Be kind.",
        thinking={"type": "disabled"},
        extra_headers={"anthropic-beta": "a,b"},
    )
    assert answer.content[0].text == TEXT
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (9, 4)
    assert engine.last.json()["thinking"] == {"type": "disabled"}
    assert engine.last.header("anthropic-beta") == "a,b"
    assert engine.last.header("anthropic-version")
    assert engine.last.header("x-api-key") is None
    assert engine.last.header("authorization") == "Bearer engine-key"


def test_a_stream(client: Anthropic) -> None:
    with client.messages.stream(model="auto", max_tokens=32, messages=HI) as running:
        assert "".join(running.text_stream) == TEXT
        final: Any = running.get_final_message()
    assert final.stop_reason == "end_turn"
    assert final.usage.output_tokens == 4


def test_raw_events(client: Anthropic) -> None:
    kinds = [event.type for event in client.messages.create(model="auto", max_tokens=32, messages=HI, stream=True)]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


@pytest.mark.parametrize("streamed", [False, True])
def test_tools_are_called(client: Anthropic, streamed: bool) -> None:
    messages = list(HI)
    for _ in range(3):
        if streamed:
            with client.messages.stream(model="auto", max_tokens=32, messages=messages, tools=TOOLS) as running:
                answer: Any = running.get_final_message()
        else:
            answer = client.messages.create(model="auto", max_tokens=32, messages=messages, tools=TOOLS)
        if answer.stop_reason != "tool_use":
            break
        messages.append({"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in answer.content]})
        results = [
            {"type": "tool_result", "tool_use_id": b.id, "content": f"{b.input['days']} sunny days in {b.input['city']}"}
            for b in answer.content
        ]
        messages.append({"role": "user", "content": results})
    assert answer.content[0].text == "The tool said 7 sunny days in Paris"


def test_structured_output(client: Anthropic) -> None:
    answer = client.messages.parse(model="auto", max_tokens=32, messages=HI, output_format=Trip)
    assert answer.parsed_output == Trip(city="Paris", days=7)


def test_count_tokens(client: Anthropic, engine: Engine) -> None:
    assert client.messages.count_tokens(model="auto", messages=HI, tools=TOOLS).input_tokens == 42
    engine.play_at("/v1/messages/count_tokens", reply({"detail": "Not Found"}, 404))
    raw = client.messages.with_raw_response.count_tokens(model="auto", messages=HI, tools=TOOLS)
    assert raw.headers["x-switchyard-estimate"] == "true"
    assert raw.parse().input_tokens > 10


def test_beta(client: Anthropic, engine: Engine) -> None:
    answer: Any = client.beta.messages.create(
        model="auto", max_tokens=32, messages=HI, betas=["x-2026"], extra_query={"beta": "true"}
    )
    assert answer.content[0].text == TEXT
    assert engine.last.target == "/v1/messages?beta=true"
    assert engine.last.header("anthropic-beta") == "x-2026"


def test_models(client: Anthropic) -> None:
    """The list is OpenAI's; the SDK reads the names all the same."""
    assert "auto" in {model.id for model in client.models.list()}


# ---- errors ----


def error_type(error: anthropic.APIStatusError) -> Any:
    body: Any = error.body
    assert body["type"] == "error"
    return body["error"]["type"]


def test_a_wrong_key(client: Anthropic) -> None:
    with client.with_options(api_key="wrong") as stranger, pytest.raises(anthropic.AuthenticationError) as caught:
        stranger.messages.create(model="auto", max_tokens=32, messages=HI)
    assert error_type(caught.value) == "authentication_error"


def test_an_unknown_model(client: Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.messages.create(model="nobody", max_tokens=32, messages=HI)
    assert error_type(caught.value) == "not_found_error"
    with pytest.raises(anthropic.NotFoundError):
        client.messages.count_tokens(model="nobody", messages=HI)


def test_a_long_body(client: Anthropic) -> None:
    with pytest.raises(anthropic.APIStatusError) as caught:
        client.messages.create(model="auto", max_tokens=32, messages=[{"role": "user", "content": "x" * 3_000_000}])
    assert (caught.value.status_code, error_type(caught.value)) == (413, "request_too_large")


@pytest.mark.parametrize(
    ("status", "expected", "type_"),
    [
        (400, anthropic.BadRequestError, "invalid_request_error"), (429, anthropic.RateLimitError, "rate_limit_error"),
        (500, anthropic.InternalServerError, "api_error"), (529, anthropic.APIStatusError, "overloaded_error"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("streamed", [False, True])
def test_an_engines_error(
    client: Anthropic, engine: Engine, status: int, expected: type[anthropic.APIStatusError], type_: str, streamed: bool
) -> None:
    """Also where the engine answers in OpenAI's shape."""
    for body in (
        {"error": {"message": "too long", "type": "x", "param": None, "code": status}},
        {"object": "error", "message": "too long"},
    ):
        engine.play(reply(body, status))
        with pytest.raises(expected) as caught:
            client.messages.create(model="small", max_tokens=32, messages=HI, stream=streamed)
        assert error_type(caught.value) == type_
        assert "too long" in str(caught.value)


def test_a_full_pool(client: Anthropic, engine: Engine) -> None:
    engine.play(stream(named({"type": "ping"}), HANG))
    with client.messages.create(model="narrow", max_tokens=32, messages=HI, stream=True):
        engine.wait_for(1)
        with pytest.raises(anthropic.RateLimitError) as caught:
            client.messages.create(model="narrow", max_tokens=32, messages=HI)
    assert error_type(caught.value) == "rate_limit_error"


@pytest.mark.parametrize("how", [RESET, HANG], ids=["reset", "hang"])
def test_a_broken_stream_raises(client: Anthropic, engine: Engine, how: Any) -> None:
    begun = {"type": "message_start", "message": {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 0},
    }}  # fmt: skip
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "half"}}
    engine.play(stream(named(begun, block, delta), how))
    seen: list[str] = []
    with (
        pytest.raises(anthropic.APIStatusError) as caught,
        client.messages.stream(model="small", max_tokens=32, messages=HI) as running,
    ):
        seen.extend(running.text_stream)
    assert seen == ["half"]
    assert error_type(caught.value) in {"api_error", "timeout_error"}


def test_leaving_a_stream_lets_the_engine_go(client: Anthropic, engine: Engine, fake_gateway: Gateway) -> None:
    engine.play(stream(named({"type": "ping"}), HANG))
    with client.messages.create(model="small", max_tokens=32, messages=HI, stream=True):
        engine.wait_for(1)
    assert engine.last.gone.wait(20)
    eventually(lambda: fake_gateway.metric("switchyard_in_flight") == 0)
