"""A rank that ends when its replica is dead, so that all ranks start anew together.

vLLM watches the workers of its own node only: when a rank on another node dies, the head goes on saying that it is healthy
and answers nobody. So beside every rank of a replica over several nodes runs this: once the replica has answered, it is
asked for one token now and then. When that fails several times in a row, and the engine's token counters stand still
meanwhile (a full engine is slow, not dead), the rank is ended. Ranks on the other nodes see the same and end, too; what
started them (Docker, systemd) starts them again.

`switchyard cluster render` puts this file beside what it writes. It needs nothing but Python.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request

EVERY_S = float(os.environ.get("RANK_PROBE_EVERY_S", "15"))
TIMEOUT_S = float(os.environ.get("RANK_PROBE_TIMEOUT_S", "60"))
FAILURES = int(os.environ.get("RANK_PROBE_FAILURES", "3"))
START_S = float(os.environ.get("RANK_START_S", "3600"))
"""From so long after the start on, a replica that never answered counts as dead."""
STOP_S = float(os.environ.get("RANK_STOP_S", "30"))
COUNTERS = ("vllm:generation_tokens_total", "vllm:prompt_tokens_total")
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy has no place between ranks


def gives_token(url: str, model: str) -> bool:
    """Whether the replica answers with a token."""
    body = json.dumps({"model": model, "prompt": "1", "max_tokens": 1}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"content-type": "application/json"})
    key = os.environ.get("VLLM_API_KEY")
    if key:
        request.add_header("authorization", f"Bearer {key}")
    try:
        with OPENER.open(request, timeout=TIMEOUT_S) as answer:
            return bool(answer.status == 200)
    except (OSError, http.client.HTTPException):
        return False


def count_tokens(url: str) -> float | None:
    """Tokens that the engine has read and written since its start; None when it doesn't say."""
    try:
        with OPENER.open(f"{url}/metrics", timeout=TIMEOUT_S) as answer:
            lines = answer.read().decode("utf-8", "replace").splitlines()
            return sum(float(line.split()[-1]) for line in lines if line.startswith(COUNTERS))
    except (OSError, http.client.HTTPException, ValueError):
        return None


def stop(engine: subprocess.Popen[bytes]) -> None:
    """End the engine, with force when it doesn't go by itself."""
    engine.send_signal(signal.SIGTERM)
    try:
        engine.wait(STOP_S)
    except subprocess.TimeoutExpired:
        engine.kill()
        engine.wait()


def watch(engine: subprocess.Popen[bytes], url: str, model: str) -> int:
    """Until the engine ends, or the replica is dead; returns the exit code."""
    failed, answered, begun, tokens = 0, False, time.monotonic(), None
    while True:
        try:
            return engine.wait(EVERY_S)
        except subprocess.TimeoutExpired:
            alive = gives_token(url, model)
        before, tokens = tokens, count_tokens(url)
        if alive or (answered and tokens is not None and tokens != before):
            failed, answered = 0, True
        elif answered or time.monotonic() - begun > START_S:
            failed += 1
        if failed >= FAILURES:
            print(f"run_rank: {url} gave no token {failed} times: this rank ends, to start with the others", flush=True)
            return 1


def main(argv: list[str]) -> int:
    """`run_rank.py HEAD_URL MODEL COMMAND...`: run the command and watch the head; returns the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # asked to stop: the engine is stopped on the way out
    engine = subprocess.Popen(argv[3:])
    try:
        return watch(engine, argv[1], argv[2])
    finally:
        if engine.poll() is None:
            stop(engine)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
