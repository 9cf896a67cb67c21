"""Replicas that are found by DNS or in a file: they come and go under traffic, and a bad source changes nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from switchyard.pools import discovery

from .client import ask, eventually
from .engine import Engine, Gate, reply
from .gateway import Gateway, Serve, policy, pool

Start = Callable[..., Any]


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "EVERY_S", 0.05)


class Names:
    """A resolver whose answers a test sets."""

    def __init__(self, *addresses: str) -> None:
        self.answer: Sequence[str] | OSError = addresses
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, name: str, port: int) -> Sequence[str]:
        self.asked.append((name, port))
        if isinstance(self.answer, OSError):
            raise self.answer
        return self.answer


def labels(gateway: Any) -> list[str]:
    return sorted(gateway.ready().json()["pools"]["small"]["replicas"])


def write(path: Path, **pools: Any) -> None:
    path.write_text(json.dumps(pools))


def test_the_real_resolver_finds_localhost(start: Start, engine: Engine) -> None:
    block = pool(model=engine.model, replicas=f"dns://localhost:{engine.port}")
    gateway = start(Gateway(policy({"small": block})))
    assert f"127.0.0.1:{engine.port}" in labels(gateway)
    assert gateway.client().post(*ask("chat")).status == 200
    assert gateway.metric("switchyard_discovery_up", pool="small") == 1


def test_addresses_come_and_go(start: Start, engine: Engine) -> None:
    names = Names("127.0.0.1")
    block = pool(model=engine.model, replicas=f"dns://qwen.cluster:{engine.port}")
    gateway = start(Gateway(policy({"small": block}), resolve=names))
    assert names.asked[0] == ("qwen.cluster", engine.port)
    names.answer = ["::1", "127.0.0.1", "127.0.0.1"]
    eventually(lambda: labels(gateway) == [f"127.0.0.1:{engine.port}", f"[::1]:{engine.port}"])
    for _ in range(4):  # the one that doesn't answer is tried, or known to be down
        assert gateway.client().post(*ask("chat")).status == 200
    assert "[::1]" in gateway.client().get("/metrics").body.decode()
    names.answer = ["127.0.0.1"]
    eventually(lambda: labels(gateway) == [f"127.0.0.1:{engine.port}"])
    assert gateway.client().post(*ask("chat")).status == 200
    assert "[::1]" not in gateway.client().get("/metrics").body.decode(), "addresses that are gone leave no series"


@pytest.mark.parametrize("answer", [OSError(-2, "Name or service not known"), [], ["fe80::1%eth0"]])
def test_a_name_server_that_fails_changes_nothing(start: Start, engine: Engine, answer: Any) -> None:
    names = Names("127.0.0.1")
    block = pool(model=engine.model, replicas=f"dns://qwen.cluster:{engine.port}")
    gateway = start(Gateway(policy({"small": block}), resolve=names))
    names.answer = answer
    eventually(lambda: gateway.metric("switchyard_discovery_up", pool="small") == 0)
    assert labels(gateway) == [f"127.0.0.1:{engine.port}"]
    assert "qwen.cluster" in gateway.ready().json()["pools"]["small"]["replicas_problem"]
    assert gateway.client().post(*ask("chat")).status == 200
    names.answer = ["127.0.0.1"]
    eventually(lambda: gateway.metric("switchyard_discovery_up", pool="small") == 1)
    assert "replicas_problem" not in gateway.ready().json()["pools"]["small"]


def test_a_file_adds_and_drains_replicas_without_losing_a_request(start: Start, engine: Engine, tmp_path: Path) -> None:
    other, file = start(Engine()), tmp_path / "replicas.yaml"
    write(file, small=[engine.url], big=["http://10.0.0.9:8000"])
    block = pool(model=engine.model, replicas=f"file://{file}", balance="round_robin")
    gateway = start(Gateway(policy({"small": block})))
    client = gateway.client()
    gate = Gate()
    engine.play([gate, *reply({"choices": []})])
    running = client.start(*ask("chat"))
    engine.wait_for()
    engine.play()

    statuses: list[int] = []
    stop = threading.Event()

    def traffic() -> None:
        own = gateway.client()
        while not stop.is_set():
            statuses.append(own.post(*ask("chat")).status)

    thread = threading.Thread(target=traffic)
    thread.start()
    write(file, small=[{"url": engine.url, "nodes": ["s1"]}, {"url": other.url, "name": "two", "weight": 2}])
    eventually(lambda: other.work)
    write(file, small=[{"url": other.url, "name": "two"}])
    eventually(lambda: labels(gateway) == ["two"])
    (found,) = client.get("/admin/pools").json()["pools"]
    states = {r["replica"]: (r["state"], r["reason"], r["in_flight"]) for r in found["replicas"]}
    assert states[f"127.0.0.1:{engine.port}"] == ("draining", "no longer listed", 1)
    seen = len(engine.work)
    eventually(lambda: len(other.work) > 20)
    assert len(engine.work) <= seen + 1
    gate.open()
    assert running.answer().status == 200
    stop.set()
    thread.join(10)
    assert set(statuses) == {200}
    eventually(lambda: len(client.get("/admin/pools").json()["pools"][0]["replicas"]) == 1)
    write(file, small=[engine.url])
    eventually(lambda: labels(gateway) == [f"127.0.0.1:{engine.port}"])
    assert client.post(*ask("chat")).status == 200


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("small: [http://10.0.0.1:8000", "not readable as YAML"),
        ("other: [http://10.0.0.1:8000]", "has no pool small; it has: other"),
        ("small: []", "at least one replica"),
        ("small: {url: http://10.0.0.1:8000}", "at least one replica"),
        ("small: [https://10.0.0.1:8000]", "small[0].url"),
        ("small:\n  - http://10.0.0.1:8000\n  - {url: http://10.0.0.2:8000, wait: 3}", "replicas.yaml:3:5: small[1].wait"),
        ("small: [http://10.0.0.1:8000, http://10.0.0.1:8000]", "listed twice"),
        ("- http://10.0.0.1:8000", "a mapping is expected"),
        (None, "can't be read"),
    ],
)
def test_a_bad_file_changes_nothing_and_is_told(
    start: Start, engine: Engine, tmp_path: Path, text: str | None, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "replicas.yaml"
    write(file, small=[engine.url])
    gateway = start(Gateway(policy({"small": pool(model=engine.model, replicas=f"file://{file}")})))
    if text is None:
        file.unlink()
    else:
        file.write_text(text)
    eventually(lambda: gateway.metric("switchyard_discovery_up", pool="small") == 0)
    assert says in gateway.ready().json()["pools"]["small"]["replicas_problem"]
    assert labels(gateway) == [f"127.0.0.1:{engine.port}"]
    assert gateway.client().post(*ask("chat")).status == 200
    told = [r.message for r in caplog.records if "stay as they are" in r.message]
    assert len(told) == 1, "once, not at every look"


def test_a_file_that_comes_later_and_a_reload_to_a_list(start: Start, engine: Engine, tmp_path: Path) -> None:
    """Relative to the policy's folder; the gateway serves as soon as the file is there."""
    found_there = policy({"small": pool(model=engine.model, replicas="file://replicas.yaml")})
    serve = start(Serve(found_there, tmp_path))
    client = serve.client()
    assert client.post(*ask("chat")).status == 502
    write(tmp_path / "replicas.yaml", small=[engine.url])
    eventually(lambda: client.post(*ask("chat")).status == 200, 10)
    assert client.post("/admin/policy", json.dumps(policy({"small": pool(engine)})).encode()).json()["changes"] == [
        "pool small: its replicas are those of the policy now",
        f"pool small: replica 127.0.0.1:{engine.port} is new",
    ]
    assert client.post(*ask("chat")).status == 200
