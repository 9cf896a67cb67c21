"""One trial's requests: labelled, kept, and refusals told from answers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from switchyard.evals.conversation import Conversation, Refused

MESSAGE = {"role": "assistant", "content": "Hi"}
GOOD = {"choices": [{"message": MESSAGE}]}


class Pieces(httpx.AsyncByteStream):
    """An answer that comes in pieces, as from a socket."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        whole = json.dumps(GOOD).encode()
        yield whole[:9]
        yield whole[9:]


def conversation(answer: Callable[[httpx.Request], httpx.Response]) -> Conversation:
    return Conversation("http://gw", "auto", "r/big/a/1-0", "sk-1", httpx.MockTransport(answer), 5, {"temperature": 0})


def test_requests_are_labelled_and_kept(run: Any) -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, stream=Pieces(), headers={"x-switchyard-pool": "big", "set-cookie": "x=1"})

    talk = conversation(answer)
    assert run(talk.chat({"messages": []})) == MESSAGE
    run(talk.http.post("/v1/messages", json={"a": 1}, headers={"x-switchyard-case": "mine", "authorization": "Bearer none"}))
    assert [r.headers["x-switchyard-case"] for r in seen] == ["r/big/a/1-0"] * 2, "ours wins"
    assert [r.headers["authorization"] for r in seen] == ["Bearer sk-1"] * 2
    assert [r.headers["x-request-id"] for r in seen] == [k.id for k in talk.kept] == ["r/big/a/1-0@0", "r/big/a/1-0@1"]
    first, second = (k.as_dict() for k in talk.kept)
    assert first["request"] == {"model": "auto", "temperature": 0, "messages": []}
    assert json.loads(first["answer"]) == GOOD
    assert first["headers"] == {"x-switchyard-pool": "big"}
    assert (second["path"], second["request"], second["status"]) == ("/v1/messages", {"a": 1}, 200)
    assert "sk-1" not in str(first)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (httpx.Response(502, json={"error": {"message": "no replica"}}), "HTTP 502: no replica"),
        (httpx.Response(500, text="<html>"), "HTTP 500: <html>"),
        (httpx.Response(200, text="{"), "no chat completion"),
        (httpx.Response(200, json={"choices": []}), "no chat completion"),
        (httpx.Response(200, json=[]), "no chat completion"),
        (httpx.Response(200, json={"choices": [{"message": None}]}), "no chat completion"),
    ],
)
def test_what_is_no_answer(run: Any, answer: httpx.Response, why: str) -> None:
    with pytest.raises(Refused, match=why):
        run(conversation(lambda _: answer).chat({"messages": []}))


@pytest.mark.parametrize(
    ("error", "unreachable"),
    [(httpx.ConnectError("refused"), True), (httpx.RemoteProtocolError("closed"), True), (httpx.ReadTimeout("late"), False)],
)
def test_nothing_came(run: Any, error: httpx.TransportError, unreachable: bool) -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        raise error

    talk = conversation(answer)
    with pytest.raises(Refused, match=type(error).__name__):
        run(talk.chat({"messages": []}))
    (kept,) = talk.kept
    assert (kept.status, kept.unreachable) == (0, unreachable), "a late answer says nothing about the gateway"
    assert kept.trouble
