"""`cluster simulate`, `emulate`, `lend` and `return` as commands: what they print, what they change, what they refuse."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from switchyard.cli.cluster.emulate import policy_text
from switchyard.cli.cluster.lend import read_moment
from switchyard.cli.main import CommandFailed, main
from switchyard.cluster.spec import parse_cluster
from switchyard.config.load import load_policy, parse_policy
from switchyard.emulate.policy import policy_for

ROOT = Path(__file__).parents[3]
CLUSTER = ROOT / "deploy" / "cluster.yaml"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The reference cluster, to be changed, with its policy where it names it."""
    (tmp_path / "policies").mkdir()
    (tmp_path / "deploy").mkdir()
    (tmp_path / "policies" / "spark-8.yaml").write_text((ROOT / "policies" / "spark-8.yaml").read_text())
    path = tmp_path / "deploy" / "cluster.yaml"
    path.write_text(CLUSTER.read_text())
    return path


def test_speeds_keep_measured_fitted_and_left_out_apart(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "speeds"]) == 0
    out = capsys.readouterr().out
    assert "8 nodes, ring                    40.11     39.99   -0.3%     -4.5%" in out
    assert "4 requests, in all               51.00     50.73   -0.5%     -0.9%" in out
    assert main(["cluster", "speeds", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [len(t["rows"]) for t in found["tables"]] == [7, 6, 3]
    assert found["tables"][0]["rows"][-1]["left_out_error"] is None
    assert found["parameters"]["decode_s"]["weights"] == pytest.approx(0.0757, rel=0.01)


# ---- simulate ----


def test_simulate_answers_what_if(capsys: pytest.CaptureFixture[str]) -> None:
    def ask(*more: str) -> Any:
        assert main(["cluster", "simulate", str(CLUSTER), "--minutes", "5", "--mix", "0.5", "--json", *more]) == 0
        return json.loads(capsys.readouterr().out)

    plain, lent, escalating = ask(), ask("--lend", "s7"), ask("--escalate", "0.2")
    assert lent["requests_s"] < 0.6 * plain["requests_s"], "the small pool is the limit here, and has lost half"
    assert escalating["escalated"] > 0
    assert plain["errors"] == {}
    assert set(plain["speeds"]) == {"qwen-1", "qwen-2", "qwen-3", "minicpm-1", "minicpm-2"}


def test_simulate_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--minutes", "10", "--mix", "policy", "--rate", "0.5", "--turns", "3", "--down", "s3@120+60"]
    assert main(["cluster", "simulate", str(CLUSTER), *arguments]) in {0, 1}
    out = capsys.readouterr().out
    assert "answers/s" in out
    assert "120.0 s: qwen-2: kill" in out
    assert "minicpm" in out


def test_simulate_plays_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    signals = {"prompt_tokens": 400, "turns": 1, "tool_loop": False, "max_output_tokens": 0, "request_class": "main"}
    signals |= {"reasoning_effort": "", "tool_errors_in_a_row": 0, "repeated_call": 0, "tools": 0, "images": False}
    line = {
        "id": "r", "time": "2026-11-30T12:00:00.000+0000", "protocol": "chat", "model": "auto", "session": "s", "stream": True,
        "session_source": "x-session-id", "signals": {**signals, "structured_output": False, "audio": False}, "pool": "minicpm",
        "decision": {"pool": "minicpm", "kind": "score", "p": 0.9, "classifier": "embedded", "reasons": ["p 0.90"]},
        "ms": {"total": 1500.0}, "tokens": {"input": 400, "output": 50},
    }  # fmt: skip
    log = tmp_path / "decisions.jsonl"
    log.write_text("nonsense\n" + "\n".join(json.dumps({**line, "id": f"r{i}", "session": f"s{i}"}) for i in range(5)) + "\n")
    assert main(["cluster", "simulate", str(CLUSTER), "--traffic", str(log), "--json"]) == 0
    found = capsys.readouterr()
    assert json.loads(found.out)["answered"] == 5
    assert f"{log}:1: left out" in found.err
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    assert main(["cluster", "simulate", str(CLUSTER), "--traffic", str(empty)]) == 3
    capsys.readouterr()
    assert main(["cluster", "simulate", str(CLUSTER), "--traffic", str(CLUSTER)]) == 3
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 12, "ten bad lines are named, then counted; then what is wrong"
    assert "more lines left out" in lines[-2]
    assert lines[-1].endswith("has no decision records")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--mix", "2"], 2, "a share from 0 to 1"), (["--mix", "x"], 2, "a share from 0 to 1"),
        (["--mix", "0.5", "--rate", "0"], 2, "--rate"), (["--mix", "0.5", "--minutes", "-1"], 2, "--minutes"),
        (["--mix", "0.5", "--turns", "0"], 2, "--turns"), (["--mix", "0.5", "--escalate", "1.5"], 2, "--escalate"),
        (["--mix", "0.5", "--lend", "s9"], 2, "known: s1"), (["--mix", "0.5", "--down", "s9@1"], 2, "known: s1"),
        (["--mix", "0.5", "--down", "s1@x"], 2, "expected REPLICA"),
        (["--mix", "0.5", "--fault", "qwen-1=x"], 2, "there is no fault"),
        (["--mix", "0.5", "--fault", "qwen-9=kill"], 2, "known: qwen-1"),
        (["--mix", "0.5", "--model", "x"], 2, "no such route"),
        (["--mix", "0.5", "--model", "big"], 2, "has no classifier"),
        (["--mix", "0.5", "--lend", "s7", "--lend", "s8"], 1, "no replica of pool minicpm"),
        (["--traffic", "/nowhere"], 3, "can't read"), (["--mix", "0.5", "--policy", "/nowhere"], 3, "can't read"),
    ],
)  # fmt: skip
def test_simulate_refuses(arguments: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "simulate", str(CLUSTER), *arguments]) == code
    assert says in capsys.readouterr().err


# ---- emulate ----


@pytest.mark.parametrize("policy", [None, ROOT / "policies" / "spark-8.yaml"], ids=["pools alone", "with a policy"])
def test_emulate_writes_a_policy_that_serves(policy: Path | None) -> None:
    from switchyard.cluster.place import lay_out

    cluster = parse_cluster(CLUSTER.read_bytes()).value
    given = load_policy(policy) if policy is not None else None
    text = policy_text(policy_for(cluster, lay_out(cluster), given, lambda r: f"http://127.0.0.1:{9000 + r.number}"))
    written = parse_policy(text.encode(), "written", {})
    assert [r.label for r in written.pools["qwen"].replicas] == ["qwen-1", "qwen-2", "qwen-3"]
    assert written.server.api_keys_env is None
    assert written.server.host == "127.0.0.1"
    assert list(written.routes) == (list(given.routes) if given is not None else [])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--speedup", "0"], "--speedup"),
        (["--fault", "x"], "is no fault"),
        (["--port", "0", "--fault", "x=kill"], "known: qwen-1"),
    ],
)
def test_emulate_refuses(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "emulate", str(CLUSTER), *arguments]) == 2
    assert says in capsys.readouterr().err


# ---- lend and return ----


class Admin:
    """What a gateway's admin API says, for one test.

    Attributes:
        asked: methods and paths, in their order.
        left: requests that still run, one number for each look.
        refuses: status and message for actions.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.left = [0]
        self.refuses: tuple[int, str] | None = None
        self.key = ""
        admin = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                admin.key = self.headers.get("authorization", "")
                left = admin.left.pop(0) if len(admin.left) > 1 else admin.left[0]
                replica = {"replica": "qwen-3", "in_flight": left}
                self.answer(200, {"pools": [{"pool": "qwen", "replicas": [replica, {"replica": "qwen-1", "in_flight": 7}]}]})

            def do_POST(self) -> None:
                admin.asked.append(self.path)
                status, message = admin.refuses or (200, "")
                self.answer(status, {"error": {"message": message}} if admin.refuses else {"state": "draining"})

            def answer(self, status: int, body: Any) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def admin() -> Iterator[Admin]:
    admin = Admin()
    thread = threading.Thread(target=admin.server.serve_forever)
    thread.start()
    yield admin
    admin.server.shutdown()
    thread.join()
    admin.server.server_close()


def lend(file: Path, *arguments: str) -> int:
    return main(["cluster", "lend", str(file), *arguments, "--owner", "anna", "--until", "2099-12-01T18:00:00+01:00"])


def test_lend_drains_notes_and_tells(
    file: Path, admin: Admin, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWITCHYARD_ADMIN_KEY", "sk-admin")
    admin.left = [2, 0]
    before = file.read_text()
    assert lend(file, "s5", "s6", "--url", admin.url) == 0
    out = capsys.readouterr()
    assert admin.asked == ["/admin/pools/qwen/replicas/qwen-3/drain"]
    assert admin.key == "Bearer sk-admin"
    assert "2 requests still run" in out.err
    assert "systemctl disable --now switchyard-qwen-3.target" in out.out
    assert "export MASTER_ADDR=192.168.100.5" in out.out
    node = parse_cluster(file.read_bytes()).value.node("s5")
    assert (node.state, node.owner, node.until) == ("lent", "anna", "2099-12-01T18:00:00+01:00")
    changed = [a for a, b in zip(file.read_text().splitlines(), before.splitlines(), strict=True) if a != b]
    assert len(changed) == 2, "nothing but the lines of the two nodes"
    assert main(["cluster", "check", str(file)]) == 0
    capsys.readouterr()

    assert main(["cluster", "return", str(file), "s5", "s6", "--url", admin.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["undrained"] == ["qwen/qwen-3"]
    assert admin.asked[-1] == "/admin/pools/qwen/replicas/qwen-3/undrain"
    assert file.read_text() == before


def test_a_dry_run_changes_nothing(file: Path, admin: Admin, capsys: pytest.CaptureFixture[str]) -> None:
    before = file.read_text()
    assert lend(file, "s5", "s6", "--url", admin.url, "--dry-run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["drained"] == ["qwen/qwen-3"]
    assert (file.read_text(), admin.asked) == (before, [])


def test_requests_that_do_not_end_keep_the_node(file: Path, admin: Admin, capsys: pytest.CaptureFixture[str]) -> None:
    admin.left, before = [3], file.read_text()
    assert lend(file, "s5", "s6", "--url", admin.url, "--wait", "0.1") == 1
    assert "3 requests still run" in capsys.readouterr().err
    assert admin.asked[-1].endswith("/undrain")
    assert file.read_text() == before


def test_the_gateway_refuses_or_is_away(file: Path, admin: Admin, capsys: pytest.CaptureFixture[str]) -> None:
    before = file.read_text()
    admin.refuses = (409, "it is the last replica")
    assert lend(file, "s5", "s6", "--url", admin.url) == 1
    admin.refuses = (401, "a key is needed")
    assert lend(file, "s5", "s6", "--url", admin.url) == 3
    assert lend(file, "s5", "s6", "--url", "http://127.0.0.1:9") == 3
    err = capsys.readouterr().err
    assert "last replica" in err
    assert "SWITCHYARD_ADMIN_KEY" in err
    assert "--no-gateway" in err
    assert file.read_text() == before


def test_without_a_gateway(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lend(file, "s7", "--no-gateway") == 0
    assert "torchrun" in capsys.readouterr().out
    assert main(["cluster", "return", str(file), "s7", "--no-gateway"]) == 0
    out = capsys.readouterr().out
    assert "docker compose up -d minicpm-1" in out
    assert "systemctl enable --now switchyard-minicpm-1.target" in out, "which is what the README enables"


def test_lend_refuses_and_says_everything(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lend(file, "s5", "s8", "s7", "--no-gateway") == 1
    err = capsys.readouterr().err
    for why in ("the gateway runs on s8", "lend s6 as well", "min_replicas is 1"):
        assert why in err
    assert main(["cluster", "return", str(file), "s1", "--no-gateway"]) == 1


def test_an_owner_that_no_file_can_hold(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = file.read_text()
    assert main(["cluster", "lend", str(file), "s7", "--owner", "a\nb", "--until", "8h", "--no-gateway"]) == 2
    assert "owner: one line of text is expected" in capsys.readouterr().err
    assert file.read_text() == before


def test_moments() -> None:
    now = datetime(2026, 12, 1, 12, tzinfo=UTC)
    assert read_moment("90m", now).astimezone(UTC).isoformat() == "2026-12-01T13:30:00+00:00"
    assert read_moment("2d", now).astimezone(UTC).day == 3
    assert read_moment("2026-12-01T18:00:00+01:00", now).hour == 18
    for wrong in ("tomorrow", "8", "2026-12-01T18:00:00", "8w"):
        with pytest.raises(CommandFailed, match="8h"):
            read_moment(wrong, now)
    with pytest.raises(CommandFailed, match="over already"):
        read_moment("2026-12-01T12:59:00+01:00", now)


def test_a_node_that_is_not_there_is_wrong_use(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lend(file, "s9", "--no-gateway") == 2
    assert main(["cluster", "return", str(file), "s9", "--no-gateway"]) == 2
    assert main(["cluster", "simulate", str(file), "--mix", "0.25", "--lend", "s9"]) == 2
    assert main(["cluster", "simulate", str(file), "--mix", "0.25", "--down", "s9@5"]) == 2
    assert capsys.readouterr().err.count("there is no node s9; known: s1, s2, s3") == 4
