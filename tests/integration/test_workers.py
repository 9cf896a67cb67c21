"""`serve --workers N` as processes on one port with a real Redis: they share, add up, follow each other, and are replaced."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from redis_server import RedisServer

from .client import Client, Connection, ask, error_of, eventually
from .engine import Engine, Gate, sse, stream
from .gateway import Json, Serve, policy, pool

Start = Callable[..., Any]
BUDGET_MS = 250  # generous, since other load must not decide what these tests see
KEYS = {"KEYS": "one,two", "ADMIN": "admin"}


def shared(redis: RedisServer, *engines: Engine, **server: Any) -> Json:
    return policy({"small": pool(*engines)}, state=redis.url, state_budget_ms=BUDGET_MS, **server)


def serve(start: Start, policy_: Json, folder: Path, workers: int = 2, **environment: str) -> Serve:
    folder.mkdir(exist_ok=True)
    process = start(Serve(policy_, folder, "--workers", str(workers), environment=environment))
    wait_for_all(process, workers)
    return process


def wait_for_all(process: Serve, workers: int = 2) -> None:
    """Until each worker has said that it is ready and shares its state."""
    seen: set[str] = set()

    def all_ready() -> bool:
        answer = process.ready()
        if answer.status == 200 and answer.json()["state"] == "shared":
            seen.add(answer.json()["worker"])
        return len(seen) == workers

    eventually(all_ready, 30)


def children(process: Serve) -> list[int]:
    pid = process.process.pid
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def workers_of(process: Serve, ask_it: Callable[[Client], Any], count: int = 2) -> dict[str, Any]:
    """What each worker says, asked on connections of their own until all have been heard."""
    heard: dict[str, Any] = {}

    def ask_once() -> bool:
        client = Client(process.port)
        connection = client.open()
        connection.ask("/readyz", method="GET")
        worker = connection.answer().json()["worker"]
        heard[worker] = ask_it(client)
        client.close()
        return len(heard) == count

    eventually(ask_once, 20)
    return heard


def test_they_need_shared_state_and_say_so(start: Start, tmp_path: Path, engine: Engine) -> None:
    process = start(Serve(policy({"small": pool(engine)}), tmp_path, "--workers", "2"))
    assert process.exit_code() == 2
    assert "redis://" in process.output
    assert "--workers" in process.output


def test_a_bad_number(start: Start, tmp_path: Path, engine: Engine) -> None:
    process = start(Serve(policy({"small": pool(engine)}), tmp_path, "--workers", "0"))
    assert process.exit_code() == 2


def test_workers_that_can_t_run_end_it_with_their_exit_code(
    start: Start, tmp_path: Path, redis: RedisServer, engine: Engine
) -> None:
    process = start(Serve(shared(redis, engine, decision_log=str(tmp_path)), tmp_path, "--workers", "2"))
    assert process.exit_code() == 3
    assert "can't open the decision log" in process.output
    assert "another is started" not in process.output


def test_work_is_shared_and_metrics_add_up(start: Start, tmp_path: Path, redis: RedisServer, engine: Engine) -> None:
    log = tmp_path / "decisions.jsonl"
    process = serve(start, shared(redis, engine, decision_log=str(log)), tmp_path)
    assert f"{2} workers" in process.output
    client = process.client()
    assert [client.post(*ask("chat", str(n))).status for n in range(60)] == [200] * 60
    eventually(lambda: process.metric("switchyard_requests_total", outcome="ok") == 60)
    assert process.metric("switchyard_request_seconds_count") == 60
    assert process.metric("switchyard_request_seconds_bucket", le=r"+Inf") == 60
    assert process.metric("switchyard_replica_up") == 1, "not the sum of what two say about one replica"
    assert process.metric("switchyard_in_flight") == 0
    process.terminate()
    assert process.exit_code() == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert len({line["id"] for line in lines}) == 60, "two processes append to one file"


def test_in_flight_is_the_sum_of_all(start: Start, tmp_path: Path, redis: RedisServer, engine: Engine) -> None:
    process = serve(start, shared(redis, engine), tmp_path)
    gate = Gate()
    engine.play(stream(sse({"n": 1}), gate))
    client = process.client()
    running = [client.start(*ask("chat", stream=True)) for _ in range(6)]
    engine.wait_for(6)
    eventually(lambda: process.metric("switchyard_in_flight") == 6)
    gate.open()
    for connection in running:
        assert connection.answer().complete
    eventually(lambda: process.metric("switchyard_in_flight") == 0)


def test_a_policy_and_an_action_reach_every_worker(start: Start, tmp_path: Path, redis: RedisServer) -> None:
    engines = [start(Engine()) for _ in range(2)]
    policy_ = shared(redis, *engines)
    process = serve(start, policy_, tmp_path)
    client = process.client()
    label = engines[0].url.removeprefix("http://")
    assert client.post(f"/admin/pools/small/replicas/{label}/drain").status == 200

    def states() -> list[str]:
        return list(
            workers_of(process, lambda c: c.get("/readyz").json()["pools"]["small"]["replicas"][label]["state"]).values()
        )

    eventually(lambda: set(states()) == {"draining"}, 20)
    policy_["pools"]["other"] = policy_["pools"]["small"] | {"replicas": [engines[1].url]}
    answer = client.post("/admin/policy", json.dumps(policy_).encode())
    assert answer.json()["good"], answer.body

    def models() -> set[str]:
        return {str(sorted(m["id"] for m in found)) for found in workers_of(process, read_models).values()}

    def read_models(client: Client) -> list[Json]:
        found: list[Json] = client.get("/v1/models").json()["data"]
        return found

    eventually(lambda: models() == {"['other', 'small']"}, 20)
    os.kill(children(process)[0], signal.SIGKILL)
    eventually(lambda: len(children(process)) == 2, 10)
    wait_for_all(process)
    eventually(lambda: models() == {"['other', 'small']"}, 20)
    eventually(lambda: set(states()) == {"draining"}, 20)
    process.file.write_text(json.dumps(shared(redis, *engines)))
    eventually(lambda: models() == {"['small']"}, 20)
    process.process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    assert process.process.poll() is None


def test_whoever_is_asked_speaks_for_all(start: Start, tmp_path: Path, redis: RedisServer, engine: Engine) -> None:
    """Load and records of all workers; and who drains a replica waits for what runs on it in any of them."""
    other = start(Engine())
    policy_ = shared(redis, engine, other)
    policy_["pools"]["small"]["balance"] = "round_robin"
    process = serve(start, policy_, tmp_path)
    gate = Gate()
    for each in (engine, other):
        each.play(stream(sse({"n": 1}), gate, sse("[DONE]")))
    held: dict[str, list[Connection]] = {}

    def hold_one() -> bool:  # four in each worker, two on each replica
        connection = process.client().open()
        connection.ask("/readyz", method="GET")
        mine = held.setdefault(connection.answer().json()["worker"], [])
        if len(mine) < 4:
            connection.ask(*ask("chat", stream=True))
            assert connection.head().status == 200
            mine.append(connection)
        return sum(map(len, held.values())) == 8

    eventually(hold_one, 20)
    label = engine.url.removeprefix("http://")

    def in_flight(client: Client) -> tuple[int, Json]:
        found = client.get("/admin/pools").json()
        (pool_,) = found["pools"]
        return sum(r["in_flight"] for r in pool_["replicas"]), found["workers"]

    assert list(workers_of(process, in_flight).values()) == [(8, {"count": 2, "answered": 2})] * 2
    drain = ["pools", "drain", f"small/{label}", "--wait", "--url", f"http://127.0.0.1:{process.port}"]
    draining = subprocess.Popen([str(Path(sys.executable).with_name("switchyard")), *drain], stderr=subprocess.PIPE, text=True)
    assert draining.stderr is not None
    assert draining.stderr.readline() == f"4 requests still run on small/{label}\n"
    states = workers_of(process, lambda c: c.get("/readyz").json()["pools"]["small"]["replicas"][label]["state"])
    assert list(states.values()) == ["draining"] * 2, "in all of them, when the command is back from the gateway"
    assert draining.poll() is None
    gate.open()
    for connection in (c for mine in held.values() for c in mine):
        connection.read_until(b"[DONE]")
    with draining:
        assert draining.wait(30) == 0
    ids = workers_of(process, lambda c: sorted(r["id"] for r in c.get("/admin/decisions").json()))
    assert len({*next(iter(ids.values()))}) == 8
    assert len({str(found) for found in ids.values()}) == 1


def test_who_is_being_replaced_is_not_waited_for(start: Start, tmp_path: Path, redis: RedisServer, engine: Engine) -> None:
    process = serve(start, shared(redis, engine), tmp_path)
    os.kill(children(process)[0], signal.SIGSTOP)  # it has connections, and answers nobody
    try:

        def answered() -> bool:
            connection = process.client().open(timeout_s=5)
            connection.ask("/admin/pools", method="GET")
            try:
                return connection.answer().json()["workers"] == {"count": 2, "answered": 1}
            except TimeoutError:  # that one got this connection
                return False

        eventually(answered, 40)
    finally:
        os.kill(children(process)[0], signal.SIGCONT)


def test_a_dead_worker_is_replaced_and_said(start: Start, tmp_path: Path, redis: RedisServer, engine: Engine) -> None:
    process = serve(start, shared(redis, engine), tmp_path)
    client = process.client()
    assert [client.post(*ask("chat")).status for _ in range(20)] == [200] * 20
    eventually(lambda: process.metric("switchyard_requests_total") == 20)
    old = children(process)
    os.kill(old[0], signal.SIGKILL)
    statuses = Counter(client.post(*ask("chat")).status for _ in range(40))
    assert statuses == {200: 40}, "new connections go to those that live"
    eventually(lambda: len(children(process)) == 2 and children(process) != old, 10)
    assert re.search(rf"worker \d \(process {old[0]}\) was killed by signal 9; another is started", process.output)
    wait_for_all(process)
    eventually(lambda: process.metric("switchyard_requests_total") == 60)
    assert process.metric("switchyard_replica_up") == 1


def test_sigterm_drains_all(start: Start, tmp_path: Path, redis: RedisServer, engine: Engine) -> None:
    process = serve(start, shared(redis, engine, drain_s=20), tmp_path)
    gates = [Gate() for _ in range(4)]
    engine.play(*[stream(sse({"n": 1}), gate, sse({"n": 2})) for gate in gates])
    client = process.client()
    running = [client.start(*ask("chat", stream=True)) for _ in range(4)]
    engine.wait_for(4)
    begun = [connection.head() for connection in running]
    pids = children(process)
    process.terminate()

    def refused() -> bool:
        try:
            socket.create_connection(("127.0.0.1", process.port), 1).close()
        except ConnectionError:
            return True
        return False

    eventually(refused)
    assert process.process.poll() is None
    for gate in gates:
        gate.open()
    assert all(connection.rest(head).complete for connection, head in zip(running, begun, strict=True))
    assert process.exit_code() == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_the_workers_end_when_their_parent_is_killed(start: Start, tmp_path: Path, redis: RedisServer, engine: Engine) -> None:
    process = serve(start, shared(redis, engine), tmp_path)
    pids = children(process)
    process.process.kill()
    eventually(lambda: not any(running(pid) for pid in pids), 15)


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_two_gateways_with_two_workers_each_agree_and_keep_to_limits(
    start: Start, tmp_path: Path, redis: RedisServer, engine: Engine
) -> None:
    """All four at once: 300 requests in a minute, whoever is asked; and each conversation stays with its pool."""
    big = start(Engine("acme/big"))
    rules = [{"when": {"header.x-hard": "yes"}, "use": "big", "for": "9 turns"}]
    policy_ = policy(
        {"small": pool(engine), "big": pool(big)},
        {"auto": {"rules": rules, "choose": [{"use": "small"}]}},
        state=redis.url, state_budget_ms=BUDGET_MS, api_keys_env="KEYS", admin_key_env="ADMIN",
        limits={"keys": {"key-2": {"requests_per_minute": 300}}},
    )  # fmt: skip
    pair = [serve(start, policy_, tmp_path / name, **KEYS) for name in ("a", "b")]
    clients = [process.client("one") for process in pair]
    for talk in range(12):
        named = [("x-switchyard-session-id", f"talk-{talk}")]
        hard = [("x-hard", "yes")] if talk % 2 else []
        assert clients[talk % 2].post(*ask("chat", model="auto"), [*named, *hard]).status == 200
        pools = {client.post(*ask("chat", model="auto"), named).pool for client in clients for _ in range(4)}
        assert pools == {"big" if talk % 2 else "small"}
    statuses: Counter[int] = Counter()
    example: list[Any] = []

    def send(number: int) -> None:
        client = pair[number % 2].client("two")
        for _ in range(60):
            answer = client.post(*ask("chat"))
            statuses[answer.status] += 1
            if answer.status == 429:
                example.append(answer)

    threads = [threading.Thread(target=send, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(statuses) == {200, 429}
    assert 285 <= statuses[200] <= 315, "within 5 %"
    assert sum(statuses.values()) == 480
    assert "300 requests" in error_of("chat", example[0].json())["message"]
    served = [process.metric("switchyard_requests_total", outcome="ok") for process in pair]
    assert min(served) > 0
