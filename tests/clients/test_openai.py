"""The OpenAI SDK against the gateway, with the fake engine behind it: what it reads, sends, calls and raises."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from integration.client import eventually
from integration.engine import HANG, RESET, Engine, reply, sse, stream
from integration.gateway import Gateway
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from .conftest import KEY

TEXT = "Hello from the engine"
HI: list[Any] = [{"role": "user", "content": "hi"}]
WEATHER: dict[str, Any] = {
    "name": "weather", "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                   "required": ["city"]},
}  # fmt: skip


class Trip(BaseModel):
    city: str
    days: int
    sunny: bool


def weather(city: str, days: int) -> str:
    return f"{days} sunny days in {city}"


@pytest.fixture
def client(fake_gateway: Gateway, engine: Engine) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"http://127.0.0.1:{fake_gateway.port}/v1", api_key=KEY, max_retries=0, timeout=10) as client:
        yield client


# ---- chat ----


@pytest.mark.parametrize("model", ["small", "auto", "gpt-5"])
def test_chat(client: OpenAI, engine: Engine, model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=HI, extra_body={"top_k": 3}, extra_headers={"x-mine": "1"})
    assert answer.choices[0].message.content == TEXT
    assert answer.usage is not None
    assert answer.usage.total_tokens == 13
    assert engine.last.json() == {"model": "acme/small", "messages": HI, "top_k": 3}
    assert engine.last.header("x-mine") == "1"
    assert engine.last.header("authorization") == "Bearer engine-key"


def test_chat_stream(client: OpenAI) -> None:
    chunks = list(client.chat.completions.create(model="auto", messages=HI, stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == TEXT
    assert chunks[-1].choices[0].finish_reason == "stop"
    asked = list(client.chat.completions.create(model="auto", messages=HI, stream=True, stream_options={"include_usage": True}))
    assert asked[-1].choices == []
    assert asked[-1].usage is not None


def test_chat_stream_with_the_helper(client: OpenAI) -> None:
    with client.chat.completions.stream(model="auto", messages=HI) as events:
        kinds = {event.type for event in events}
        final = events.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.content == TEXT


@pytest.mark.parametrize("streamed", [False, True])
def test_chat_calls_tools(client: OpenAI, streamed: bool) -> None:
    """Until the model has what it asked for."""
    messages = list(HI)
    tools: list[Any] = [{"type": "function", "function": WEATHER}]
    for _ in range(3):
        if streamed:
            with client.chat.completions.stream(model="auto", messages=messages, tools=tools) as events:
                message = events.get_final_completion().choices[0].message
        else:
            message = client.chat.completions.create(model="auto", messages=messages, tools=tools).choices[0].message
        if not message.tool_calls:
            break
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            result = weather(**json.loads(call.function.arguments))  # type: ignore[union-attr]
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    assert message.content == "The tool said 7 sunny days in Paris"


def test_chat_structured_output(client: OpenAI) -> None:
    answer = client.chat.completions.parse(model="auto", messages=HI, response_format=Trip)
    assert answer.choices[0].message.parsed == Trip(city="Paris", days=7, sunny=True)


def test_completions(client: OpenAI) -> None:
    assert client.completions.create(model="auto", prompt="hi").choices[0].text == TEXT
    pieces = client.completions.create(model="auto", prompt="hi", stream=True)
    assert "".join(piece.choices[0].text for piece in pieces) == TEXT


# ---- Responses ----


def test_responses(client: OpenAI) -> None:
    made = client.responses.create(model="auto", input="hi", instructions="Be kind.")
    assert made.output_text == TEXT
    again = client.responses.retrieve(made.id)
    assert again.output_text == TEXT
    follow = client.responses.create(model="auto", input="and?", previous_response_id=made.id)
    assert follow.previous_response_id == made.id
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_responses_stream(client: OpenAI) -> None:
    with client.responses.stream(model="auto", input="hi") as events:
        kinds = [event.type for event in events]
        final = events.get_final_response()
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert final.output_text == TEXT
    assert client.responses.retrieve(final.id).id == final.id


@pytest.mark.parametrize("streamed", [False, True])
def test_responses_call_tools(client: OpenAI, streamed: bool) -> None:
    items: list[Any] = [{"role": "user", "content": "hi"}]
    tools: list[Any] = [{"type": "function", "strict": False, **WEATHER}]
    for _ in range(3):
        if streamed:
            with client.responses.stream(model="auto", input=items, tools=tools, store=False) as events:
                answer: Any = events.get_final_response()
        else:
            answer = client.responses.create(model="auto", input=items, tools=tools, store=False)
        calls = [item for item in answer.output if item.type == "function_call"]
        if not calls:
            break
        for call in calls:
            result = weather(**json.loads(call.arguments))
            items += [
                {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments},
                {"type": "function_call_output", "call_id": call.call_id, "output": result},
            ]
    assert answer.output_text == "The tool said 7 sunny days in Paris"


def test_responses_structured_output(client: OpenAI) -> None:
    answer = client.responses.parse(model="auto", input="hi", text_format=Trip)
    assert answer.output_parsed == Trip(city="Paris", days=7, sunny=True)


# ---- the rest ----


def test_embeddings(client: OpenAI, engine: Engine) -> None:
    """The SDK asks for base64 and unpacks it."""
    answer = client.embeddings.create(model="auto", input=["one", "two"])
    assert [e.embedding for e in answer.data] == [[0.25, -1.0, 0.5]] * 2
    assert engine.last.json()["encoding_format"] == "base64"
    floats = client.embeddings.create(model="auto", input="one", encoding_format="float")
    assert floats.data[0].embedding == [0.25, -1.0, 0.5]


def test_models(client: OpenAI) -> None:
    assert {"auto", "small", "narrow"} <= {model.id for model in client.models.list()}
    assert client.models.retrieve("gpt-5").model_dump()["max_model_len"] == 131_072


def test_what_the_gateway_says(client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(model="auto", messages=HI, extra_headers={"X-Request-Id": "mine-1"})
    assert raw.headers["x-switchyard-pool"] == "small"
    assert raw.headers["x-switchyard-reason"]
    assert raw.request_id == "mine-1"
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="nobody", messages=HI)
    assert (caught.value.request_id or "").startswith("req-")
    assert raw.parse().choices[0].message.content == TEXT


# ---- errors ----


def test_a_wrong_key(fake_gateway: Gateway, client: OpenAI) -> None:
    with client.with_options(api_key="wrong") as stranger, pytest.raises(openai.AuthenticationError) as caught:
        stranger.chat.completions.create(model="auto", messages=HI)
    assert caught.value.code == "invalid_api_key"


def test_an_unknown_model(client: OpenAI) -> None:
    for ask in (
        lambda: client.chat.completions.create(model="nobody", messages=HI),
        lambda: client.responses.create(model="nobody", input="hi"),
        lambda: client.embeddings.create(model="nobody", input="hi"),
        lambda: client.models.retrieve("nobody"),
    ):
        with pytest.raises(openai.NotFoundError) as caught:
            ask()  # type: ignore[no-untyped-call]
        assert caught.value.code == "model_not_found"
        assert caught.value.param == "model"
        assert "small" in caught.value.message


@pytest.mark.parametrize("attempt", range(4))
def test_a_long_body(client: OpenAI, attempt: int) -> None:
    """The answer reaches a client that is still sending."""
    with pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(model="auto", messages=[{"role": "user", "content": "x" * 3_000_000}])
    assert (caught.value.status_code, caught.value.code) == (413, "body_too_large")


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, openai.BadRequestError), (403, openai.PermissionDeniedError), (404, openai.NotFoundError),
        (409, openai.ConflictError),
        (422, openai.UnprocessableEntityError), (429, openai.RateLimitError), (500, openai.InternalServerError),
        (503, openai.InternalServerError),
    ],
)  # fmt: skip
@pytest.mark.parametrize("streamed", [False, True])
def test_an_engines_error(client: OpenAI, engine: Engine, status: int, expected: type[Exception], streamed: bool) -> None:
    engine.play(
        reply(
            {"error": {"message": "max_tokens is too large", "type": "BadRequestError", "param": "max_tokens", "code": status}},
            status,
        )
    )
    with pytest.raises(expected) as caught:
        client.chat.completions.create(model="small", messages=HI, stream=streamed)
    assert isinstance(caught.value, openai.APIStatusError)
    assert "max_tokens is too large" in caught.value.message
    assert caught.value.param == "max_tokens"


def test_a_silent_engine(client: OpenAI, engine: Engine) -> None:
    engine.play([HANG])
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(model="small", messages=HI)
    assert (caught.value.status_code, caught.value.code) == (504, "upstream_timeout")


def test_a_full_pool(client: OpenAI, engine: Engine) -> None:
    engine.play(stream(sse({}), HANG))
    with client.chat.completions.create(model="narrow", messages=HI, stream=True) as running:
        next(iter(running))
        with pytest.raises(openai.RateLimitError) as caught:
            client.chat.completions.create(model="narrow", messages=HI)
    assert caught.value.code == "pool_saturated"
    assert int(caught.value.response.headers["retry-after"]) > 0
    assert engine.last.gone.wait(20)


@pytest.mark.parametrize("how", [RESET, HANG], ids=["reset", "hang"])
def test_a_broken_stream_raises(client: OpenAI, engine: Engine, how: Any) -> None:
    """A truncated text never looks like a whole one."""
    engine.play(stream(sse({"choices": [{"index": 0, "delta": {"content": "half"}}]}), how))
    seen: list[Any] = []
    with pytest.raises(openai.APIError) as caught:
        seen.extend(client.chat.completions.create(model="small", messages=HI, stream=True))
    assert [chunk.choices[0].delta.content for chunk in seen] == ["half"]
    assert caught.value.code in {"upstream_broken", "upstream_timeout"}


def test_a_broken_response_is_a_failed_one(client: OpenAI, engine: Engine) -> None:
    from integration.engine import named

    begun = {"type": "response.created", "sequence_number": 0, "response": {
        "id": "resp_x", "object": "response", "created_at": 1, "model": "m", "status": "in_progress", "output": [],
        "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
    }}  # fmt: skip
    engine.play(stream(named(begun), RESET))
    events = list(client.responses.create(model="small", input="hi", stream=True))
    assert [e.type for e in events] == ["response.created", "response.failed"]
    failed: Any = events[-1]
    assert failed.response.id == "resp_x"
    assert failed.response.error.message
    assert failed.sequence_number == 1


def test_the_sdks_own_retries(client: OpenAI, engine: Engine) -> None:
    """The gateway adds none to them."""
    engine.play(reply({"error": {"message": "x", "type": "t", "code": 500}}, 500))
    with pytest.raises(openai.InternalServerError):
        client.with_options(max_retries=2).chat.completions.create(model="small", messages=HI)
    assert len(engine.work) == 3
    engine.reset()
    engine.play(
        reply({"error": {"message": "busy", "type": "t", "code": 429}}, 429, [("retry-after", "0.1")]), reply({"choices": []})
    )
    client.with_options(max_retries=1).chat.completions.create(model="small", messages=HI)
    assert len(engine.work) == 2


def test_leaving_a_stream_lets_the_engine_go(client: OpenAI, engine: Engine, fake_gateway: Gateway) -> None:
    engine.play(stream(sse({"choices": [{"index": 0, "delta": {"content": "a"}}]}), HANG))
    with client.chat.completions.create(model="small", messages=HI, stream=True) as running:
        next(iter(running))
    assert engine.last.gone.wait(20)
    eventually(lambda: fake_gateway.metric("switchyard_in_flight") == 0)


def test_many_at_once_and_one_that_gives_up(fake_gateway: Gateway, engine: Engine) -> None:
    async def talk() -> list[Any]:
        async with AsyncOpenAI(
            base_url=f"http://127.0.0.1:{fake_gateway.port}/v1", api_key=KEY, max_retries=0, timeout=20
        ) as client:

            async def one(n: int) -> str:
                found = ""
                async for chunk in await client.chat.completions.create(model="small", messages=HI, stream=True, user=str(n)):
                    found += chunk.choices[0].delta.content or ""
                return found

            return await asyncio.gather(*(one(n) for n in range(30)))

    async def give_up() -> None:
        async with AsyncOpenAI(
            base_url=f"http://127.0.0.1:{fake_gateway.port}/v1", api_key=KEY, max_retries=0, timeout=0.3
        ) as client:
            await client.chat.completions.create(model="small", messages=HI)

    assert asyncio.run(talk()) == [TEXT] * 30
    engine.play([HANG])
    with pytest.raises(openai.APITimeoutError):
        asyncio.run(give_up())
    assert engine.last.gone.wait(20)
