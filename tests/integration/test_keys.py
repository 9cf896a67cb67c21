"""Keys: who may call, and that each side's key stays on its side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from switchyard.config.secrets import Secrets

from .client import PATHS, Client, Pairs, ask, error_of
from .engine import Engine
from .gateway import Gateway, policy, pool

Start = Callable[..., Any]
KINDS = pytest.mark.parametrize("kind", sorted(PATHS))
GOOD, OTHER, ADMIN = "gw-SECRET1", "gw-SECRET2", "admin-SECRET"
WAYS: list[Pairs] = [
    [("authorization", f"Bearer {GOOD}")], [("authorization", f"bearer  {GOOD} ")], [("x-api-key", GOOD)],
    [("X-Api-Key", OTHER)], [("authorization", "Bearer wrong"), ("x-api-key", GOOD)],
]  # fmt: skip
WRONG: list[Pairs] = [
    [], [("authorization", GOOD)], [("authorization", f"Basic {GOOD}")], [("authorization", "Bearer")],
    [("authorization", "Bearer ")],
    [("x-api-key", "")], [("x-api-key", f"{GOOD},{OTHER}")], [("x-api-key", GOOD.lower())], [("x-api-key", "k" * 5000)],
    [("authorization", "Bearer caf\xe9")], [("api-key", GOOD)], [("cookie", f"key={GOOD}")], [("x-api-key", ADMIN)],
]  # fmt: skip


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[Engine, Engine]]:
    with Engine(key="pool-SECRET") as keyed, Engine("acme/plain") as plain:
        yield keyed, plain


@pytest.fixture(scope="module")
def gateway(engines: tuple[Engine, Engine]) -> Iterator[Gateway]:
    keyed, plain = engines
    pools = {"small": pool(keyed, api_key_env="POOL_KEY"), "plain": pool(plain)}
    keys = Secrets((GOOD, OTHER), ADMIN, {"small": "pool-SECRET"})
    with Gateway(policy(pools, api_keys_env="KEYS", admin_key_env="ADMIN"), keys=keys) as gateway:
        yield gateway


@pytest.fixture
def client(gateway: Gateway, engines: tuple[Engine, Engine]) -> Client:
    for engine in engines:
        engine.reset()
    return gateway.client()


@KINDS
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", ["small", "plain"])
def test_a_key_opens_and_goes_no_further(
    client: Client, engines: tuple[Engine, Engine], kind: str, way: Pairs, model: str
) -> None:
    """The engine sees its pool's key, or none."""
    answer = client.post(*ask(kind, model=model), [*way, ("proxy-authorization", f"Bearer {GOOD}"), ("api-key", GOOD)])
    assert answer.status == 200, answer
    seen = engines[model == "plain"].last
    assert seen.all("authorization") == (["Bearer pool-SECRET"] if model == "small" else [])
    assert "SECRET1" not in str(seen.headers)
    assert "SECRET2" not in str(seen.headers)


@pytest.mark.parametrize("way", WRONG)
@KINDS
def test_without_a_valid_key_nothing_opens(client: Client, engines: tuple[Engine, Engine], kind: str, way: Pairs) -> None:
    answer = client.post(*ask(kind), way)
    assert (answer.status, answer.code) == (401, "invalid_api_key")
    assert answer.header("www-authenticate") == "Bearer"
    assert error_of(kind, answer.json())["type"] == "authentication_error"
    assert "SECRET" not in answer.body.decode()
    assert [e.work for e in engines] == [[], []]


def test_the_key_comes_before_everything_else(client: Client) -> None:
    """A stranger learns neither models nor methods, and needn't send a body to be told."""
    assert client.post(PATHS["chat"], b"{").status == 401
    assert client.post(*ask("chat", model="nobody")).status == 401
    assert client.get(PATHS["chat"]).status == 401
    assert client.get("/v1/responses/resp_1").status == 401
    connection = client.open()
    connection.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n")
    assert connection.answer().status == 401


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/small"])
@pytest.mark.parametrize("way", WRONG)
def test_lists_need_a_key(client: Client, path: str, way: Pairs) -> None:
    assert client.get(path, way).status == 401
    assert client.post("/v1/decision", ask("chat")[1], way).status == 401


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/metrics"])
def test_health_and_metrics_need_none(client: Client, path: str) -> None:
    answer = client.get(path)
    assert answer.status == 200
    assert "SECRET" not in answer.body.decode()


def test_admin_needs_its_own_key(client: Client) -> None:
    for way in [*WAYS, *WRONG[:-1]]:
        answer = client.get("/admin/decisions", way)
        assert (answer.status, answer.code) == (401, "invalid_api_key"), way
    assert client.get("/admin/decisions", [("authorization", f"Bearer {ADMIN}")]).status == 200
    assert client.get("/admin/decisions", [("x-api-key", ADMIN)]).status == 200


def test_records_name_keys_by_number(client: Client, gateway: Gateway) -> None:
    for key, name in ((GOOD, "key-1"), (OTHER, "key-2")):
        client.post(*ask("chat"), [("x-api-key", key)])
        records = gateway.decisions(ADMIN)
        assert records[0]["key"] == name
        assert "SECRET" not in str(records)


def test_probes_show_the_pools_key(gateway: Gateway, engines: tuple[Engine, Engine]) -> None:
    keyed, plain = engines
    for engine, expected in ((keyed, ["Bearer pool-SECRET"]), (plain, [])):
        engine.requests.clear()
        while not (probes := [r for r in engine.requests if r.path == "/health"]):
            pass
        assert probes[0].all("authorization") == expected
    assert gateway.metric("switchyard_replica_up") == 2


def test_without_keys_but_an_admin_key_admin_is_closed(engines: tuple[Engine, Engine]) -> None:
    with Gateway(policy({"small": pool(engines[1])}, admin_key_env="ADMIN"), keys=Secrets((), ADMIN)) as gateway:
        client = gateway.client()
        assert client.post(*ask("chat")).status == 200
        assert client.get("/admin/decisions").status == 401
        assert client.get("/admin/decisions", [("x-api-key", ADMIN)]).status == 200


def test_with_keys_but_no_admin_key_admin_is_closed_to_all(engines: tuple[Engine, Engine]) -> None:
    with Gateway(policy({"small": pool(engines[1])}, api_keys_env="KEYS"), keys=Secrets((GOOD,))) as gateway:
        client = gateway.client()
        assert client.get("/admin/decisions").status == 401
        assert client.get("/admin/decisions", [("x-api-key", GOOD)]).status == 401


def test_a_decision_is_the_one_that_this_key_would_get(start: Start, engine: Engine) -> None:
    """Rules may look at the key, and each key has sessions of its own."""
    rules = [{"when": {"api_key_name": "key-2"}, "use": "big"}]
    route = {"rules": rules, "choose": [{"p_at_least": 0.5, "use": "small"}, {"use": "big"}], "otherwise": "small"}
    shown = policy({"small": pool(engine), "big": pool(engine)}, {"auto": route}, api_keys_env="KEYS", admin_key_env="ADMIN")
    gateway: Gateway = start(Gateway(shown, keys=Secrets((GOOD, OTHER), ADMIN, {})))
    path, body = ask("chat", model="auto")
    for key, expected in ((GOOD, "small"), (OTHER, "big")):
        for more in ([], [("x-session-id", "s")]):
            client = gateway.client(key)
            found = client.post("/v1/decision", body, more).json()
            assert found["pool"] == client.post(path, body, more).pool == expected
            record = gateway.record(ADMIN)
            assert found["session"] == {"key": record["session"], "source": record["session_source"]}
