"""Running llama-benchy, where it is installed, offline: with a tokenizer from a directory and a text of our own."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from random import Random
from typing import Any

from switchyard.bench.figures import Figure, Row
from switchyard.bench.measure import WORDS, BenchFailed

TEXT_WORDS = 300_000


def is_installed() -> bool:
    """Whether this Python has llama-benchy."""
    return importlib.util.find_spec("llama_benchy") is not None


def run_benchy(
    url: str,
    key: str,
    model: str,
    tokenizer: str,
    prompt_tokens: int,
    answer_tokens: int,
    concurrencies: Sequence[int],
    runs: int,
) -> list[Row]:
    """Measure with llama-benchy.

    Raises:
        BenchFailed: it failed; the message has its last lines.
    """
    with tempfile.TemporaryDirectory() as folder, _Text() as text:
        result = Path(folder, "result.json")
        command = [
            sys.executable, "-m", "llama_benchy", "--base-url", f"{url}/v1", "--model", model, "--tokenizer", tokenizer,
            "--pp", str(prompt_tokens), "--tg", str(answer_tokens), "--exact-tg", "--runs", str(runs), "--no-cache",
            "--skip-coherence", "--concurrency", *map(str, concurrencies), "--book-url", text.url,
            "--format", "json", "--save-result", str(result), *(["--api-key", key] if key else []),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not result.exists():
            last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-5:])
            raise BenchFailed(f"llama-benchy ended with {done.returncode}:\n{last}")
        return read_result(json.loads(result.read_text()))


def read_result(result: dict[str, Any]) -> list[Row]:
    """Its figures as ours."""
    rows = []
    for run in result.get("benchmarks", []):
        if not run.get("is_context_prefill_phase"):
            rows.append(Row(
                run["concurrency"], _figure(run.get("pp_throughput")), _figure(run.get("pp_req_throughput")),
                _figure(run.get("tg_throughput")), _figure(run.get("tg_req_throughput")), _figure(run.get("e2e_ttft")),
                0, float(run["prompt_size"]), float(run["response_size"]),
            ))  # fmt: skip
    return rows


def _figure(metric: dict[str, Any] | None) -> Figure | None:
    return Figure(float(metric["mean"]), float(metric["std"])) if metric else None


class _Text:
    """A text over HTTP on loopback: llama-benchy fetches a book from the internet unless it is told another address."""

    def __enter__(self) -> _Text:
        text = " ".join(Random(1).choices(WORDS, k=TEXT_WORDS)).encode()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/words.txt"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
