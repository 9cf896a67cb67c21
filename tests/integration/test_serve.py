"""`switchyard serve` as a process: how it starts or refuses to, what it says, how it ends, what it leaves in files."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .client import Answer, ask, error_of, eventually
from .engine import HANG, DeadPort, Engine, Gate, sse, stream
from .gateway import Serve, policy, pool

Start = Callable[..., Any]
CONTENT = [sse({"n": n}) for n in range(3)]


def refused(
    start: Start, policy_: Any, folder: Path, *options: str, environment: dict[str, str] | None = None
) -> tuple[int, str]:
    """Exit code and output of a gateway that doesn't start."""
    process = start(Serve(policy_, folder, *options, environment=environment))
    code = process.exit_code()
    assert "Traceback" not in process.output
    return code, process.output


@pytest.fixture
def good(engine: Engine) -> dict[str, Any]:
    return policy({"small": pool(engine)})


# ---- starting ----


def test_it_serves(start: Start, tmp_path: Path, good: dict[str, Any]) -> None:
    process = start(Serve(good, tmp_path))
    process.wait_ready()
    assert process.client().post(*ask("chat")).status == 200
    assert "small" in process.output


def test_a_bad_policy(start: Start, tmp_path: Path) -> None:
    text = "version: 1\npools:\n  small:\n    model: m\n    replcas: [http://127.0.0.1:1]\n    limits: {in_flight: no}\n"
    code, output = refused(start, text, tmp_path)
    assert code == 1
    assert "policy.yaml:5" in output
    assert "replicas" in output, "the nearest key is named"
    assert "policy.yaml:6" in output, "all problems are said at once"


def test_no_policy(start: Start, tmp_path: Path) -> None:
    process = Serve("", tmp_path)
    process.file.unlink()
    start(process)
    assert process.exit_code() in {1, 3}
    assert "policy.yaml" in process.output
    assert "Traceback" not in process.output


def test_a_port_in_use(start: Start, tmp_path: Path, good: dict[str, Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, output = refused(start, good, tmp_path, "--port", str(port))
    assert code == 3
    assert f"127.0.0.1:{port}" in output
    assert "another process" in output
    assert len(output.strip().splitlines()) == 1


def test_an_address_of_another_machine(start: Start, tmp_path: Path, good: dict[str, Any]) -> None:
    good["server"]["api_keys_env"] = "GATEWAY_KEYS"
    code, output = refused(start, good, tmp_path, "--host", "192.0.2.1", environment={"GATEWAY_KEYS": "k"})
    assert code == 3
    assert "192.0.2.1" in output


@pytest.mark.parametrize(
    ("where", "value"),
    [("api_keys_env", None), ("api_keys_env", ""), ("admin_key_env", None), ("admin_key_env", " "), ("pool", None)],
)
def test_a_key_that_is_not_there(start: Start, tmp_path: Path, engine: Engine, where: str, value: str | None) -> None:
    """Named but unset or empty: an open gateway, or a pool without its key, would be a surprise."""
    variable = "SWITCHYARD_TEST_KEY"
    given = {} if where == "pool" else {where: variable}
    block = pool(engine, api_key_env=variable) if where == "pool" else pool(engine)
    environment = {} if value is None else {variable: value}
    code, output = refused(start, policy({"small": block}, **given), tmp_path, environment=environment)
    assert code == 1
    assert variable in output


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_open_to_the_network_only_with_keys(start: Start, tmp_path: Path, good: dict[str, Any], host: str) -> None:
    code, output = refused(start, good, tmp_path, "--host", host)
    assert code == 1
    assert "api_keys_env" in output


def test_open_to_the_network_with_keys(start: Start, tmp_path: Path, engine: Engine) -> None:
    keyed = policy({"small": pool(engine)}, host="0.0.0.0", api_keys_env="GATEWAY_KEYS")
    process = start(Serve(keyed, tmp_path, environment={"GATEWAY_KEYS": " one , two,"}))
    process.wait_ready()
    assert process.client().post(*ask("chat")).status == 401
    for key in ("one", "two"):
        assert process.client(key).post(*ask("chat")).status == 200
    assert process.client("").post(*ask("chat")).status == 401
    assert "one" not in process.output.split("listens on")[1].split()


def test_dead_engines_don_t_stop_it(start: Start, tmp_path: Path) -> None:
    process = start(Serve(policy({"small": pool(start(DeadPort()))}), tmp_path))
    answer = eventually(lambda: (a := process.ready()).status == 503 and "starting" not in a.json()["reason"] and a)
    assert answer.json()["pools"]["small"]["healthy"] == 0
    assert answer.json()["reason"]
    assert process.client().get("/healthz").status == 200
    assert process.client().post(*ask("chat")).status == 502
    assert process.process.poll() is None


@pytest.mark.parametrize("options", [["--nonsense"], ["--port", "x"]])
def test_wrong_use(start: Start, tmp_path: Path, good: dict[str, Any], options: list[str]) -> None:
    code, output = refused(start, good, tmp_path, *options)
    assert code == 2
    assert "usage" in output


# ---- ending ----


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains(start: Start, tmp_path: Path, engine: Engine, number: signal.Signals) -> None:
    """A running stream runs on, an idle connection closes, a new one is refused; then exit code 0."""
    process = start(Serve(policy({"small": pool(engine)}, drain_s=20), tmp_path))
    process.wait_ready()
    gate = Gate()
    engine.play(stream(CONTENT[0], gate, *CONTENT[1:]))
    client = process.client()
    idle = client.start("/healthz", None)
    idle.answer()
    running = client.start(*ask("chat", stream=True))
    begun = running.head()
    process.process.send_signal(number)
    assert idle.closed(20)
    eventually(lambda: not _connects(process.port))
    assert process.process.poll() is None
    gate.open()
    answer = running.rest(begun)
    assert (answer.complete, answer.body) == (True, b"".join(CONTENT))
    assert process.exit_code() == 0
    assert "Traceback" not in process.output


def test_the_delay_before_the_listener_closes(start: Start, tmp_path: Path, engine: Engine) -> None:
    """Balancers see /readyz first, and take a moment; until then nobody is turned away by a closed port."""
    process = start(Serve(policy({"small": pool(engine)}, drain_delay_s=1.5), tmp_path))
    process.wait_ready()
    signalled = process.terminate()
    eventually(lambda: process.ready().status == 503)
    assert process.ready().json()["reason"] == "draining"
    assert process.client().get("/healthz").status == 200
    assert process.client().post(*ask("chat")).status == 200
    process.exit_code()
    assert time.monotonic() - signalled > 1.4


def test_a_request_on_an_old_connection_while_draining(start: Start, tmp_path: Path, engine: Engine) -> None:
    process = start(Serve(policy({"small": pool(engine)}, drain_delay_s=1), tmp_path))
    process.wait_ready()
    kept = process.client().start(*ask("chat"))
    assert kept.answer().status == 200
    process.terminate()
    eventually(lambda: process.ready().status == 503)
    kept.ask(*ask("chat"))
    answer = kept.answer()
    assert answer.status == 200  # the listener is still open
    assert process.exit_code() == 0


def test_the_limit_of_draining(start: Start, tmp_path: Path, engine: Engine) -> None:
    process = start(Serve(policy({"small": pool(engine)}, drain_s=1), tmp_path))
    process.wait_ready()
    engine.play(stream(CONTENT[0], HANG), [HANG])
    client = process.client()
    streaming = client.start(*ask("messages", stream=True))
    begun = streaming.head()
    waiting = client.start(*ask("chat"))
    engine.wait_for(2)
    signalled = process.terminate()
    answer = streaming.rest(begun)
    assert answer.complete
    name, data = answer.events()[-1]
    assert name == "error"
    assert error_of("messages", json.loads(data))["type"] == "overloaded_error"
    refusal = waiting.answer()
    assert (refusal.status, refusal.code) == (503, "draining")
    assert process.exit_code() == 0
    assert 0.8 < time.monotonic() - signalled < 6
    assert all(r.gone.wait(20) for r in engine.work)
    assert "Traceback" not in process.output


def test_a_second_signal_ends_it_at_once(start: Start, tmp_path: Path, engine: Engine) -> None:
    """And even then the record of what was cut off is written."""
    log = tmp_path / "decisions.jsonl"
    process = start(Serve(policy({"small": pool(engine)}, drain_s=60, decision_log=str(log)), tmp_path))
    process.wait_ready()
    engine.play(stream(CONTENT[0], HANG))
    connection = process.client().start(*ask("chat", stream=True))
    connection.read_until(CONTENT[0])
    process.terminate()
    time.sleep(0.5)
    assert process.process.poll() is None
    second = process.terminate()
    process.exit_code()
    assert time.monotonic() - second < 10
    (record,) = [json.loads(line) for line in log.read_text().splitlines()]
    assert record["outcome"] in {"broken", "client_left"}
    assert engine.last.gone.wait(20)


def test_no_engine_hears_anything_afterwards(start: Start, tmp_path: Path, engine: Engine) -> None:
    process = start(Serve(policy({"small": pool(engine)}), tmp_path))
    process.wait_ready()
    process.client().post(*ask("chat"))
    process.terminate()
    assert process.exit_code() == 0
    eventually(lambda: not engine.connections)
    assert not Path(f"/proc/{process.process.pid}").exists()


def _connects(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


# ---- the decision log ----


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_for_each_request_and_no_words(start: Start, tmp_path: Path, engine: Engine) -> None:
    log = tmp_path / "logs" / "decisions.jsonl"
    process = start(Serve(policy({"small": pool(engine)}, decision_log=str(log)), tmp_path))
    process.wait_ready()
    client = process.client()
    for kind in ("chat", "messages", "responses", "embeddings"):
        client.post(*ask(kind, "my secret diary"), [("x-request-id", f"id-{kind}"), ("authorization", "Bearer secret-key")])
    client.post(*ask("chat", "my secret diary", "nobody"))
    client.post("/v1/chat/completions", b'{"secret')
    eventually(lambda: log.exists() and len(lines(log)) == 6, 3)
    found = lines(log)
    assert [r["status"] for r in found] == [200, 200, 200, 200, 404, 400]
    assert [r.get("client_request_id") for r in found[:4]] == ["id-chat", "id-messages", "id-responses", "id-embeddings"]
    assert found[0]["decision"]["pool"] == "small"
    assert "secret" not in log.read_text()
    assert "secret" not in process.output
    assert (log.stat().st_mode & 0o077) == 0 or os.umask(os.umask(0o022)) == 0o022


def test_words_when_they_are_asked_for(start: Start, tmp_path: Path, engine: Engine) -> None:
    log = tmp_path / "decisions.jsonl"
    process = start(Serve(policy({"small": pool(engine)}, decision_log=str(log), log_prompts=True), tmp_path))
    process.wait_ready()
    process.client().post(
        "/v1/chat/completions", rb'{"model":"small","messages":[{"role":"user","content":"cut \ud83d here"}]}'
    )
    process.client().post(*ask("messages", "my diary, \u5317\u4eac\nand more"))
    eventually(lambda: len(lines(log)) == 2, 3)
    cut, diary = lines(log)
    assert cut["prompt"].startswith("cut ")
    assert diary["prompt"] == "my diary, \u5317\u4eac\nand more"


def test_nothing_is_lost_at_the_end(start: Start, tmp_path: Path, engine: Engine) -> None:
    """As many lines as answers, the last one in the very moment of the signal; a second run appends."""
    log = tmp_path / "decisions.jsonl"
    for run in (1, 2):
        process = start(Serve(policy({"small": pool(engine)}, decision_log=str(log)), tmp_path))
        process.wait_ready()
        connection = process.client().open()
        for _ in range(200):
            connection.ask(*ask("chat"))
            assert connection.answer().status == 200
        process.terminate()
        assert process.exit_code() == 0
        assert len(lines(log)) == 200 * run
    assert len({r["id"] for r in lines(log)}) == 400


def test_a_log_that_can_t_be_opened(start: Start, tmp_path: Path, engine: Engine) -> None:
    (tmp_path / "file").write_text("")
    code, output = refused(start, policy({"small": pool(engine)}, decision_log=str(tmp_path / "file" / "x.jsonl")), tmp_path)
    assert code == 3
    assert "x.jsonl" in output or "file" in output


def test_a_disk_that_is_full(start: Start, tmp_path: Path, engine: Engine) -> None:
    """Requests are served all the same, and it is said once."""
    process = start(Serve(policy({"small": pool(engine)}, decision_log="/dev/full"), tmp_path))
    process.wait_ready()
    client = process.client()
    for _ in range(3):
        assert client.post(*ask("chat")).status == 200
        time.sleep(0.6)
    assert process.output.count("/dev/full can't be written") == 1
    process.terminate()
    assert process.exit_code() == 0
    assert "Traceback" not in process.output


# ---- another policy ----


def test_the_file_is_read_again(start: Start, tmp_path: Path, engine: Engine) -> None:
    """On SIGHUP: a good file counts at once; a bad one changes nothing and is complained about."""
    process = start(Serve(policy({"small": pool(engine)}), tmp_path))
    process.wait_ready()
    client = process.client()
    process.file.write_text(json.dumps(policy({"small": pool(engine), "more": pool(engine)})))
    process.process.send_signal(signal.SIGHUP)
    eventually(lambda: client.post(*ask("chat", model="more")).status == 200)
    process.file.write_text("version: 1\npools: nonsense\n")
    process.process.send_signal(signal.SIGHUP)
    eventually(lambda: "nonsense" in process.output or "policy.yaml:2" in process.output)
    answer: Answer = client.post(*ask("chat", model="more"))
    assert answer.status == 200
    assert process.process.poll() is None
