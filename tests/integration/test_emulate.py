"""Emulated engines over real sockets, alone and behind the gateway: protocols, times, metrics, faults."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from switchyard.config.load import load_policy
from switchyard.pools.load import read_load

from .client import Client, ask, eventually
from .emulated import Emulated, small_cluster
from .gateway import Gateway

Start = Callable[..., Any]
To = Callable[[int], Client]
PROTOCOLS = ("chat", "completions", "responses", "messages")
MODEL = "acme/model"


@pytest.fixture
def emulated(start: Start) -> Emulated:
    """Two big replicas and a small one, fifty times as fast as time."""
    return start(Emulated(speedup=50))


@pytest.fixture
def to() -> Iterator[To]:
    """Makes clients of a port; they are closed when the test ends."""
    made: list[Client] = []

    def make(port: int) -> Client:
        made.append(Client(port))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_protocol_through_the_gateway(emulated: Emulated, start: Start, protocol: str, stream: bool) -> None:
    gateway = start(Gateway(emulated.policy()))
    limit = "max_output_tokens" if protocol == "responses" else "max_tokens"
    answer = gateway.client().post(*ask(protocol, "how far " * 100, "small", stream=stream, **{limit: 9}))
    assert answer.status == 200
    assert answer.replica == "small-1"
    assert "the fox ran and saw how far one can " in (_text(protocol, answer.events()) if stream else json.dumps(answer.json()))
    gateway.wait_idle()
    record = gateway.record()
    assert record["outcome"] == "ok"
    if not stream or protocol in {"messages", "responses"}:
        assert record["tokens"]["output"] == 9
        assert record["tokens"]["input"] >= 200


def _text(protocol: str, events: list[tuple[str, str]]) -> str:
    read = {
        "chat": lambda e: e["choices"][0]["delta"].get("content", ""),
        "completions": lambda e: e["choices"][0]["text"],
        "responses": lambda e: e.get("delta", ""),
        "messages": lambda e: e["delta"].get("text", "") if e["type"] == "content_block_delta" else "",
    }[protocol]
    return "".join(read(json.loads(data)) for _, data in events if data != "[DONE]")


def test_tokens_take_their_time(start: Start, to: To) -> None:
    emulated = start(Emulated())
    connection = to(emulated.port("small-1")).open()
    connection.ask(*ask("chat", "x" * 4000, MODEL, stream=True, max_tokens=30, ignore_eos=True))
    began_s = time.monotonic()
    connection.head()
    connection.read_until(b'"the "')
    first_s = time.monotonic() - began_s
    connection.read_until(b"[DONE]")
    whole_s = time.monotonic() - began_s
    assert first_s >= 0.09  # 1,000 tokens at 10,000 a second
    assert whole_s - first_s >= 0.28  # 29 at 100 a second
    connection.leave()


def test_metrics_are_vllms_and_the_gateway_reads_them(emulated: Emulated, to: To) -> None:
    emulated.suffer("small-1", "slow", factor=1000)
    client = to(emulated.port("small-1"))
    connections = [client.open() for _ in range(6)]
    for connection in connections:
        connection.ask(*ask("chat", "hello " * 50, MODEL, stream=True, max_tokens=500))
    metrics = to(emulated.port("small-1"))
    eventually(lambda: read_load(metrics.get("/metrics").body.decode()).waiting == 2, 20)
    load = read_load(metrics.get("/metrics").body.decode())
    assert load is not None
    assert load.running == 4  # max_num_seqs
    for connection in connections:
        connection.leave()
    eventually(lambda: read_load(metrics.get("/metrics").body.decode()).running == 0)
    assert emulated.status("small-1")["ended"]["abort"] == 6


def test_a_known_beginning_is_not_read_again(emulated: Emulated, to: To) -> None:
    client = to(emulated.port("big-1"))
    long = "a story that goes on and on " * 200
    first = client.post(*ask("chat", long, MODEL, max_tokens=2)).json()
    again = client.post(*ask("chat", long + " and on", MODEL, max_tokens=2)).json()
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 1000
    assert emulated.status("big-1")["cached_share"] > 0.4


# ---- what is wrong with a request ----


def test_refusals_are_vllms(emulated: Emulated, to: To) -> None:
    client = to(emulated.port("big-1"))
    assert client.post("/v1/chat/completions", b"{").status == 400
    assert client.post(*ask("chat", "hi", "another")).json()["error"]["message"] == "The model `another` does not exist."
    long = client.post(*ask("chat", "x" * 40_000, MODEL))
    assert long.status == 400
    assert "maximum context length is 8192 tokens" in long.json()["error"]["message"]
    assert client.get("/v1/chat/completions").status == 405
    assert client.post("/v1/nothing", {}).status == 404
    assert client.post("/v1/messages/count_tokens", {"model": MODEL, "messages": []}).json()["input_tokens"] == 1
    assert client.get("/health").status == 200
    assert client.get("/v1/models").json()["data"][0]["max_model_len"] == 8192


def test_no_http_is_answered_and_closed(emulated: Emulated) -> None:
    with socket.create_connection(("127.0.0.1", emulated.port("big-1")), timeout=5) as raw:
        raw.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert raw.recv(1000).startswith(b"HTTP/1.1 400")


def test_requests_on_one_connection_are_answered_in_turn(emulated: Emulated, to: To) -> None:
    client = to(emulated.port("big-1"))
    connection = client.open()
    for tokens in (2, 3):
        connection.ask(*ask("chat", "hi", MODEL, max_tokens=tokens))
    found = [connection.answer().json()["usage"]["completion_tokens"] for _ in range(2)]
    assert found == [2, 3]
    connection.leave()


# ---- faults ----


def test_killed_and_back(emulated: Emulated, start: Start) -> None:
    gateway = start(Gateway(emulated.policy(balance="round_robin")))
    client = gateway.client()
    emulated.suffer("big-2", "kill")
    eventually(lambda: gateway.metric("switchyard_replica_up", pool="big") == 1)
    assert {client.post(*ask("chat", "hi", "big", max_tokens=2)).replica for _ in range(6)} == {"big-1"}
    emulated.recover("big-2")
    eventually(lambda: gateway.metric("switchyard_replica_up", pool="big") == 2, 20)
    eventually(lambda: client.post(*ask("chat", "hi", "big", max_tokens=2)).replica == "big-2", 20)


@pytest.mark.parametrize("kind", ["kill", "oom"])
def test_death_in_mid_answer_breaks_the_stream(emulated: Emulated, kind: str, to: To) -> None:
    emulated.suffer("big-1", "slow", factor=20)
    connection = to(emulated.port("big-1")).open()
    connection.ask(*ask("chat", "hi", MODEL, stream=True, max_tokens=1000, ignore_eos=True))
    connection.head()
    connection.read_until(b'"the "')
    emulated.suffer("big-1", kind)
    with pytest.raises(ConnectionError):
        connection.read_until(b"[DONE]")
    assert emulated.status("big-1")["alive"] is False


def test_a_dead_rank_hides_behind_a_healthy_head(emulated: Emulated, to: To) -> None:
    emulated.suffer("big-1", "rank")
    client = to(emulated.port("big-1"))
    assert client.get("/health").status == 200
    answer = client.post(*ask("chat", "hi", MODEL))
    assert answer.status == 500
    assert "EngineCore" in answer.json()["error"]["message"]
    eventually(lambda: refuses(emulated.port("big-1")))


def refuses(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def test_hanging_and_loading(emulated: Emulated, to: To) -> None:
    emulated.suffer("big-1", "hang")
    connection = to(emulated.port("big-1")).open()
    connection.ask(*ask("chat", "hi", MODEL, max_tokens=3))
    assert connection.silent(0.3)
    assert to(emulated.port("big-1")).get("/health").status == 200
    emulated.recover("big-1")
    assert connection.answer().status == 200
    emulated.suffer("big-1", "loading", for_s=5)  # emulated seconds
    client = to(emulated.port("big-1"))
    eventually(lambda: client.get("/health").status == 503)
    assert client.post(*ask("chat", "hi", MODEL)).status == 503
    eventually(lambda: client.get("/health").status == 200)
    connection.leave()


def test_faults_by_the_control_port(emulated: Emulated, to: To) -> None:
    client = to(emulated.inner.port)
    assert [e["replica"] for e in client.get("/").json()["engines"]] == ["big-1", "big-2", "small-1"]
    made = client.post("/faults", {"replica": "big-2", "kind": "hang"})
    assert [e["fault"] for e in made.json()["engines"]] == [None, "hang", None]
    assert client.post("/faults", {"replica": "big-2", "kind": "none"}).json()["engines"][1]["fault"] is None
    for wrong in (
        {"replica": "x", "kind": "hang"},
        {"replica": "big-1", "kind": "x"},
        {"kind": "hang"},
        {"replica": "big-1"},
        [],
    ):
        answer = client.post("/faults", wrong)
        assert answer.status == 400
        assert answer.json()["error"]
    assert client.get("/nothing").status == 404


def test_saturated_it_makes_what_its_speed_says(start: Start, to: To) -> None:
    """Four places of one engine, always taken: the rate of the formula that plans use."""
    from switchyard.cluster.pool_speed import pool_speed
    from switchyard.cluster.spec import parse_cluster

    document = small_cluster(big=1)
    speed = pool_speed(parse_cluster(json.dumps(document).encode()).value, "big")
    speedup = 20.0
    emulated = start(Emulated(document, speedup))
    client = to(emulated.port("big-1"))
    connections = [client.open() for _ in range(4)]
    text = [f"{i:04d}" * 500 for i in range(40)]
    for i, connection in enumerate(connections):
        connection.ask(*ask("chat", text[i], MODEL, max_tokens=60, ignore_eos=True))
    began_s = time.monotonic()
    for i in range(4, 28):
        connection = connections[i % 4]
        connection.answer()
        connection.ask(*ask("chat", text[i], MODEL, max_tokens=60, ignore_eos=True))
    took_s = (time.monotonic() - began_s) * speedup
    for connection in connections:
        connection.answer()
        connection.leave()
    assert 24 / took_s <= 1.1 * speed.requests_s(4, 502, 60)
    busy = emulated.status("big-1")
    assert busy["busy_s"] == pytest.approx(28 / speed.requests_s(4, 502, 60), rel=0.2)


# ---- the command ----


def test_the_command_runs_until_a_signal(tmp_path: Path, to: To) -> None:
    cluster, policy = tmp_path / "cluster.json", tmp_path / "emulated.yaml"
    cluster.write_text(json.dumps(small_cluster()))
    command = [str(Path(sys.executable).with_name("switchyard")), "cluster", "emulate", str(cluster), "--port", "0", "--json"]
    command += ["--write", str(policy), "--speedup", "50", "--fault", "big-2=kill@1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            told = json.loads(process.stdout.readline())
            assert load_policy(policy).pools.keys() == {"big", "small"}
            control = to(int(told["control"].rpartition(":")[2]))
            eventually(lambda: [e["alive"] for e in control.get("/").json()["engines"]] == [True, False, True])
            taken = subprocess.run([*command, "--port", told["control"].rpartition(":")[2]], capture_output=True, timeout=20)
            assert taken.returncode == 3
            assert b"can't listen" in taken.stderr
        finally:
            process.terminate()
        assert process.wait(10) == 0
