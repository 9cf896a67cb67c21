"""Limits of API keys on real sockets: who gets 429, in which shape, and what the metrics and the record say."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from switchyard.answering import Answers
from switchyard.config.secrets import Secrets
from switchyard.pipeline import Pipeline

from .client import PROTOCOLS, ask, error_of, eventually
from .engine import HANG, Engine
from .gateway import Gateway, Json, policy, pool

Start = Callable[..., Any]
KEYS = Secrets(("one", "two"), "admin")


def limited(engine: Engine, **limits: Any) -> Json:
    return policy({"small": pool(engine)}, api_keys_env="KEYS", admin_key_env="ADMIN", limits=limits)


@pytest.mark.parametrize("kind", [*PROTOCOLS, "completions", "embeddings", "count"])
def test_requests_per_minute(start: Start, engine: Engine, kind: str) -> None:
    gateway = start(Gateway(limited(engine, default={"requests_per_minute": 3}), keys=KEYS))
    client = gateway.client("one")
    assert [client.post(*ask(kind)).status for _ in range(4)] == [200, 200, 200, 429]
    refused = client.post(*ask(kind))
    assert refused.code == "rate_limit_exceeded"
    assert 1 <= int(refused.header("retry-after") or 0) <= 61
    assert refused.header("x-should-retry") == "true"
    error = error_of(kind, refused.json())
    assert error["type"] == "rate_limit_error"
    assert "key-1 has sent 3 requests" in error["message"]
    assert len(engine.work) == 3, "what is refused reaches no engine"
    assert gateway.client("two").post(*ask(kind)).status == 200, "each key has limits of its own"
    record = gateway.decisions("admin")[1]
    assert (record["outcome"], record["error"], record["limit"], record["key"]) == (
        "refused", "rate_limit_exceeded", "requests_per_minute", "key-1",
    )  # fmt: skip
    assert gateway.metric("switchyard_limited_total", key="key-1", limit="requests_per_minute") == 2
    assert gateway.metric("switchyard_errors_total", code="rate_limit_exceeded") == 2


def test_a_decision_without_its_request_counts_as_a_request(start: Start, engine: Engine) -> None:
    """It may cost a judge's answer. It takes no tokens, and no place."""
    limits = {"requests_per_minute": 3, "tokens_per_minute": 2_000, "concurrent_requests": 1}
    gateway = start(Gateway(limited(engine, default=limits), keys=KEYS))
    client = gateway.client("one")
    _, body = ask("chat", "word " * 3_000)
    assert [client.post("/v1/decision", body).status for _ in range(4)] == [200, 200, 200, 429]
    refused = client.post("/v1/decision", body)
    assert (refused.code, refused.json()["error"]["type"]) == ("rate_limit_exceeded", "rate_limit_error")
    assert 1 <= int(refused.header("retry-after") or 0) <= 61
    assert client.post(*ask("chat")).status == 429
    assert gateway.client("two").post("/v1/decision", body).status == 200


def test_tokens_are_counted_as_the_engine_counts_them(start: Start, engine: Engine) -> None:
    """Each answer says 13 tokens; more than a thousand were reserved for each."""
    gateway = start(Gateway(limited(engine, default={"tokens_per_minute": 1_300}), keys=KEYS))
    client = gateway.client("one")
    assert client.post(*ask("chat")).json()["usage"]["total_tokens"] == 13
    long = client.post(*ask("chat", "word " * 8_000))
    assert (long.status, long.code, long.header("retry-after")) == (413, "request_over_limit", None)
    assert long.header("x-should-retry") == "false"
    sent = [client.post(*ask("chat")).status for _ in range(40)]
    good = sent.index(429)
    assert set(sent[good:]) == {429}
    assert 15 <= good <= 21, "until 13 each and the reserve of one are 1,300"
    assert gateway.record("admin")["limit"] == "tokens_per_minute"


def test_concurrent_requests(start: Start, engine: Engine) -> None:
    gateway = start(Gateway(limited(engine, default={"concurrent_requests": 2}), keys=KEYS))
    client = gateway.client("one")
    engine.play([HANG])
    running = [client.start(*ask("chat", stream=True)) for _ in range(2)]
    engine.wait_for(2)
    refused = client.post(*ask("messages"))
    assert (refused.status, refused.code, refused.header("retry-after")) == (429, "rate_limit_exceeded", "1")
    engine.play()
    assert gateway.client("two").post(*ask("chat")).status == 200
    running[0].leave()
    eventually(lambda: client.post(*ask("chat")).status == 200)
    assert [client.post(*ask("chat", model="nothing")).status for _ in range(5)] == [404] * 5
    assert [client.post(*ask("chat")).status for _ in range(5)] == [200] * 5, "an error gives its place back"
    running[1].leave()


def test_a_key_s_own_limit_and_a_change_while_it_runs(start: Start, engine: Engine) -> None:
    given = {"default": {"requests_per_minute": 2}, "keys": {"key-2": {"requests_per_minute": 4}}}
    policy_ = limited(engine, **given)
    del policy_["server"]["api_keys_env"], policy_["server"]["admin_key_env"], policy_["server"]["limits"]["keys"]
    gateway = start(Gateway(policy_))
    client = gateway.client()
    assert [client.post(*ask("chat")).status for _ in range(3)] == [200, 200, 429]
    assert "share one limit" in error_of("chat", client.post(*ask("chat")).json())["message"]
    policy_["server"]["limits"]["default"]["requests_per_minute"] = 5
    changed = client.post("/admin/policy", json.dumps(policy_).encode())
    assert changed.json()["changes"] == [
        "server: limits are {'default': {'requests_per_minute': 5}}, were {'default': {'requests_per_minute': 2}}"
    ]
    assert [client.post(*ask("chat")).status for _ in range(4)] == [200, 200, 200, 429]
    gateway = start(Gateway(limited(engine, **given), keys=KEYS))
    assert [gateway.client("two").post(*ask("chat")).status for _ in range(5)] == [200] * 4 + [429]


@pytest.mark.parametrize("kind", PROTOCOLS)
@pytest.mark.parametrize("step", ["_identify", "_note_decision", "_note_signals", "_note_answer"])
def test_a_fault_of_our_own_keeps_no_place_and_leaves_a_record(
    start: Start, engine: Engine, monkeypatch: pytest.MonkeyPatch, kind: str, step: str
) -> None:
    gateway: Gateway = start(Gateway(limited(engine, default={"concurrent_requests": 1}), keys=KEYS))
    client = gateway.client("one")

    def fail(*args: Any, **given: Any) -> None:
        raise ZeroDivisionError("a fault in the gateway")

    with monkeypatch.context() as broken:
        broken.setattr(Answers if step == "_note_answer" else Pipeline, step, fail)
        failed = client.post(*ask(kind))
    eventually(lambda: gateway.decisions("admin"))
    record = gateway.record("admin")
    assert any("a fault in the gateway" in found for found in gateway.expect_failures())
    if step in {"_identify", "_note_decision"}:
        assert (failed.status, failed.code) == (500, "internal_error")
        error_of(kind, failed.json())
        assert (record["status"], record["outcome"], record["error"]) == (500, "refused", "internal_error")
    elif step == "_note_answer":
        assert (record["status"], record["outcome"], record["error"]) == (200, "broken", "internal_error")
    else:
        assert (record["status"], record["outcome"]) == (200, "ok")
    assert gateway.client("one").post(*ask(kind)).status == 200, "its place is free again"
