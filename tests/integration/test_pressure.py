"""Slow readers hold up their engine and nobody's memory; long bodies hold up nobody's stream."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .client import ask, eventually
from .engine import SSE_TYPE, Engine, chunk, head, sse, stream
from .gateway import Gateway, policy, pool

Start = Callable[..., Any]
MB = 1 << 20
PIECE = sse("x" * 65_000)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(context=None) as engine:
        yield engine


@pytest.fixture(scope="module")
def gateway(engine: Engine) -> Iterator[Gateway]:
    """Its kernel keeps little for a client, so that what is sent shows what the gateway keeps."""
    with Gateway(policy({"small": pool(engine), "asking": pool(engine, usage="ask")}), send_buffer=32_768) as gateway:
        yield gateway


@pytest.fixture(autouse=True)
def _fresh(engine: Engine) -> None:
    engine.reset()


def settled(engine: Engine) -> int:
    """Bytes that the engine could send, once it can send no more."""
    request = engine.wait_for(1)
    seen = -1
    while seen != request.sent:
        seen = request.sent
        time.sleep(0.25)
    return seen


@pytest.mark.parametrize("model", ["small", "asking"])
@pytest.mark.parametrize("kind", ["chat", "responses", "messages"])
def test_a_client_that_does_not_read(gateway: Gateway, engine: Engine, kind: str, model: str) -> None:
    """The engine is stopped after what kernels and one transport hold; when the client reads on, all of it comes."""
    count = 1000
    engine.play(lambda _: stream(*(PIECE for _ in range(count))))
    connection = gateway.client().start(*ask(kind, model=model, stream=True), receive_buffer=32_768)
    sent = settled(engine)
    assert sent < 16 * MB, f"{sent / MB:.1f} of {count * len(PIECE) / MB:.0f} MB"
    answer = connection.answer()
    assert answer.complete
    assert len(answer.body) == count * len(PIECE)


@pytest.mark.parametrize("framing", ["chunked", "length"])
def test_a_whole_answer_that_begins_with_a_lot(gateway: Gateway, engine: Engine, framing: str) -> None:
    """What came together with the head is more than the client takes: the pause that this makes has to last."""
    body = b"x" * MB
    if framing == "length":
        steps = [head(200, length=60 * MB) + body, *([body] * 59)]
    else:
        steps = [head(200, chunked=True) + chunk(body), *([chunk(body)] * 59), b"0\r\n\r\n"]
    for _ in range(6):  # how much comes with the head is up to the kernel
        engine.reset()
        engine.play(steps)
        connection = gateway.client().start(*ask("embeddings"), receive_buffer=8192)
        sent = settled(engine)
        connection.leave()
        assert sent < 16 * MB, f"{sent / MB:.1f} MB"


def test_several_slow_readers_harm_no_other(gateway: Gateway, engine: Engine) -> None:
    engine.play(lambda _: stream(*(PIECE for _ in range(1000))))
    slow = [gateway.client().start(*ask("chat", stream=True), receive_buffer=32_768) for _ in range(8)]
    engine.wait_for(8)
    time.sleep(0.3)
    engine.play()
    client = gateway.client()
    begun = time.monotonic()
    for _ in range(20):
        assert client.post(*ask("chat")).status == 200
    assert time.monotonic() - begun < 5
    assert sum(r.sent for r in engine.work[:8]) < 8 * 16 * MB
    for connection in slow:
        connection.leave()
    gateway.wait_idle()


def test_waiting_for_a_client_is_no_silence_of_the_engine(start: Start, engine: Engine) -> None:
    """The idle limit is for engines; a client that pauses longer gets its answer all the same."""
    gateway = start(Gateway(policy({"small": pool(engine, timeouts={"idle_s": 0.5})}), send_buffer=32_768))
    engine.play(lambda _: stream(*(PIECE for _ in range(400))))
    connection = gateway.client().start(*ask("chat", stream=True), receive_buffer=32_768)
    settled(engine)
    time.sleep(1.2)
    answer = connection.answer()
    assert answer.complete
    assert answer.body == PIECE * 400


def test_a_slow_engine_and_a_fast_one_side_by_side(gateway: Gateway, engine: Engine) -> None:
    """Bytes of one request never turn up in another's."""
    engine.play(lambda r: stream(*(step for n in range(30) for step in (sse([r.json()["messages"][0]["content"], n]), 0.002))))
    client = gateway.client()
    connections = [client.start(*ask("chat", str(who), stream=True)) for who in range(40)]
    for who, connection in enumerate(connections):
        assert connection.answer().body == b"".join(sse([str(who), n]) for n in range(30))


def test_a_long_body_holds_up_no_stream(gateway: Gateway, engine: Engine) -> None:
    """5 MB of conversation are read and sent on while another stream runs: its gaps stay of the same kind."""
    history = [
        {"role": "user" if n % 2 == 0 else "assistant", "content": f"{n} " + "words and more words " * 50} for n in range(5000)
    ]
    path, body = ask("chat", messages=history)
    data = json.dumps(body).encode()
    assert len(data) > 5 * MB

    def gaps_while(act: Callable[[], object]) -> list[float]:
        engine.play(lambda r: _ticks() if len(r.body) < MB else [head(200, length=2) + b"{}"])
        connection = gateway.client().start(*ask("chat", stream=True))
        connection.read_until(sse(0))
        other = threading.Thread(target=act)
        other.start()
        arrived = []
        for n in range(1, 60):
            connection.read_until(sse(n))
            arrived.append(time.monotonic())
        other.join()
        connection.leave()
        return [b - a for a, b in itertools.pairwise(arrived)]

    alone = gaps_while(lambda: None)
    client = gateway.client()
    answers: list[int] = []
    crowded = gaps_while(lambda: answers.extend(client.post(path, data).status for _ in range(3)))
    assert answers == [200] * 3
    assert max(crowded) < 0.4 + max(alone), f"{max(crowded):.3f} s against {max(alone):.3f} s"
    gateway.wait_idle()


def _ticks() -> list[Any]:
    return [head(200, [SSE_TYPE], chunked=True), *(s for n in range(60) for s in (chunk(sse(n)), 0.01)), b"0\r\n\r\n"]


def test_memory_of_many_idle_streams_is_freed(gateway: Gateway, engine: Engine) -> None:
    """Two hundred streams that wait, then leave: nothing of them is left in the gateway."""
    from .engine import HANG

    engine.play(stream(sse({"n": 1}), HANG))
    client = gateway.client()
    streams = [client.start(*ask("chat", stream=True)) for _ in range(48)]
    for connection in streams:
        connection.read_until(sse({"n": 1}))
    for connection in streams:
        connection.leave()
    gateway.wait_idle()
    eventually(lambda: all(r.gone.is_set() for r in engine.work))
    eventually(lambda: not gateway.inner.door.connections)
