"""Replicas taken out and put back by hand while traffic runs: over /admin, and with `switchyard pools`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from switchyard.cli.main import main
from switchyard.cli.pools import shown
from switchyard.config.secrets import Secrets

from .client import Client, ask, eventually
from .engine import DeadPort, Engine, Gate, reply
from .gateway import Gateway, Serve, policy, pool

Start = Callable[..., Any]


@pytest.fixture
def pair(start: Start, engine: Engine) -> tuple[Engine, Engine, Gateway]:
    other = start(Engine())
    block = pool(balance="round_robin", model=engine.model, replicas=[
        {"url": engine.url, "name": "one", "nodes": ["s1", "s2"]}, {"url": other.url, "name": "rack/two"}])  # fmt: skip
    return engine, other, start(Gateway(policy({"org/small": block})))


def act(client: Client, replica: str, action: str, more: str = "") -> Any:
    return client.post(f"/admin/pools/org/small/replicas/{replica}/{action}{more}")


def states(client: Client) -> dict[str, str]:
    (found,) = client.get("/admin/pools").json()["pools"]
    return {r["replica"]: r["state"] for r in found["replicas"]}


def test_draining_lets_what_runs_end_and_gives_nothing_new(pair: tuple[Engine, Engine, Gateway]) -> None:
    one, two, gateway = pair
    client = gateway.client()
    gate = Gate()
    for engine in (one, two):
        engine.play([gate, *reply({"choices": []})])
    running = [client.start(*ask("chat", model="org/small")) for _ in range(4)]
    one.wait_for(2)
    two.wait_for(2)
    answer = act(client, "one", "drain").json()
    assert (answer["changed"], answer["state"], answer["reason"]) == (True, "draining", "drained by hand")
    assert (answer["in_flight"], answer["nodes"]) == (2, ["s1", "s2"])
    gate.open()
    assert [connection.answer().status for connection in running] == [200] * 4
    for _ in range(4):
        assert client.post(*ask("chat", model="org/small")).replica == "rack/two"
    assert len(one.work) == 2
    assert act(client, "one", "undrain").json()["state"] == "ready"
    assert {client.post(*ask("chat", model="org/small")).replica for _ in range(4)} == {"one", "rack/two"}


def test_an_ejected_replica_comes_back_by_itself_and_readmit_brings_it_back_at_once(
    pair: tuple[Engine, Engine, Gateway],
) -> None:
    client = pair[2].client()
    assert act(client, "rack%2Ftwo", "eject").json()["state"] == "ejected"
    assert states(client) == {"one": "ready", "rack/two": "ejected"}
    assert act(client, "rack/two", "readmit").json()["state"] == "ready"
    act(client, "one", "eject")
    eventually(lambda: states(client)["one"] == "ready", 20)  # after 5 s and one token


def test_what_can_not_be_done_is_said(pair: tuple[Engine, Engine, Gateway]) -> None:
    client = pair[2].client()
    answer = client.post("/admin/pools/nobody/replicas/one/drain")
    assert (answer.status, answer.code) == (404, "replica_not_found")
    assert "known: org/small" in answer.json()["error"]["message"]
    answer = act(client, "three", "drain")
    assert (answer.status, answer.code) == (404, "replica_not_found")
    assert "known: one, rack/two" in answer.json()["error"]["message"]
    assert (act(client, "one", "reboot").status, act(client, "one", "reboot").code) == (400, "invalid_request")
    assert client.get("/admin/pools/org/small/replicas/one/drain").status == 405
    act(client, "one", "drain")
    answer = act(client, "rack/two", "drain")
    assert (answer.status, answer.code) == (409, "last_replica")
    assert states(client) == {"one": "draining", "rack/two": "ready"}
    assert act(client, "rack/two", "drain", "?force=true").status == 200
    answer = client.post(*ask("chat", model="org/small"))
    assert (answer.status, answer.code) == (502, "upstream_unreachable")
    assert "drained" in answer.json()["error"]["message"]
    assert pair[2].ready().status == 503
    act(client, "one", "undrain")
    assert client.post(*ask("chat", model="org/small")).status == 200


def test_a_larger_pool_takes_over_from_one_that_is_drained(start: Start, engine: Engine) -> None:
    big = start(Engine("acme/big"))
    choose = [{"p_at_least": 0.0, "use": "small"}, {"use": "big"}]
    routes = {"auto": {"classify": [{"type": "embedded"}], "choose": choose}}
    client = start(Gateway(policy({"small": pool(engine), "big": pool(big)}, routes))).client()
    client.post(f"/admin/pools/small/replicas/127.0.0.1:{engine.port}/drain?force=true")
    answer = client.post(*ask("chat", model="auto"))
    assert (answer.status, answer.pool) == (200, "big")


def test_the_admin_key_is_needed(start: Start, engine: Engine) -> None:
    gateway = start(Gateway(policy({"small": pool(engine)}, api_keys_env="K", admin_key_env="A"), keys=Secrets(("k",), "a")))
    path = f"/admin/pools/small/replicas/127.0.0.1:{engine.port}/drain"
    for client in (gateway.client(), gateway.client("k")):
        assert client.get("/admin/pools").status == 401
        assert client.post(path).status == 401
    assert gateway.client("a").post(path).status == 409
    assert gateway.client("a").post(path, headers=[("origin", "http://evil.example")]).status == 403


def test_the_state_outlives_a_reload(start: Start, engine: Engine, tmp_path: Path) -> None:
    other = start(Engine())
    serve = start(Serve(policy({"small": pool(engine, other)}), tmp_path))
    serve.wait_ready()
    client = serve.client()
    assert client.post(f"/admin/pools/small/replicas/127.0.0.1:{engine.port}/drain").status == 200
    new = policy({"small": pool(engine, other, limits={"in_flight": 3})})
    assert client.post("/admin/policy", json.dumps(new).encode()).status == 200
    found = client.get("/admin/pools").json()["pools"][0]["replicas"]
    assert [(r["state"], r["limit"]) for r in found] == [("draining", 3), ("ready", 3)]


# ---- the command ----


def test_the_command_shows_and_acts(pair: tuple[Engine, Engine, Gateway], capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{pair[2].port}"
    assert main(["pools", url, "--once"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("org/small  acme/small  round_robin  2 of 2 take requests  0 of 200 wait")
    assert "s1,s2" in out
    assert main(["pools", "drain", "org/small/rack/two", "--url", url, "--wait"]) == 0
    assert capsys.readouterr().out == "org/small/rack/two is draining: drained by hand; 0 requests run on it\n"
    assert main(["pools", "drain", "org/small/rack/two", "--url", url]) == 0
    assert "is draining already" in capsys.readouterr().out
    assert main(["pools", "drain", "org/small/one", "--url", url]) == 1
    assert "last replica" in capsys.readouterr().err
    assert main(["pools", "drain", "org/small/one", "--url", url, "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "draining"
    assert main(["pools", url, "--json"]) == 1, "a pool without any replica is not good"
    assert json.loads(capsys.readouterr().out)["pools"][0]["taking"] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nonsense"], 2, "neither a URL"),
        (["{url}", "small/x"], 2, "given by --url, with an action"),
        (["{url}", "--wait"], 2, "belongs to drain"),
        (["drain"], 2, "POOL/REPLICA"),
        (["drain", "small"], 2, "POOL/REPLICA"),
        (["drain", "small/nobody", "--url", "{url}"], 2, "has no replica"),
        (["drain", "nobody/x", "--url", "{url}"], 2, "there is no pool"),
        (["http://127.0.0.1:{dead}", "--once"], 3, "can't be asked"),
        (["{url}", "--once", "--key-env", "NO_SUCH_KEY"], 3, "NO_SUCH_KEY"),
    ],
)
def test_wrong_use_of_the_command(
    start: Start, engine: Engine, arguments: list[str], code: int, message: str,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    gateway = start(Gateway(policy({"small": pool(engine)}, api_keys_env="K", admin_key_env="A"), keys=Secrets(("k",), "a")))
    monkeypatch.setenv("SWITCHYARD_ADMIN_KEY", "a")
    with DeadPort() as dead:
        known = {"url": f"http://127.0.0.1:{gateway.port}", "dead": dead.url.rpartition(":")[2]}
        assert main(["pools", *(a.format(**known) for a in arguments)]) == code
    assert message in capsys.readouterr().err


def test_the_table_says_whose_figures_are_missing() -> None:
    assert shown({"pools": []}) == shown({"pools": [], "workers": {"count": 2, "answered": 2}}) == ""
    assert "1 of 3 workers did not answer" in shown({"pools": [], "workers": {"count": 3, "answered": 2}})
