"""Lists, health, decisions without their request, records: what people and dashboards ask."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from switchyard.routing.classify.scorer import digest_weights
from switchyard.routing.fingerprint import fingerprint

from .client import PATHS, Client, ask, error_of, eventually
from .engine import DeadPort, Engine, reply
from .gateway import Gateway, policy, pool

Start = Callable[..., Any]


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[Engine, Engine]]:
    with Engine("acme/small", context=32_768) as small, Engine("acme/big", context=262_144) as big:
        yield small, big


@pytest.fixture(scope="module")
def gateway(engines: tuple[Engine, Engine]) -> Iterator[Gateway]:
    small, big = engines
    pools = {
        "small": pool(small), "org/big": pool(big, accepts=["tools", "images"]), "limited": pool(small, context=1000),
        "count-less": pool(small),
    }  # fmt: skip
    choose = [{"p_at_least": 0.5, "use": "small"}, {"use": "org/big"}]
    rules = [{"when": {"tools": {"at_least": 3}}, "use": "org/big", "why": "many tools"}]
    auto = {"rules": rules, "classify": [{"type": "embedded"}], "choose": choose, "aliases": ["claude-*", "coder"]}
    with Gateway(policy(pools, {"auto": auto})) as gateway:
        yield gateway


@pytest.fixture
def client(gateway: Gateway, engines: tuple[Engine, Engine]) -> Client:
    for engine in engines:
        engine.reset()
    return gateway.client()


# ---- /v1/models ----


def test_the_list(client: Client, gateway: Gateway) -> None:
    body = client.get("/v1/models").json()
    assert body["object"] == "list"
    cards = {card["id"]: card for card in body["data"]}
    assert [n for n in cards if n != "coder"] == ["auto", "small", "org/big", "limited", "count-less"]
    assert {n: c["max_model_len"] for n, c in cards.items() if n != "coder"} == {
        "auto": 262_144, "small": 32_768, "org/big": 262_144, "limited": 1000, "count-less": 32_768,
    }  # fmt: skip
    assert "images" in cards["org/big"]["modalities"]
    assert "images" not in cards["small"]["modalities"]
    for card in cards.values():
        assert card["object"] == "model"
        assert abs(card["created"] - time.time()) < 3600
    assert client.get("/v1/models").json() == body, "created doesn't change"


@pytest.mark.parametrize("name", ["auto", "small", "org/big", "org%2Fbig", "coder", "claude-sonnet-4-5"])
def test_one_card(client: Client, name: str) -> None:
    answer = client.get(f"/v1/models/{name}")
    assert answer.status == 200
    assert answer.json()["id"] == name.replace("%2F", "/")
    assert answer.json()["max_model_len"]


@pytest.mark.parametrize("name", ["nobody", "org", "", "auto/x", "a" * 3000])
def test_no_card(client: Client, name: str) -> None:
    answer = client.get(f"/v1/models/{name}")
    assert answer.status in {404, 307, 200} if not name else answer.status == 404
    if answer.status == 404:
        assert error_of("chat", answer.json())["code"] in {"model_not_found", "endpoint_not_found"}


def test_lists_need_no_engine(start: Start) -> None:
    gateway = start(Gateway(policy({"small": pool(start(DeadPort()))}), ready=False))
    assert [c["id"] for c in gateway.client().get("/v1/models").json()["data"]] == ["small"]


# ---- health ----


def test_health(client: Client) -> None:
    assert client.get("/healthz").status == 200
    answer = client.get("/readyz")
    assert (answer.status, answer.json()["ready"]) == (200, True)
    (replica,) = answer.json()["pools"]["org/big"]["replicas"].values()
    assert replica["state"] == "ready"
    root = client.get("/").json()
    assert root["name"] == "switchyard"


def test_a_model_asks_its_engine_once_more(start: Start, engine: Engine) -> None:
    """An engine restarted with another length is noticed."""
    gateway = start(Gateway(policy({"small": pool(engine, health={"every_s": 0.05})})))
    engine.context = 4096
    engine.shut()
    eventually(lambda: gateway.ready().status == 503)
    engine.listen()
    eventually(lambda: gateway.client().get("/v1/models/small").json().get("max_model_len") == 4096)


def test_metrics_are_prometheus_text(client: Client) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    client.post(*ask("chat", stream=True))
    client.post(*ask("messages"))
    answer = client.get("/metrics")
    assert (answer.header("content-type") or "").startswith("text/plain; version=0.0.4")
    families = {f.name: f for f in text_string_to_metric_families(answer.body.decode())}
    for name in (
        "switchyard_requests",
        "switchyard_in_flight",
        "switchyard_replica_up",
        "switchyard_request_seconds",
        "switchyard_queued",
    ):
        assert families[name].samples, name
    assert all(f.documentation for f in families.values())


def test_tokens_are_counted_as_the_engine_says(client: Client, gateway: Gateway) -> None:
    def counted() -> tuple[float, float, float]:
        names = ("switchyard_input_tokens_total", "switchyard_output_tokens_total", "switchyard_cached_tokens_total")
        return tuple(gateway.metric(n, pool="small") for n in names)  # type: ignore[return-value]

    for kind, stream, expected in (
        ("chat", False, (9, 4, 0)), ("responses", False, (9, 4, 2)), ("responses", True, (9, 4, 2)),
        ("messages", False, (9, 4, 0)), ("messages", True, (9, 4, 0)), ("completions", False, (9, 4, 0)),
    ):  # fmt: skip
        before = counted()
        client.post(*ask(kind, stream=stream))
        after = counted()
        assert tuple(b - a for a, b in zip(before, after, strict=True)) == expected, (kind, stream)
    missing = gateway.metric("switchyard_usage_missing_total", pool="small")
    client.post(*ask("chat", stream=True))
    assert gateway.metric("switchyard_usage_missing_total", pool="small") == missing + 1
    assert gateway.record()["tokens"]["output"] is None, "missing is not zero"


# ---- a pool's tokenizer ----


def test_a_tokenizer_counts_where_the_estimate_leaves_it_open(start: Start, tmp_path: Path) -> None:
    """750 estimated tokens are 500 by the tokenizer: they fit the small pool; 700 don't, and 2,500 fit nobody."""
    tokenizer = Tokenizer(models.WordLevel({"hello": 0, "?": 1}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    engine = start(Engine("acme/m"))
    counting = {"tokenizer": str(tmp_path / "tokenizer.json")}
    pools = {"small": pool(engine, context=600, **counting), "big": pool(engine, context=2_000, **counting)}
    gateway = start(Gateway(policy(pools, {"auto": {"choose": [{"use": "small"}, {"use": "big"}], "otherwise": "small"}})))
    client = gateway.client()
    for words, expected in ((500, "small"), (700, "big"), (2_500, None)):
        answer = client.post(*ask("chat", "hello " * words, "auto"))
        assert answer.pool == expected, words
    assert answer.status == 400
    assert "2503 tokens (counted)" in answer.json()["error"]["message"]
    assert gateway.decisions()[1]["counted"] == {"small": 703, "big": 703}
    engine.play_at(PATHS["count"], reply({"detail": "Not Found"}, 404))
    counted = client.post(*ask("count", "hello " * 40, "small"))
    assert (counted.json(), counted.header("x-switchyard-estimate")) == ({"input_tokens": 43}, "tokenizer")


def test_a_tokenizer_that_is_none_changes_nothing(start: Start, tmp_path: Path) -> None:
    engine = start(Engine("acme/m"))
    gateway = start(Gateway(policy({"only": pool(engine)})))
    new = policy({"only": pool(engine, tokenizer=str(tmp_path / "tokenizer.json"))})
    answer = gateway.client().post("/admin/policy", json.dumps(new).encode())
    assert answer.status == 400
    assert "pools.only.tokenizer" in answer.json()["problems"][0]
    assert gateway.client().post(*ask("chat", model="only")).status == 200


# ---- count_tokens ----


def test_the_engine_counts(client: Client) -> None:
    answer = client.post(*ask("count"))
    assert (answer.json(), answer.header("x-switchyard-estimate")) == ({"input_tokens": 42}, None)


@pytest.mark.parametrize("status", [404, 405, 501])
def test_an_estimate_where_the_engine_can_t(
    client: Client, gateway: Gateway, engines: tuple[Engine, Engine], status: int
) -> None:
    engines[0].play_at(PATHS["count"], reply({"detail": "Not Found"}, status))
    path, body = ask("count", "word " * 400)
    answer = client.post(path, body)
    assert answer.status == 200
    assert answer.header("x-switchyard-estimate") == "true"
    assert 300 < answer.json()["input_tokens"] < 900
    assert client.post(f"{path}?beta=true", body).json() == answer.json()
    for _ in range(5):
        client.post(path, body)
    assert gateway.metric("switchyard_replica_up", pool="small") == 1, "it says nothing about the engine"
    assert client.post(*ask("messages")).status == 200


def test_other_refusals_of_counting_pass(client: Client, engines: tuple[Engine, Engine]) -> None:
    engines[0].play_at(
        PATHS["count"], reply({"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}, 400)
    )
    answer = client.post(*ask("count"))
    assert (answer.status, answer.json()["error"]["message"]) == (400, "no")


# ---- stored responses ----


@pytest.mark.parametrize("stream", [False, True])
def test_a_stored_response_is_asked_where_it_is(start: Start, stream: bool) -> None:
    engines = [start(Engine()) for _ in range(3)]
    gateway = start(Gateway(policy({"small": pool(*engines, balance="round_robin")})))
    client = gateway.client()
    path = PATHS["responses"]
    made = []
    for _ in range(6):
        answer = client.post(*ask("responses", stream=stream))
        id_ = answer.json()["id"] if not stream else answer.events()[0][1].partition('"id": "')[2].partition('"')[0]
        made.append((id_, answer.replica))
    assert len({replica for _, replica in made}) == 3
    for id_, replica in made:
        answer = client.get(f"{path}/{id_}?include[]=x")
        assert (answer.status, answer.json()["id"], answer.replica) == (200, id_, replica)
    id_, replica = made[0]
    follow = client.post(*ask("responses", previous_response_id=id_))
    assert (follow.status, follow.replica) == (200, replica)
    assert client.get(f"{path}/{id_}", method="DELETE").json()["deleted"] is True
    assert client.get(f"{path}/{id_}").status == 404
    for place in ("cancel", "input_items"):
        assert client.get(f"{path}/{made[1][0]}/{place}", method="POST" if place == "cancel" else "GET").status == 200


def test_an_unknown_response(client: Client, engines: tuple[Engine, Engine]) -> None:
    for method in ("GET", "DELETE"):
        answer = client.get("/v1/responses/resp_unknown", method=method)
        assert (answer.status, answer.code) == (404, "model_not_found")
        error_of("responses", answer.json())
    assert [e.work for e in engines] == [[], []]


def test_a_stored_response_whose_replica_is_gone(start: Start, engine: Engine) -> None:
    gateway = start(Gateway(policy({"small": pool(engine)})))
    client = gateway.client()
    id_ = client.post(*ask("responses")).json()["id"]
    engine.shut()
    answer = client.get(f"/v1/responses/{id_}")
    assert (answer.status, answer.code) == (502, "upstream_unreachable")


# ---- decisions ----


def test_a_decision_without_its_request(client: Client, engines: tuple[Engine, Engine], gateway: Gateway) -> None:
    sessions = gateway.metric("switchyard_sessions")
    path, body = ask("chat", model="auto", tools=[{"type": "function", "function": {"name": str(n)}} for n in range(3)])
    found = client.post("/v1/decision", body, [("x-session-id", "never-seen")]).json()
    assert (found["pool"], found["kind"]) == ("org/big", "rule")
    assert "many tools" in found["reasons"][0]
    assert found["signals"]["tools"] == 3
    assert found["rules"][0]["matches"] is True
    assert found["session"]["source"] == "x-session-id"
    assert client.post(path, body).pool == "org/big", "and so it is"
    assert gateway.metric("switchyard_sessions") <= sessions + 1
    assert engines[0].work == []


def test_a_decision_for_another_endpoint(client: Client) -> None:
    for kind in PATHS:
        path, body = ask(kind, model="claude-x")
        found = client.post(f"/v1/decision?endpoint={path}", body).json()
        assert found["pool"] in {"small", "org/big"}
        assert found["route"] == "auto"
    answer = client.post("/v1/decision?endpoint=/nowhere", ask("chat")[1])
    assert (answer.status, answer.code) == (400, "invalid_request")


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"{", 400), (b"", 400), (b"[]", 400), (b'{"model":"nobody"}', 404), (b'{"model":1}', 400), (b"\xff", 400)],
)
def test_a_decision_about_nonsense(client: Client, body: bytes, status: int) -> None:
    answer = client.post("/v1/decision", body)
    assert answer.status == status
    error_of("chat", answer.json())


def test_records(client: Client, gateway: Gateway) -> None:
    """Newest first; what happened, in what time, and no words of anybody."""
    client.post(*ask("messages", "my secret diary", "auto"), [("x-session-id", "r-1")])
    client.post(*ask("chat", "my secret diary", "auto", stream=True), [("user-agent", "aider/1")])
    newest, before = gateway.decisions()[:2]
    assert (newest["path"], before["path"]) == (PATHS["chat"], PATHS["messages"])
    assert (newest["stream"], before["stream"]) == (True, False)
    assert before["session_source"] == "x-session-id"
    assert (newest["status"], newest["outcome"], newest["route"], newest["model"]) == (200, "ok", "auto", "auto")
    assert newest["decision"]["reasons"]
    for name in ("decide", "queue", "first_byte", "first_token", "total"):
        assert newest["ms"][name] is not None, name
    assert newest["ms"]["total"] >= newest["ms"]["first_token"] >= newest["ms"]["first_byte"] > 0
    assert newest["bytes"]["answer"] > 100
    assert "diary" not in str(gateway.decisions())


@pytest.mark.parametrize(("limit", "expected"), [("1", 1), ("0", 0), ("-5", 0), ("100000", None)])
def test_so_many_records(client: Client, limit: str, expected: int | None) -> None:
    client.post(*ask("chat"))
    found = client.get(f"/admin/decisions?limit={limit}").json()
    assert len(found) == expected if expected is not None else len(found) <= 1000


def test_records_are_bounded(client: Client) -> None:
    kept = client.open()
    for _ in range(1050):
        kept.ask("/v1/chat/completions", b"{")
        kept.answer()
    assert len(client.get("/admin/decisions?limit=100000").json()) == 1000


def test_a_limit_that_is_no_number(client: Client) -> None:
    """In our shape like all errors."""
    answer = client.get("/admin/decisions?limit=x")
    assert answer.status in {400, 422}
    error_of("chat", answer.json())


def test_pages_of_a_browser_get_nothing_from_admin(client: Client) -> None:
    assert client.get("/admin/decisions", [("origin", "http://evil.example")]).status == 403
    assert client.get("/admin/decisions", [("host", "evil.example:4000")]).status == 403
    assert client.get("/admin/decisions", [("host", "127.0.0.1:4000")]).status == 200


def test_the_hashes_of_the_policy_in_force(client: Client, gateway: Gateway) -> None:
    """Those that `evaluated` in a policy has; of routes only, an alias is none."""
    served = gateway.inner.policy
    expected = fingerprint(served, served.routes["auto"], digest_weights).model_dump()
    assert client.get("/admin/policy").json() == {"routes": {"auto": expected}}
    assert client.get("/admin/policy", [("origin", "http://evil.example")]).status == 403


def test_the_reference_pages(client: Client) -> None:
    for path in ("/docs", "/openapi.json"):
        assert client.get(path).status == 200


# ---- another policy ----


def test_another_policy_while_a_stream_runs(start: Start, engine: Engine) -> None:
    """The stream goes on as it began, the next request goes by the new one, a bad one changes nothing."""
    import json

    from .engine import Gate, sse, stream

    other = start(Engine("acme/other"))
    old = policy({"small": pool(engine)})
    new = policy({"other": pool(other)})
    gateway = start(Gateway(old))
    client = gateway.client()
    gate = Gate()
    engine.play(stream(sse({"n": 1}), gate, sse({"n": 2}, done=True)))
    running = client.start(*ask("chat", stream=True))
    begun = running.head()
    answer = client.post("/admin/policy", b"version: 1\npools: {}\n")
    assert answer.status == 400
    assert "pools" in str(answer.json()["problems"])
    assert client.get("/v1/models/small").status == 200
    assert client.post("/admin/policy", json.dumps(new).encode()).status == 200
    assert client.post(*ask("chat", model="other")).status == 200
    assert client.post(*ask("chat", model="small")).status == 404
    gate.open()
    assert running.rest(begun).body == sse({"n": 1}) + sse({"n": 2}, done=True)
