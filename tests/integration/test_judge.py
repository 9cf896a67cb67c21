"""The classifier that asks a model: right questions, and every way to fail ends with the policy's `otherwise`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .client import Answer, Client, ask, eventually
from .engine import CLOSE, HANG, Engine, reply
from .gateway import Gateway, policy, pool

Start = Callable[..., Any]
_texts = itertools.count(1)


def judged(kind: str = "chat", model: str = "judged") -> tuple[str, dict[str, Any]]:
    """A request whose words nobody has judged before; the embedded classifier knows its kind."""
    return ask(kind, f"Say hello {next(_texts)}.", model)


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[Engine, Engine]]:
    with Engine("acme/small") as small, Engine("acme/judge", key="judge-key") as judge:
        yield small, judge


@pytest.fixture(scope="module")
def gateway(engines: tuple[Engine, Engine]) -> Iterator[Gateway]:
    from switchyard.config.secrets import Secrets

    small, judge = engines
    pools = {"small": pool(small), "big": pool(small, model="acme/big"), "judge": pool(judge, api_key_env="JUDGE_KEY")}
    question = {"type": "model", "pool": "judge", "deadline_ms": 400}
    choose = [{"p_at_least": 0.6, "use": "small"}, {"use": "big"}]
    routes = {
        "judged": {"classify": [question], "choose": choose, "otherwise": "big"},
        "chain": {"classify": [question, {"type": "embedded"}], "choose": choose},
        "own": {"classify": [question | {"prompt": "Easy? {task}", "max_input_tokens": 64}], "choose": choose},
    }
    with Gateway(policy(pools, routes), keys=Secrets((), None, {"judge": "judge-key"})) as gateway:
        yield gateway


@pytest.fixture
def judge(engines: tuple[Engine, Engine]) -> Engine:
    for engine in engines:
        engine.reset()
    return engines[1]


@pytest.fixture
def client(gateway: Gateway, judge: Engine) -> Client:
    return gateway.client()


def fell_back(gateway: Gateway, answer: Answer) -> dict[str, Any]:
    """The answer is a good one from the default pool, and the reason says what was wrong."""
    assert (answer.status, answer.pool) == (200, "big")
    assert answer.reason.startswith("otherwise: ")
    decision = gateway.record()["decision"]
    assert (decision["kind"], decision["p"], decision["degraded"]) == ("otherwise", None, True)
    return dict(decision)


@pytest.mark.parametrize(
    ("yes", "expected"), [(0.9, "small"), (0.61, "small"), (0.59, "big"), (0.01, "big"), (0.0, "big"), (1.0, "small")]
)
def test_its_probability_decides(client: Client, gateway: Gateway, judge: Engine, yes: float, expected: str) -> None:
    judge.yes = yes
    answer = client.post(*judged())
    assert (answer.status, answer.pool) == (200, expected)
    decision = gateway.record()["decision"]
    assert decision["p"] == pytest.approx(yes, abs=1e-3)
    assert (decision["kind"], decision["classifier"], decision["degraded"]) == ("score", "model judge", False)


@pytest.mark.parametrize("kind", ["chat", "messages", "responses", "completions"])
def test_its_question(client: Client, judge: Engine, kind: str) -> None:
    """One token with its probabilities, about the human's words; with the judge pool's model and key."""
    client.post(
        *ask(kind, f"What is seven times six? ({kind})", "judged"),
        [("x-claude-code-session-id", kind), ("authorization", "Bearer mine")],
    )
    body = judge.last.json()
    assert judge.last.path == "/v1/chat/completions"
    assert (body["model"], body["max_tokens"], body["logprobs"], body["top_logprobs"]) == ("acme/judge", 1, True, 20)
    assert "What is seven times six?" in body["messages"][-1]["content"]
    assert judge.last.all("authorization") == ["Bearer judge-key"]
    assert judge.last.all("x-claude-code-session-id") == []


@pytest.mark.parametrize("length", [2_000, 10_000])
def test_its_own_prompt_and_length(client: Client, judge: Engine, length: int) -> None:
    """As the policy's reference says: beginning and end are kept."""
    client.post(*ask("chat", f"begin {length} " + "x" * length + " end {task}", "own"))
    (message,) = judge.last.json()["messages"]
    assert message["content"].startswith("Easy? begin")
    assert message["content"].endswith("end {task}")
    assert len(message["content"]) < 64 * 5


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"nonsense", b"[]", b"{}", b'{"choices":[]}', b'{"choices":[{"message":{"content":"Yes"},"logprobs":null}]}',
        b'{"choices":[{"logprobs":{"content":[]}}]}', b'{"choices":[{"logprobs":{"content":[{"top_logprobs":[]}]}}]}',
        b'{"choices":[{"logprobs":{"content":[{"top_logprobs":[{"token":"maybe","logprob":-0.1}]}]}}]}',
        b'{"choices":[{"logprobs":{"content":[{"top_logprobs":[{"token":"yes","logprob":"x"}]}]}}]}',
        b'{"choices":[{"logprobs":{"content":[{"top_logprobs":[{"token":"yes","logprob":1e9}]}]}}]}',
        b'{"choices":[{"logprobs":{"content":[{"top_logprobs":{"yes":-0.1}}]}}]}', b"[" * 100_000, b"\xff" * 10,
        b'{"choices":[{"logprobs":{"content":[{"top_logprobs":[{"token":"\xff","logprob":-1}]}]}}]}',
    ],
)  # fmt: skip
def test_nonsense(client: Client, gateway: Gateway, judge: Engine, answer: bytes) -> None:
    judge.play(reply(answer))
    fell_back(gateway, client.post(*judged()))


@pytest.mark.parametrize("status", [302, 400, 401, 429, 500, 503])
def test_refusals(client: Client, gateway: Gateway, judge: Engine, status: int) -> None:
    judge.play(reply(b"{}", status))
    decision = fell_back(gateway, client.post(*judged("messages")))
    assert str(status) in decision["reasons"][0]


def test_too_slow(client: Client, gateway: Gateway, judge: Engine) -> None:
    before = gateway.metric("switchyard_classifier_failures_total", route="judged")
    judge.play([HANG])
    answer = client.post(*judged("responses"))
    assert "400 ms" in fell_back(gateway, answer)["reasons"][0]
    assert judge.last.gone.wait(20), "nobody waits for it any more"
    assert gateway.metric("switchyard_classifier_failures_total", route="judged") == before + 1
    eventually(lambda: gateway.metric("switchyard_in_flight", pool="judge") == 0)


def test_it_breaks_off(client: Client, gateway: Gateway, judge: Engine) -> None:
    for steps in ([CLOSE], [b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{", CLOSE], [b"SSH\r\n\r\n"]):
        judge.play(steps)
        fell_back(gateway, client.post(*judged()))


def test_the_next_classifier_is_asked(client: Client, gateway: Gateway, judge: Engine) -> None:
    judge.play([HANG])
    answer = client.post(*judged(model="chain"))
    assert (answer.status, answer.pool) == (200, "small")
    decision = gateway.record()["decision"]
    assert (decision["classifier"], decision["degraded"]) == ("embedded", True)


def test_no_words_no_question(client: Client, gateway: Gateway, judge: Engine) -> None:
    path, body = ask("chat", model="judged")
    body["messages"] = [{"role": "user", "content": []}]
    answer = client.post(path, body)
    assert (answer.status, answer.pool) == (200, "big")
    assert gateway.record()["decision"]["degraded"] is False
    assert judge.work == []


def test_a_failed_judgement_is_not_remembered(client: Client, gateway: Gateway, judge: Engine) -> None:
    """The session is judged when the judge is well again."""
    session = [("x-session-id", "fail-1")]
    question = judged()
    judge.play(reply(b"{}", 500))
    fell_back(gateway, client.post(*question, session))
    judge.play()
    assert client.post(*question, session).pool == "small"


def test_equal_questions_are_asked_once(client: Client, judge: Engine) -> None:
    """Many agents begin alike."""
    question = judged()
    assert [client.post(*question).pool for _ in range(3)] == ["small"] * 3
    assert len(judge.work) == 1


def test_a_session_is_judged_once_a_turn(client: Client, judge: Engine) -> None:
    session = [("x-session-id", "once-1")]
    question = judged()
    for _ in range(3):
        assert client.post(*question, session).pool == "small"
    assert len(judge.work) == 1


def test_a_dead_judge(start: Start) -> None:
    small, judge = start(Engine()), start(Engine("acme/judge"))
    route = {"classify": [{"type": "model", "pool": "judge"}], "choose": [{"p_at_least": 0.5, "use": "small"}, {"use": "big"}]}
    pools = {"small": pool(small), "big": pool(small), "judge": pool(judge)}
    gateway = start(Gateway(policy(pools, {"judged": route})))
    client = gateway.client()
    judge.shut()
    for _ in range(3):
        fell_back(gateway, client.post(*judged()))
    judge.listen()
    eventually(lambda: client.post(*judged()).pool == "small")


def test_a_busy_judge(start: Start) -> None:
    """A full judge pool costs the deadline and no more, and its queue gets its places back."""
    small, judge = start(Engine()), start(Engine("acme/judge"))
    route = {
        "classify": [{"type": "model", "pool": "judge", "deadline_ms": 200}],
        "choose": [{"p_at_least": 0.5, "use": "small"}, {"use": "big"}],
    }
    pools = {"small": pool(small), "big": pool(small), "judge": pool(judge, limits={"in_flight": 1, "queue": 1})}
    gateway = start(Gateway(policy(pools, {"judged": route})))
    client = gateway.client()
    judge.play([HANG])
    held = client.start(*ask("chat", "hi", "judge"))
    judge.wait_for(1)
    connections = [client.start(*judged()) for _ in range(3)]
    answers = [c.answer() for c in connections]
    assert [(a.status, a.pool) for a in answers] == [(200, "big")] * 3
    held.leave()
    gateway.wait_idle()
    assert len(judge.work) == 1
