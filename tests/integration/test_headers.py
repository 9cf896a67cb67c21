"""Headers: end to end they pass, hop by hop they are made anew, and every id and trace context means what it says."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from .client import PATHS, Client, ask, request_bytes
from .engine import Engine, chunk, head, reply
from .gateway import Gateway, policy, pool

KINDS = pytest.mark.parametrize("kind", sorted(PATHS))
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine() as engine:
        yield engine


@pytest.fixture(scope="module")
def gateway(engine: Engine) -> Iterator[Gateway]:
    with Gateway(policy({"small": pool(engine)})) as gateway:
        yield gateway


# ---- to the engine ----


@KINDS
def test_hop_by_hop_headers_end_at_the_gateway(client: Client, engine: Engine, kind: str) -> None:
    given = [
        ("host", "gw.local"), ("connection", "keep-alive, X-Drop"), ("x-drop", "1"), ("keep-alive", "timeout=5"),
        ("te", "trailers"), ("upgrade", "h2c"), ("proxy-authorization", "Basic eA=="), ("proxy-connection", "keep-alive"),
        ("expect", "100-continue"), ("trailer", "x"), ("cookie", "a=b"), ("accept-encoding", "gzip"),
    ]  # fmt: skip
    assert client.post(*ask(kind), given).status == 200
    seen = engine.last
    for name, _ in given[1:]:
        assert seen.all(name) == [], name
    assert seen.all("host") == [engine.url.removeprefix("http://")]
    assert seen.all("content-length") == [str(len(seen.body))]
    assert seen.all("transfer-encoding") == []


@KINDS
def test_other_headers_pass(client: Client, engine: Engine, kind: str) -> None:
    given = [
        ("user-agent", "claude-cli/2.1.197"), ("anthropic-beta", "a"), ("anthropic-beta", "b"),
        ("anthropic-version", "2023-06-01"), ("x-claude-code-session-id", "s-1"), ("accept", "*/*"), ("x-empty", ""),
        ("x-odd", "caf\xe9; q=\"\t\""), ("x-stainless-os", "Linux"),
    ]  # fmt: skip
    assert client.post(*ask(kind), given).status == 200
    seen = [(n, v) for n, v in engine.last.headers if n in {name for name, _ in given}]
    assert seen == given


UPGRADE = [("connection", "Upgrade, HTTP2-Settings"), ("upgrade", "h2c"), ("http2-settings", "AAMAAABk")]


@KINDS
@pytest.mark.parametrize("size", [10, 300_000])
def test_an_upgrade_is_not_taken_up(client: Client, engine: Engine, kind: str, size: int) -> None:
    """curl --http2 and Java's client offer one with every request; it may be ignored."""
    path, body = ask(kind, "x" * size)
    answer = client.post(path, body, UPGRADE)
    assert answer.status == 200
    assert engine.last.json() == body | {"model": "acme/small"}
    assert engine.last.all("http2-settings") == []


def test_an_upgrade_with_a_body_in_chunks(client: Client, engine: Engine) -> None:
    path, body = ask("chat")
    pieces = chunk(json.dumps(body).encode()) + b"0\r\n\r\n"
    answer = client.post(path, pieces, [*UPGRADE, ("transfer-encoding", "chunked")])
    assert answer.status in {200, 400}, answer
    if answer.status == 200:
        assert engine.last.json() == body | {"model": "acme/small"}


@pytest.mark.parametrize("path", ["/healthz", "/v1/models"])
def test_an_upgrade_of_the_control_plane(client: Client, path: str) -> None:
    assert client.get(path, UPGRADE).status == 200


def test_an_upgrade_that_comes_piece_by_piece(client: Client, engine: Engine) -> None:
    raw = request_bytes(*ask("chat"), UPGRADE)
    connection = client.open()
    for at in range(0, len(raw), 40):
        connection.send(raw[at : at + 40])
        time.sleep(0.002)
    assert connection.answer().status == 200


def test_a_websocket_is_refused(client: Client) -> None:
    """No path of the gateway is one."""
    given = [("connection", "Upgrade"), ("upgrade", "websocket"), ("sec-websocket-key", "x"), ("sec-websocket-version", "13")]
    assert client.get("/v1/chat/completions", given).status == 405
    assert client.get("/v1/realtime", given).status == 404


# ---- to the client ----


@KINDS
def test_the_engines_framing_ends_at_the_gateway(client: Client, engine: Engine, kind: str) -> None:
    given = [
        ("content-type", "application/json"), ("connection", "close, X-Hop"), ("x-hop", "1"), ("keep-alive", "timeout=1"),
        ("server", "uvicorn"), ("date", "Thu, 01 Jan 1970 00:00:00 GMT"), ("set-cookie", "a=1"), ("set-cookie", "b=2"),
        ("x-request-id", "of-the-engine"), ("openai-processing-ms", "7"),
    ]  # fmt: skip
    engine.play([head(200, given, chunked=True) + chunk(b'{"x":') + chunk(b"1}") + b"0\r\n\r\n"])
    connection = client.start(*ask(kind))
    answer = connection.answer()
    assert answer.json() == {"x": 1}
    assert answer.all("set-cookie") == ["a=1", "b=2"]
    assert answer.all("openai-processing-ms") == ["7"]
    for name in ("connection", "x-hop", "keep-alive", "server"):
        assert answer.all(name) == [], name
    assert len(answer.all("date")) == 1
    assert "1970" not in answer.all("date")[0]
    assert answer.all("x-request-id") != ["of-the-engine"]
    connection.ask(*ask(kind))  # the client's connection outlives the engine's
    assert connection.answer().status == 200


@KINDS
def test_every_answer_says_what_happened(client: Client, engine: Engine, kind: str) -> None:
    answer = client.post(*ask(kind))
    assert answer.pool == "small"
    assert answer.replica == engine.url.removeprefix("http://")
    assert answer.reason
    assert answer.header("x-request-id")
    assert answer.code is None


# ---- request ids ----


@KINDS
def test_an_id_of_its_own_for_each_request(client: Client, engine: Engine, gateway: Gateway, kind: str) -> None:
    ids = [client.post(*ask(kind)).header("x-request-id") for _ in range(3)]
    assert len(set(ids)) == 3
    assert gateway.record()["id"] == ids[-1]
    assert [r.header("x-request-id") for r in engine.work] == [f"{i}-1" for i in ids]


@pytest.mark.parametrize("id_", ["abc-1", "A.b:c/d+e=f@g_h", "x" * 128])
def test_a_clients_id_is_echoed(client: Client, engine: Engine, gateway: Gateway, id_: str) -> None:
    """To the client and into the record; the engine gets one that nobody else has."""
    for _ in range(2):
        assert client.post(*ask("chat"), [("x-request-id", id_)]).header("x-request-id") == id_
    assert gateway.record()["client_request_id"] == id_
    seen = [r.all("x-request-id") for r in engine.work]
    assert seen[0] != seen[1]
    assert [id_] not in seen


@pytest.mark.parametrize("ids", [["x" * 129], ["a b"], ["a\tb"], ["caf\xe9"], [""], ["a", "b"], ["a", "a"], ["<script>"]])
def test_an_odd_id_is_replaced(client: Client, engine: Engine, ids: list[str]) -> None:
    answer = client.post(*ask("chat"), [("x-request-id", i) for i in ids])
    assert answer.status == 200
    (given,) = answer.all("x-request-id")
    assert given.startswith("req-")
    assert engine.last.all("x-request-id") == [f"{given}-1"]


def test_errors_have_an_id_too(client: Client) -> None:
    assert client.post(*ask("chat", model="nobody"), [("x-request-id", "abc-1")]).header("x-request-id") == "abc-1"


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/nobody", "/nowhere"])
def test_the_control_plane_has_ids_too(client: Client, path: str) -> None:
    """Every response says so."""
    assert (client.get(path).header("x-request-id") or "").startswith("req-")
    assert client.get(path, [("x-request-id", "abc-1")]).header("x-request-id") == "abc-1"


# ---- trace context ----


@KINDS
def test_a_trace_goes_on(client: Client, engine: Engine, kind: str) -> None:
    client.post(*ask(kind), [("traceparent", PARENT), ("tracestate", "a=1,b=2")])
    assert engine.last.all("traceparent") == [PARENT]
    assert engine.last.all("tracestate") == ["a=1,b=2"]


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "x",
        PARENT.upper(),
        PARENT + "-x",
        "00-" + "0" * 32 + "-b7ad6b7169203331-01",
        PARENT[:40],
        "ff" + PARENT[2:],
        "x" * 5000,
    ],
)
def test_a_malformed_trace_ends(client: Client, engine: Engine, parent: str) -> None:
    assert client.post(*ask("chat"), [("traceparent", parent), ("tracestate", "a=1")]).status == 200
    assert engine.last.all("traceparent") == []
    assert engine.last.all("tracestate") == []


def test_the_case_of_an_eval_is_recorded(client: Client, engine: Engine, gateway: Gateway) -> None:
    client.post(*ask("chat"), [("x-switchyard-case", "suite-1/case-7")])
    assert gateway.record()["case"] == "suite-1/case-7"
    assert engine.last.all("x-switchyard-case") == []


def test_targets_come_from_the_policy_alone(client: Client, engine: Engine) -> None:
    """Nothing in a request names an address that the gateway would go to."""
    with Engine() as elsewhere:
        path, body = ask("chat", api_base=elsewhere.url, base_url=elsewhere.url, api_key="k")
        assert client.post(path, body, [("host", elsewhere.url[7:]), ("x-forwarded-host", elsewhere.url[7:])]).status == 200
        assert engine.last.json()["api_base"] == elsewhere.url
        for target in (
            f"{elsewhere.url}{path}",
            f"/{elsewhere.url[7:]}{path}",
            "/v1/../metrics",
            "/v1/chat/completions/../../admin",
        ):
            answer = client.post(target, ask("chat")[1])
            assert answer.status in {200, 400, 404, 405}, target
        assert elsewhere.requests == []


def test_an_engine_that_forgets_a_header_is_no_problem(client: Client, engine: Engine) -> None:
    engine.play(reply(b"{}", headers=[]))
    answer = client.post(*ask("chat"))
    assert (answer.status, answer.body) == (200, b"{}")
    assert answer.all("content-type") == []
