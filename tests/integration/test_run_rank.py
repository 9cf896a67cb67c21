"""run_rank.py, which rendered files start beside each rank: real processes, and an engine that dies in several ways."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path

import pytest

SCRIPT = str(files("switchyard.cli.cluster") / "run_rank.py")
ENGINE = """
import http.server, os, pathlib, signal, sys, time

mode = pathlib.Path(sys.argv[1])
if mode.read_text() == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

class Engine(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_): pass

    def answer(self, body):
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        asked = self.rfile.read(int(self.headers["content-length"]))
        with open(str(mode) + ".asked", "ab") as log:
            log.write(asked + b" " + self.headers.get("authorization", "-").encode() + b"\\n")
        if mode.read_text() == "good":
            self.answer(b"{}")
        elif mode.read_text() == "garbled":
            self.wfile.write(b"no HTTP\\r\\n")
        else:
            time.sleep(30)

    def do_GET(self):
        if mode.read_text() == "garbled":
            self.wfile.write(b"HTTP/1.0 200 OK\\r\\ncontent-length: 9\\r\\n\\r\\nhalf")
            return
        tokens = time.monotonic() if mode.read_text() == "busy" else 5
        self.answer(f"vllm:generation_tokens_total{{model=\\"m\\"}} {tokens}\\n".encode())

class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

server = Server(("127.0.0.1", int(sys.argv[2])), Engine)
pathlib.Path(str(mode) + ".up").write_text(str(os.getpid()))
server.serve_forever()
"""

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def mode(tmp_path: Path) -> Path:
    path = tmp_path / "mode"
    path.write_text("good")
    return path


@pytest.fixture
def start(mode: Path, tmp_path: Path, unused_port: int) -> Iterator[Start]:
    engine = tmp_path / "engine.py"
    engine.write_text(ENGINE)
    quick = {"RANK_PROBE_EVERY_S": "0.1", "RANK_PROBE_TIMEOUT_S": "0.4", "RANK_PROBE_FAILURES": "3", "RANK_STOP_S": "0.5"}
    started: list[subprocess.Popen[bytes]] = []

    def start_it(command: list[str] | None = None, **env: str) -> subprocess.Popen[bytes]:
        argv = command or [sys.executable, str(engine), str(mode), str(unused_port)]
        url = f"http://127.0.0.1:{unused_port}"
        process = subprocess.Popen([sys.executable, SCRIPT, url, "org/m", *argv], env={**os.environ, **quick, **env})
        started.append(process)
        return process

    yield start_it
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(10)


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def wait_until(true: Callable[[], bool], within_s: float = 20) -> None:
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def times_asked(mode: Path) -> int:
    log = Path(f"{mode}.asked")
    return len(log.read_text().splitlines()) if log.exists() else 0


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_dead_replica_ends_the_rank(start: Start, mode: Path, capfd):
    rank = start()
    wait_until(lambda: times_asked(mode) >= 2)
    engine = int(Path(f"{mode}.up").read_text())
    mode.write_text("hangs")
    assert rank.wait(20) == 1
    assert not is_running(engine)
    assert "gave no token 3 times: this rank ends, to start with the others" in capfd.readouterr().out


def test_answers_that_are_no_http_are_failures_like_others(start: Start, mode: Path, capfd):
    rank = start()
    wait_until(lambda: times_asked(mode) >= 2)
    mode.write_text("garbled")  # as an engine does that dies while it answers
    assert rank.wait(20) == 1
    assert "gave no token 3 times" in capfd.readouterr().out


def test_a_busy_engine_is_not_dead(start: Start, mode: Path):
    rank = start()
    wait_until(lambda: times_asked(mode) >= 2)
    mode.write_text("busy")
    asked = times_asked(mode)
    wait_until(lambda: times_asked(mode) >= asked + 6)  # twice as many failures as a dead one has
    assert rank.poll() is None


def test_a_start_takes_as_long_as_it_takes(start: Start, mode: Path):
    mode.write_text("hangs")
    rank = start()
    wait_until(lambda: times_asked(mode) >= 6)
    assert rank.poll() is None
    mode.write_text("good")
    asked = times_asked(mode)
    wait_until(lambda: times_asked(mode) >= asked + 2)


def test_but_not_for_ever(start: Start, mode: Path):
    mode.write_text("hangs")
    assert start(RANK_START_S="0").wait(20) == 1


def test_an_engine_that_does_not_go_is_killed(start: Start, mode: Path):
    mode.write_text("stubborn")
    rank = start(RANK_START_S="0")
    assert rank.wait(20) == 1
    assert not is_running(int(Path(f"{mode}.up").read_text()))


def test_the_engine_s_end_is_the_rank_s(start: Start):
    assert start([sys.executable, "-c", "import sys; sys.exit(7)"]).wait(20) == 7


def test_being_stopped_stops_the_engine(start: Start, mode: Path):
    rank = start()
    wait_until(lambda: times_asked(mode) >= 1)
    engine = int(Path(f"{mode}.up").read_text())
    rank.send_signal(signal.SIGTERM)
    assert rank.wait(20) == 0
    assert not is_running(engine)


def test_the_engine_s_key_is_shown_and_the_model_is_named(start: Start, mode: Path):
    start(VLLM_API_KEY="sk-1")
    wait_until(lambda: times_asked(mode) >= 1)
    (asked, *_) = Path(f"{mode}.asked").read_text().splitlines()
    assert asked.endswith("Bearer sk-1")
    assert '"model": "org/m"' in asked
