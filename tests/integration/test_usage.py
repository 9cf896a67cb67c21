"""`usage: ask`: the gateway asks engines for the usage report, and takes it out again for clients that didn't ask."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from .client import Client, ask
from .engine import RESET, Engine, sse, stream
from .gateway import Gateway, policy, pool

STREAMED = pytest.mark.parametrize("kind", ["chat", "completions"])


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine() as engine:
        yield engine


@pytest.fixture(scope="module")
def gateway(engine: Engine) -> Iterator[Gateway]:
    with Gateway(policy({"asking": pool(engine, usage="ask"), "passing": pool(engine)})) as gateway:
        yield gateway


@STREAMED
def test_asked_for_and_hidden(client: Client, engine: Engine, gateway: Gateway, kind: str) -> None:
    asking = client.post(*ask(kind, model="asking", stream=True))
    assert engine.last.json()["stream_options"] == {"include_usage": True}
    assert b"usage" not in asking.body
    assert asking.events()[-1][1] == "[DONE]"
    assert gateway.record()["tokens"] == {"input": 9, "output": 4, "cached": None}
    passing = client.post(*ask(kind, model="passing", stream=True))
    assert [data.partition('"created"')[2] for _, data in passing.events()] == [
        d.partition('"created"')[2] for _, d in asking.events()
    ]
    assert "usage" not in asking.reason


@STREAMED
@pytest.mark.parametrize("options", [{"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}])
def test_a_client_that_asks_sees_it(client: Client, engine: Engine, kind: str, options: dict[str, Any]) -> None:
    for model in ("asking", "passing"):
        answer = client.post(*ask(kind, model=model, stream=True, stream_options=options))
        assert answer.body.count(b'"usage": {') == 1
        assert engine.last.json()["stream_options"] == options


@STREAMED
@pytest.mark.parametrize(
    "options", [None, {}, {"include_usage": False}, {"include_usage": None, "x": 1}, {"continuous_usage_stats": False}]
)
def test_other_options_are_kept(client: Client, engine: Engine, kind: str, options: Any) -> None:
    answer = client.post(*ask(kind, model="asking", stream=True, stream_options=options))
    assert engine.last.json()["stream_options"] == {**(options or {}), "include_usage": True}
    assert b"usage" not in answer.body


@pytest.mark.parametrize("kind", ["chat", "completions", "embeddings", "responses", "messages"])
def test_only_streams_that_need_it(client: Client, engine: Engine, kind: str) -> None:
    """Whole answers, Responses and Messages have it anyway."""
    for stream_ in {False, kind in {"responses", "messages"}}:
        answer = client.post(*ask(kind, model="asking", stream=stream_))
        assert answer.status == 200
        assert "stream_options" not in engine.last.json()
        assert b'"usage"' in answer.body


CONTENT = {"choices": [{"index": 0, "delta": {"content": "a"}}]}


@pytest.mark.parametrize(
    ("event", "hidden"),
    [
        ({"choices": [], "usage": {"prompt_tokens": 1}}, True),
        ({"usage": {"prompt_tokens": 1}}, True),
        ({"choices": None, "usage": {"prompt_tokens": 1}}, True),
        ({"id": "x", "choices": [], "usage": {"prompt_tokens": 1, "prompt_tokens_details": {"cached_tokens": 1}}}, True),
        ({**CONTENT, "usage": {"prompt_tokens": 1}}, False),
        ({**CONTENT, "usage": None}, False),
        ({"choices": [], "usage": None}, False),
        ({"choices": []}, False),
        ({"error": {"message": "x"}, "choices": []}, False),
    ],
)
def test_what_is_hidden(client: Client, engine: Engine, event: dict[str, Any], hidden: bool) -> None:
    engine.play(stream(sse(CONTENT), sse(event), sse({}, done=True)))
    answer = client.post(*ask("chat", model="asking", stream=True))
    assert answer.body == sse(CONTENT) + (b"" if hidden else sse(event)) + sse({}, done=True)


def test_words_about_usage_stay(client: Client, engine: Engine) -> None:
    content = sse({"choices": [{"index": 0, "delta": {"content": '"usage": {"prompt_tokens": 1}'}}]})
    engine.play(stream(content))
    assert client.post(*ask("chat", model="asking", stream=True)).body == content


def test_an_event_is_sent_as_soon_as_it_is_whole(client: Client, engine: Engine) -> None:
    from .engine import Gate

    gate = Gate()
    engine.play(stream(sse(CONTENT), gate, sse({"choices": [], "usage": {}})))
    connection = client.start(*ask("chat", model="asking", stream=True))
    connection.read_until(sse(CONTENT))
    gate.open()
    assert connection.read_until(b"0\r\n\r\n").endswith(b"0\r\n\r\n")


def test_a_break_behind_a_hidden_event_is_told(client: Client, engine: Engine, gateway: Gateway) -> None:
    engine.play(stream(sse(CONTENT), sse({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}), RESET))
    answer = client.post(*ask("chat", model="asking", stream=True))
    assert b"error" in answer.body
    assert b"usage" not in answer.body
    assert gateway.record()["outcome"] == "broken"


@pytest.mark.parametrize(("model", "seen"), [("asking", 9), ("passing", None)])
def test_metrics_count_what_the_engine_said(client: Client, gateway: Gateway, model: str, seen: int | None) -> None:
    before = gateway.metric("switchyard_input_tokens_total", pool=model)
    client.post(*ask("chat", model=model, stream=True))
    assert gateway.record()["tokens"]["input"] == seen
    assert gateway.metric("switchyard_input_tokens_total", pool=model) == before + (seen or 0)


def test_the_last_report_counts_and_only_once(client: Client, gateway: Gateway, engine: Engine) -> None:
    """Engines that report with every chunk report running totals."""
    events = [{**CONTENT, "usage": {"prompt_tokens": 5, "completion_tokens": n}} for n in range(1, 6)]
    engine.play(stream(sse(*events, {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 5}}, done=True)))
    client.post(*ask("chat", model="passing", stream=True))
    assert gateway.record()["tokens"] == {"input": 5, "output": 5, "cached": None}
