"""A policy that changes while requests run: nothing is lost, and a bad one changes nothing."""

from __future__ import annotations

import asyncio
import json
import math
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec import structs

from switchyard import reloading
from switchyard.config.policy import Policy
from switchyard.routing.classify.scorer import encode_weights, read_weights
from switchyard.upstream.pool import SWEEP_S

from .client import ask, eventually
from .engine import Engine, Gate, reply, sse, stream
from .gateway import Gateway, Json, Serve, policy, pool

Start = Callable[..., Any]
RELOADS, RATE_PER_S = 100, 200


def routed(engines: list[Engine], threshold: float) -> Json:
    route = {"classify": [{"type": "embedded"}], "choose": [{"p_at_least": threshold, "use": "small"}, {"use": "big"}]}
    return policy({"small": pool(*engines), "big": pool(engines[0])}, {"auto": route})


def test_a_hundred_reloads_under_load_lose_no_request(start: Start) -> None:
    engines = [start(Engine("m")) for _ in range(3)]
    gateway: Gateway = start(Gateway(routed(engines, 0.5)))
    statuses = asyncio.run(_reload_under_load(gateway.port, engines))
    assert len(statuses) > RELOADS
    assert set(statuses) == {200}
    assert gateway.metric("switchyard_policy_reloads_total", result="good") == RELOADS
    assert gateway.metric("switchyard_requests_total", outcome="ok") == len(statuses)
    gateway.wait_idle()


async def _reload_under_load(port: int, engines: list[Engine]) -> list[int]:
    limits = httpx.Limits(max_connections=100)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30, limits=limits) as client:

        async def one(number: int) -> int:
            body = {"model": "auto", "stream": number % 2 == 0, "messages": [{"role": "user", "content": f"hello {number}"}]}
            answer = await client.post("/v1/chat/completions", json=body)
            return answer.status_code if "Hello" in answer.text or number % 2 == 0 else -1

        requests: list[asyncio.Task[int]] = []
        ended = asyncio.Event()

        async def load() -> None:
            while not ended.is_set():
                requests.append(asyncio.create_task(one(len(requests))))
                await asyncio.sleep(1 / RATE_PER_S)

        loading = asyncio.create_task(load())
        for number in range(RELOADS):
            shown = routed(engines if number % 2 else engines[:2], 0.3 + number / 400)
            answer = await client.post("/admin/policy", json=shown)
            assert answer.json()["good"], answer.text
            assert answer.json()["changes"]
            await asyncio.sleep(0.03)
        ended.set()
        await loading
        return list(await asyncio.gather(*requests))


def test_a_running_stream_ends_on_the_replica_that_is_gone(start: Start) -> None:
    first, second = start(Engine("m")), start(Engine("m"))
    gateway: Gateway = start(Gateway(policy({"small": pool(first)})))
    content = [sse({"n": n}) for n in range(10)]
    first.play(stream(*(step for event in content for step in (event, 0.1))))
    connection = gateway.client().start(*ask("chat", stream=True))
    begun = connection.head()
    answer = gateway.client().post("/admin/policy", policy({"small": pool(second)}))
    assert any("drained" in line for line in answer.json()["changes"])
    assert gateway.client().post(*ask("chat")).status == 200
    assert len(second.work) == 1
    assert connection.rest(begun).body == b"".join(content)


def test_requests_that_wait_for_a_pool_that_is_gone_are_served_all_the_same(start: Start) -> None:
    """One waits for a place, one for a judge; each keeps the policy that it began with."""
    first, judge = start(Engine("m")), start(Engine("j"))
    gate, verdict = Gate(), Gate()
    first.play([gate, *reply({"n": 1})], reply({"n": 2}))
    judge.play([verdict, *reply({}, 400)])  # it is asked once more, in another form
    classify = [{"type": "model", "pool": "judge", "deadline_ms": 9000}]
    route = {"classify": classify, "choose": [{"p_at_least": 0.5, "use": "big"}, {"use": "small"}], "otherwise": "small"}
    small = pool(first, limits={"in_flight": 1})
    pools = {"small": small, "big": pool("http://127.0.0.1:1"), "judge": pool(judge)}
    gateway: Gateway = start(Gateway(policy(pools, {"auto": route})))
    running = gateway.client().start(*ask("chat"))
    first.wait_for()
    queued, judged = gateway.client().start(*ask("chat")), gateway.client().start(*ask("chat", model="auto"))
    eventually(lambda: gateway.metric("switchyard_queued", pool="small") == 1)
    judge.wait_for()
    answer = gateway.client().post("/admin/policy", policy({"other": small}))
    assert "pool small is gone: what runs on it may end" in answer.json()["changes"]
    time.sleep(3 * SWEEP_S)  # what is no longer used has been put away
    gate.open()
    verdict.open()
    assert [each.answer().status for each in (running, queued, judged)] == [200, 200, 200]


def test_the_policy_that_came_last_is_in_force(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the one before takes longer to be read."""
    engine = start(Engine("m"))
    gateway: Gateway = start(Gateway(routed([engine], 0.5)))
    began, go_on = threading.Event(), threading.Event()
    read = reloading.parse_policy

    def slow(raw: bytes, file: str) -> Policy:
        if b"0.61" in raw:
            began.set()
            assert go_on.wait(5)
        return read(raw, file)

    monkeypatch.setattr(reloading, "parse_policy", slow)
    early, late = (
        threading.Thread(target=gateway.client().post, args=("/admin/policy", routed([engine], p))) for p in (0.61, 0.62)
    )
    early.start()
    assert began.wait(5)
    late.start()
    time.sleep(0.1)
    go_on.set()
    early.join(5)
    late.join(5)
    (first, *_) = gateway.inner.policy.routes["auto"].choose
    assert first.p_at_least == 0.62


def write_head(path: Path, constant: float) -> None:
    """A head that says the same about everything, like one of the user's own."""
    head = structs.replace(read_weights(), scope="own", curve=[constant] * 3, slope=0.0)
    path.write_bytes(encode_weights(head))


def test_a_head_of_ones_own_is_taken_up_with_the_policy_and_learned_anew(start: Start, tmp_path: Path) -> None:
    engines = [start(Engine("s")), start(Engine("b"))]
    head, question = tmp_path / "head.json", "What is the difference between a virus and a bacterium?"

    def shown(**block: Any) -> Json:
        route = {"classify": [{"type": "embedded", **block}], "choose": [{"p_at_least": 0.6, "use": "small"}, {"use": "big"}]}
        return policy({"small": pool(engines[0]), "big": pool(engines[1])}, {"auto": route})

    serve: Serve = start(Serve(shown(), tmp_path))
    serve.wait_ready()

    def p() -> float:
        _, asked = ask("chat", question, "auto")
        return float(serve.client().post("/v1/decision", asked).json()["p"])

    def reload(**block: Any) -> None:
        serve.file.write_text(json.dumps(shown(**block)))
        serve.process.send_signal(signal.SIGHUP)

    shipped = p()
    write_head(head, -1.0)
    reload(weights=str(head))
    eventually(lambda: abs(p() - 1 / (1 + math.e)) < 1e-6)
    write_head(head, 1.0)  # the policy stays: only the file is new
    serve.process.send_signal(signal.SIGHUP)
    eventually(lambda: abs(p() - 1 / (1 + 1 / math.e)) < 1e-6)
    assert f"weights in {head} are new" in serve.output
    reload(weights=str(head), scale=2.0, bias=-2.0)
    eventually(lambda: abs(p() - 0.5) < 1e-6)
    head.write_text("{}")
    serve.process.send_signal(signal.SIGHUP)
    eventually(lambda: "holds no weights" in serve.ready().body.decode())
    assert abs(p() - 0.5) < 1e-6  # what was there stays
    head.unlink()
    reload()
    eventually(lambda: p() == shipped)
    reload(weights=str(head))
    eventually(lambda: "routes.auto.classify[0].weights" in serve.ready().body.decode())
    assert p() == shipped


def test_sessions_stay_through_a_reload(start: Start) -> None:
    engine = start(Engine("m"))
    gateway: Gateway = start(Gateway(routed([engine], 0.99)))
    client = gateway.client()
    session = [("x-session-id", "s1")]
    assert client.post(*ask("chat", "hi", "auto"), session).header("x-switchyard-pool") == "big"
    client.post("/admin/policy", routed([engine], 0.0))
    path, body = ask("chat", "hi", "auto")
    body["messages"] += [{"role": "assistant", "content": "x"}, {"role": "user", "content": "hello again"}]
    assert client.post(path, body, session).header("x-switchyard-pool") == "big"  # it only goes up
    assert client.post(*ask("chat", "hi", "auto")).header("x-switchyard-pool") == "small"


def test_a_bad_policy_changes_nothing(start: Start) -> None:
    engine = start(Engine("m"))
    gateway: Gateway = start(Gateway(routed([engine], 0.5)))
    client = gateway.client()
    for bad in (b"version: 2", b"", b"\xff", json.dumps({"version": 1, "pools": {"a": {}}}).encode()):
        if not bad:
            continue
        answer = client.post("/admin/policy", bad)
        assert answer.status == 400
        assert all(problem.startswith("sent policy:") for problem in answer.json()["problems"])
    assert "policy_problem" not in gateway.ready().json(), "who sent it was told; the gateway's own file is good"
    assert gateway.metric("switchyard_policy_reloads_total", result="refused") == 3
    assert client.post(*ask("chat", model="auto")).status == 200


def test_the_file_is_watched(tmp_path: Path, start: Start) -> None:
    engine = start(Engine("m"))
    serve: Serve = start(Serve(routed([engine], 0.5), tmp_path))
    serve.wait_ready()
    serve.file.write_text(json.dumps(routed([engine], 0.6)))
    eventually(lambda: "new policy: route auto: thresholds are small from 0.6" in serve.output, 30)
    serve.file.write_text("version: 1\npols: {}\n")
    eventually(lambda: "did you mean pools?" in serve.ready().json().get("policy_problem", ""), 30)
    serve.file.write_text(json.dumps(routed([engine], 0.7)))
    serve.process.send_signal(signal.SIGHUP)
    eventually(lambda: "small from 0.7" in serve.output, 30)
    assert "policy_problem" not in serve.ready().json()
