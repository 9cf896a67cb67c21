"""A rank of a two-node replica dies, or the cable between its nodes does, beside a one-node replica of the same pool.

Real vLLM, the real gateway, the official SDK. docs/explanation/health.md says what was seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

import pytest
from integration.client import Client, Connection, ask, eventually
from integration.gateway import Json, Serve, policy

from .nodes import FABRIC
from .replica import MODEL, Replica
from .traffic import Traffic, Watch

POOL = "smollm"
STALL_S, IDLE_S, FIRST_BYTE_S = 6, 12, 15
PATIENCE_S = 30
"""For what takes seconds on a machine that does nothing else."""


@pytest.fixture
def serve(pair: Replica, single: Replica, tmp_path: Path) -> Iterator[Callable[..., Serve]]:
    """Starts `switchyard serve` with both replicas in one pool; more settings are its `health`."""
    blocks = [{"name": r.name, "url": r.url, "nodes": [rank.node.name for rank in r.ranks]} for r in (pair, single)]
    with ExitStack() as stack:

        def start(**health: float) -> Serve:
            pool = {
                "model": MODEL,
                "replicas": blocks,
                "health": {"every_s": 1, "stall_s": STALL_S, **health},
                "timeouts": {"idle_s": IDLE_S, "first_byte_s": FIRST_BYTE_S},
            }
            gateway = stack.enter_context(Serve(policy({POOL: pool}), tmp_path))
            gateway.wait_ready()
            stack.callback(lambda: without_traceback(gateway))
            return gateway

        yield start


@pytest.fixture
def gateway(serve: Callable[..., Serve]) -> Serve:
    """`switchyard serve` with both replicas."""
    return serve()


def without_traceback(gateway: Serve) -> None:
    assert "Traceback" not in gateway.output


def test_a_rank_is_killed(gateway: Serve, pair: Replica, single: Replica) -> None:
    """The gateway notices, and no client does whose answer had not begun; those that had begun end with the engine's error."""
    watch = Watch(gateway.port, POOL, pair.name)
    with Traffic(gateway.port, POOL) as traffic, streams_on(gateway, pair, 3) as begun:
        wait_for_both(gateway, pair, single)
        pair.kill(rank=1)
        killed_s = time.time()
        for stream in begun:
            assert "EngineCore" in error_in(stream)
        out_s = watch.until("ejected", PATIENCE_S)
        assert gateway.metric("switchyard_replica_up", replica=pair.name) == 0
        assert_alone(gateway, single)
        pair.restart()
        watch.until("ready", PATIENCE_S)
        assert pair.metric("vllm:generation_tokens_total") >= 1, "a token of the gateway's own comes before traffic"
        wait_for_both(gateway, pair, single)
    check(traffic, gateway, pair, killed_s, out_s, within_s=PATIENCE_S)
    for call in traffic.calls:
        assert not call.problem or 0 < call.first_s < out_s, "a stream that had begun, and nothing else"


def test_requests_meet_a_dead_rank(serve: Callable[..., Serve], pair: Replica, single: Replica) -> None:
    """Nobody knows until they come, and all that is on the replica fails at once: the other replica answers all of it.

    Twelve are on their way, so that half of them are less than the ten tries that the retry budget has at least.
    """
    gateway = serve(token_every_s=0)
    pair.kill(rank=1)
    assert pair.answers_health()
    kinds = [(kind, stream) for kind in ("chat", "messages", "responses") for stream in (False, True)]
    client = gateway.client()
    more = {"responses": {"max_output_tokens": 4}}
    started = [
        client.start(*ask(kind, f"Song {number}", POOL, stream=stream, **more.get(kind, {"max_tokens": 4})), timeout_s=60)
        for number, (kind, stream) in enumerate(2 * kinds)
    ]
    answers = [connection.answer() for connection in started]
    for (kind, stream), answer in zip(2 * kinds, answers, strict=True):
        assert (answer.status, answer.complete, answer.replica) == (200, True, single.name), (kind, stream, answer)
        errors = [e for e in (b"EngineCore", b"event: error", b'"error":{', b'"error": {') if e in answer.body]
        assert not errors, answer.body
    moved = [record for record in records(gateway) if record.get("died")]
    assert {tuple(record["attempts"]) for record in moved} == {(f"{POOL}/{pair.name}", f"{POOL}/{single.name}")}
    print(f"{len(moved)} of {len(answers)} had been on the replica that died: ", [(r["protocol"], r["stream"]) for r in moved])


def test_a_rank_is_killed_while_nobody_asks(serve: Callable[..., Serve], pair: Replica, single: Replica) -> None:
    """/health says 200 until somebody wants a token; that is the gateway, and no client ever notices."""
    gateway = serve(token_every_s=3)
    watch = Watch(gateway.port, POOL, pair.name)
    pair.kill(rank=1)
    assert pair.answers_health()
    eventually(lambda: watch.state() != "ready", PATIENCE_S)
    assert not records(gateway), "nobody has asked"
    for number in range(6):
        answer = gateway.client().post(*ask("chat", f"Song {number}", POOL, max_tokens=4))
        assert (answer.status, answer.replica) == (200, single.name)


def test_the_cable_between_the_ranks_is_cut(gateway: Serve, pair: Replica, single: Replica) -> None:
    """Nothing is dead, no connection closes, /health is good, and no token comes any more."""
    watch = Watch(gateway.port, POOL, pair.name)
    cable_end = pair.ranks[1].node
    with Traffic(gateway.port, POOL, retries=2) as traffic, streams_on(gateway, pair, 1) as begun:
        wait_for_both(gateway, pair, single)
        cable_end.ip(f"link set {FABRIC} down")
        cut_s = time.time()
        try:
            out_s = watch.until("ejected", STALL_S + PATIENCE_S)
            assert "nothing has moved" in watch.problem
            assert pair.answers_health()
            assert "upstream_timeout" in error_in(begun[0]), "the gateway's own error, by timeouts.idle_s"
            assert_alone(gateway, single)
            assert pair.answers_health()
            assert watch.state() == "ejected"
        finally:
            cable_end.ip(f"link set {FABRIC} up")
        watch.until("ready", 4 * PATIENCE_S)  # TCP waits longer and longer before it tries again
        wait_for_both(gateway, pair, single)
    check(traffic, gateway, pair, cut_s, out_s, within_s=max(IDLE_S, FIRST_BYTE_S) + PATIENCE_S)


@contextmanager
def streams_on(gateway: Serve, replica: Replica, number: int) -> Iterator[list[Connection]]:
    """That many long streams on one replica, each with its first token; those that went elsewhere are left again."""
    client = gateway.client()
    kept: list[Connection] = []
    while len(kept) < number:
        path, body = ask("chat", f"Tale {time.time()}", POOL, max_tokens=1500, ignore_eos=True, stream=True)
        connection = client.start(path, body, timeout_s=PATIENCE_S)
        if connection.head().replica == replica.name:
            connection.read_until(b'"content":"')
            kept.append(connection)
        else:
            connection.leave()
    try:
        yield kept
    finally:
        client.close()


def error_in(stream: Connection) -> str:
    """The error event at the end of a running stream."""
    stream.read_until(b'data: {"error"')
    return stream.read_until(b"\n\n").decode()


def records(gateway: Serve) -> list[Json]:
    """All decision records, newest first; asked for at leisure, since the engines need the cores."""
    time.sleep(0.2)
    found: list[Json] = Client(gateway.port).get("/admin/decisions?limit=1000").json()
    return found


def wait_for_both(gateway: Serve, pair: Replica, single: Replica) -> None:
    """Until each replica has given a few good answers from now on."""
    known = {record["id"] for record in records(gateway)}

    def enough() -> bool:
        good = [r["replica"] for r in records(gateway) if r["id"] not in known and r["outcome"] == "ok"]
        return all(good.count(replica.name) >= 2 for replica in (pair, single))

    eventually(enough, 3 * PATIENCE_S)


def assert_alone(gateway: Serve, single: Replica) -> None:
    """What begins from now on is answered by this replica."""
    now_s = time.time()

    def later() -> list[Json]:
        return [record for record in records(gateway) if began_s(record) > now_s]

    eventually(lambda: len(later()) >= 6, 3 * PATIENCE_S)
    assert {(record["replica"], record["outcome"]) for record in later()} == {(single.name, "ok")}


def began_s(record: Json) -> float:
    """When a request came, by the wall clock."""
    ended_s = datetime.fromisoformat(record["time"]).timestamp()
    return ended_s - float(record["ms"]["total"]) / 1000


def check(traffic: Traffic, gateway: Serve, pair: Replica, fault_s: float, out_s: float, within_s: float) -> None:
    """What must hold for the users of the SDK, and in the records."""
    failed = [call for call in traffic.calls if call.problem]
    assert not [call for call in failed if not call.stream], "the SDK's own retries are enough where the gateway has none"
    assert not [call for call in failed if call.began_s > out_s], "who began when the gateway knew noticed nothing"
    assert not [call for call in traffic.calls if call.ended_s - max(call.began_s, fault_s) > within_s], "nobody hangs"
    bad = [record for record in records(gateway) if record["outcome"] not in {"ok", "client_left"}]
    assert {record["replica"] for record in bad} == {pair.name}
    assert all(began_s(record) < out_s for record in bad), "it got nothing more"
    good = [call for call in traffic.calls if not call.problem]
    print(f"{len(good)} good calls, {len(failed)} failed; out after {out_s - fault_s:.1f} s; {len(bad)} bad records")
