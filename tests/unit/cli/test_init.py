"""`switchyard init`: what it writes is a good policy, on standard output too; nothing is overwritten unasked."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from switchyard.cli.main import main
from switchyard.config.load import parse_policy


@pytest.fixture
def engine():
    """The URL of an engine that tells what it serves."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"data": [{"id": "m-7b", "max_model_len": 4096}]}')

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_files(engine, tmp_path, capsys):
    out = tmp_path / "agents.yaml"
    assert main(["init", engine, "--out", str(out)]) == 0
    assert out.read_text().startswith("# yaml-language-server: $schema=./agents.schema.json\n")
    assert (tmp_path / "agents.schema.json").exists()
    assert main(["check", str(out)]) == 0
    assert main(["init", engine, "--out", str(out)]) == 2
    assert "--force overwrites it" in capsys.readouterr().err


def test_standard_output_is_a_policy(engine, capsys):
    assert main(["init", engine, "--out", "-"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# yaml-language-server: $schema=./policy.schema.json\n"), "as it is called where it is saved"
    assert parse_policy(text.encode(), "policy.yaml").pools["main"].model == "m-7b"


def test_no_engine(capsys):
    assert main(["init", "http://127.0.0.1:1"]) == 3
    assert "start them first" in capsys.readouterr().err
    assert main(["init", "127.0.0.1:8001"]) == 2
    assert "http://HOST:PORT" in capsys.readouterr().err
