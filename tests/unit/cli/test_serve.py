"""`switchyard serve`, as far as it goes before it serves: who may be let in, and where it can listen."""

import socket

import pytest

from switchyard.cli.main import CommandFailed, main
from switchyard.cli.serve import check_exposure, is_loopback, listen

from ..build import MINIMAL, policy_of


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.nip.io", False),
    ],
)
def test_only_loopback_may_be_open(host, loopback):
    assert is_loopback(host) is loopback
    policy = policy_of(MINIMAL + f"server: {{host: '{host}'}}\n")
    if loopback:
        check_exposure(policy)
    else:
        with pytest.raises(CommandFailed, match=r"server\.api_keys_env") as caught:
            check_exposure(policy)
        assert caught.value.code == 1
    check_exposure(policy_of(MINIMAL + f"server: {{host: '{host}', api_keys_env: KEYS}}\n"))


@pytest.mark.parametrize("command", ["serve", "demo", "cluster emulate"])
@pytest.mark.parametrize("port", ["99999", "65536", "-1", "abc"])
def test_a_port_that_is_none_is_refused_and_not_wrapped(command, port, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), *(["x.yaml"] if command != "demo" else []), f"--port={port}"])
    assert ended.value.code == 2
    assert f"{port} is no port: 0 to 65535" in capsys.readouterr().err


def test_a_port_that_is_taken_is_said(tmp_path, capsys):
    (tmp_path / "p.yaml").write_text(MINIMAL)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", str(tmp_path / "p.yaml"), "--port", str(port)]) == 3
    assert f"can't listen on 127.0.0.1:{port}: Address already in use (another process listens there" in capsys.readouterr().err


def test_an_address_of_another_machine_is_said():
    with pytest.raises(CommandFailed, match=r"can't listen on 192\.0\.2\.1:0"):
        listen("192.0.2.1", 0)


@pytest.mark.parametrize(
    ("text", "flags", "code", "words"),
    [
        ("", ["--host", "0.0.0.0"], 1, "can be reached from other machines"),
        ("server: {api_keys_env: SWITCHYARD_TEST_UNSET}\n", [], 1, "names keys that are not there"),
        ("sever: 1\n", [], 1, "has 1 problem"),
        ("server: {port: 0, decision_log: /proc/nowhere/x.jsonl}\n", [], 3, "can't open the decision log"),
    ],
)
def test_what_keeps_it_from_serving(tmp_path, capsys, monkeypatch, text, flags, code, words):
    monkeypatch.setattr("switchyard.telemetry.logs.set_up_logging", lambda *a, **k: None)
    (tmp_path / "p.yaml").write_text(MINIMAL + text)
    assert main(["serve", str(tmp_path / "p.yaml"), *flags]) == code
    assert words in capsys.readouterr().err
