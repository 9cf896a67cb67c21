"""The client goes away, in any phase, on any endpoint: the engine is let go at once, no place stays taken, it is counted."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from .client import PATHS, Client, ask, eventually
from .engine import HANG, Engine, chunk, head, named, sse, stream
from .gateway import Gateway, policy, pool

SOON_S = 20.0


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[Engine, Engine]]:
    with Engine("acme/small") as small, Engine("acme/judge") as judge:
        yield small, judge


@pytest.fixture(scope="module")
def gateway(engines: tuple[Engine, Engine]) -> Iterator[Gateway]:
    small, judge = engines
    pools = {
        "small": pool(small), "narrow": pool(small, limits={"in_flight": 1, "queue": 5}), "judge": pool(judge),
        "asking": pool(small, usage="ask"),
    }  # fmt: skip
    choose = [{"p_at_least": 0.5, "use": "small"}, {"use": "narrow"}]
    judged = {"classify": [{"type": "model", "pool": "judge", "deadline_ms": 20_000}], "choose": choose}
    with Gateway(policy(pools, {"judged": judged})) as gateway:
        yield gateway


@pytest.fixture
def engine(engines: tuple[Engine, Engine]) -> Engine:
    for engine in engines:
        engine.reset()
    return engines[0]


@pytest.fixture
def client(gateway: Gateway) -> Client:
    return gateway.client()


def left(gateway: Gateway) -> float:
    return gateway.metric("switchyard_requests_total", outcome="client_left")


def all_free(gateway: Gateway) -> bool:
    return not gateway.metric("switchyard_in_flight") and not gateway.metric("switchyard_queued")


@pytest.mark.parametrize("how", ["leave", "reset"])
@pytest.mark.parametrize("kind", sorted(PATHS))
def test_before_any_answer(gateway: Gateway, client: Client, engine: Engine, kind: str, how: str) -> None:
    before = left(gateway)
    engine.play([HANG])
    connection = client.start(*ask(kind))
    request = engine.wait_for(1)
    assert gateway.metric("switchyard_in_flight", pool="small") == 1
    getattr(connection, how)()
    assert request.gone.wait(SOON_S)
    eventually(lambda: all_free(gateway))
    assert left(gateway) == before + 1
    assert gateway.record()["outcome"] == "client_left"


@pytest.mark.parametrize("model", ["small", "asking"])
@pytest.mark.parametrize("kind", ["chat", "completions", "responses", "messages"])
def test_inside_a_stream(gateway: Gateway, client: Client, engine: Engine, kind: str, model: str) -> None:
    before = left(gateway)
    engine.play(stream(sse({"n": 1}), sse({"n": 2}), HANG))
    connection = client.start(*ask(kind, model=model, stream=True))
    connection.read_until(sse({"n": 2}))
    connection.leave()
    assert engine.last.gone.wait(SOON_S)
    eventually(lambda: all_free(gateway))
    assert left(gateway) == before + 1


def test_inside_a_whole_answer(gateway: Gateway, client: Client, engine: Engine) -> None:
    before = left(gateway)
    engine.play([head(200, length=1000) + b"half", HANG])
    connection = client.start(*ask("embeddings"))
    connection.read_until(b"half")
    connection.leave()
    assert engine.last.gone.wait(SOON_S)
    eventually(lambda: all_free(gateway))
    assert left(gateway) == before + 1


def test_while_the_engine_sends_without_end(gateway: Gateway, client: Client, engine: Engine) -> None:
    beginning = stream(b": hello\n\n")[:-1]
    engine.play(lambda _: itertools.chain(beginning, itertools.cycle((chunk(b": ping\n\n"), 0.001))))
    connection = client.start(*ask("chat", stream=True))
    connection.read_until(b": ping\n\n")
    connection.leave()
    assert engine.last.gone.wait(SOON_S)
    eventually(lambda: all_free(gateway))


def test_in_the_queue(gateway: Gateway, client: Client, engine: Engine) -> None:
    """A request that waits never reaches the engine after its client has left, and the next one does."""
    before = left(gateway)
    engine.play([HANG])
    first = client.start(*ask("chat", model="narrow"))
    engine.wait_for(1)
    second = client.start(*ask("messages", model="narrow"))
    third = client.start(*ask("responses", model="narrow"))
    eventually(lambda: gateway.metric("switchyard_queued", pool="narrow") == 2)
    second.leave()
    eventually(lambda: gateway.metric("switchyard_queued", pool="narrow") == 1)
    engine.play()
    first.leave()
    assert third.answer().status == 200
    assert [r.path for r in engine.work] == [PATHS["chat"], PATHS["responses"]]
    eventually(lambda: all_free(gateway))
    assert left(gateway) == before + 2


@pytest.mark.parametrize("kind", ["chat", "responses", "messages"])
def test_while_it_is_classified(
    gateway: Gateway, client: Client, engine: Engine, engines: tuple[Engine, Engine], kind: str
) -> None:
    before = left(gateway)
    judge = engines[1]
    judge.play([HANG])
    connection = client.start(*ask(kind, model="judged"))
    question = judge.wait_for(1)
    connection.leave()
    assert question.gone.wait(SOON_S)
    eventually(lambda: all_free(gateway))
    assert engine.work == []
    eventually(lambda: left(gateway) == before + 1)


def test_in_the_middle_of_its_own_body(gateway: Gateway, client: Client, engine: Engine) -> None:
    """Not a request yet: nothing is sent on and nothing is counted."""
    before = left(gateway)
    connection = client.open()
    connection.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
    connection.leave()
    assert client.post(*ask("chat")).status == 200
    assert len(engine.work) == 1
    assert left(gateway) == before


def test_of_a_stored_response(gateway: Gateway, client: Client, engine: Engine) -> None:
    path, body = ask("responses")
    id_ = client.post(path, body).json()["id"]
    engine.play_at(f"{path}/{id_}", [HANG])
    connection = client.open()
    connection.ask(f"{path}/{id_}", method="GET")
    request = engine.wait_for(2)
    connection.leave()
    assert request.gone.wait(SOON_S)
    eventually(lambda: all_free(gateway))


def test_a_client_that_left_costs_the_replica_nothing(gateway: Gateway, client: Client, engine: Engine) -> None:
    """It is no failure of the engine: it stays in rotation."""
    engine.play([HANG])
    for _ in range(12):
        connection = client.start(*ask("chat"))
        engine.wait_for(1)
        connection.leave()
    eventually(lambda: all_free(gateway))
    assert gateway.metric("switchyard_replica_up", pool="small") == 1
    engine.play()
    assert client.post(*ask("chat")).status == 200


@pytest.mark.parametrize(
    ("kind", "last"),
    [
        ("chat", sse({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}}, done=True)),
        (
            "responses",
            named(
                {"type": "response.completed", "response": {"id": "resp_z", "usage": {"input_tokens": 9, "output_tokens": 4}}}
            ),
        ),
        (
            "messages",
            named({"type": "message_delta", "usage": {"input_tokens": 9, "output_tokens": 4}}, {"type": "message_stop"}),
        ),
    ],
    ids=["chat", "responses", "messages"],
)
def test_leaving_after_the_last_event_is_a_good_end(
    gateway: Gateway, client: Client, engine: Engine, kind: str, last: bytes
) -> None:
    """The OpenAI SDK closes when it has read [DONE], often before the engine has ended its body."""
    engine.play(stream(sse({"n": 1}), last, 0.3))
    before = left(gateway), gateway.metric("switchyard_output_tokens_total", pool="small")
    connection = client.start(*ask(kind, stream=True))
    connection.read_until(last)
    connection.leave()
    eventually(lambda: all_free(gateway))
    record = gateway.record()
    assert (record["outcome"], record["tokens"]["output"]) == ("ok", 4)
    assert (left(gateway), gateway.metric("switchyard_output_tokens_total", pool="small")) == (before[0], before[1] + 4)
