"""The policy of the gateway that an eval starts."""

from __future__ import annotations

import json
from pathlib import Path

import httpx

from switchyard.config.load import parse_policy
from switchyard.config.sources import file_path
from switchyard.evals.gateway import _why_not_ready, served

POLICY = b"""\
version: 1
server: {state: "redis://:secret@h:6379", api_keys_env: KEYS}
pools:
  small: {model: s, replicas: "file://replicas.yaml"}
  big: {model: b, replicas: "dns://engines:8000"}
"""


def test_why_a_gateway_is_not_ready_is_told_in_a_line() -> None:
    down = {"small-1": {"state": "down", "problem": "Connection refused"}, "small-2": {"state": "ready"}}
    said = {"ready": False, "reason": "no engine of any pool can be reached", "pools": {"small": {"replicas": down}}}
    assert _why_not_ready(httpx.Response(503, json=said)) == (
        "no engine of any pool can be reached; small-1: Connection refused"
    )
    for odd in (b"<html>", b"[]", b'{"reason": "x"}', b'{"reason": "x", "pools": 3}'):
        assert _why_not_ready(httpx.Response(503, content=odd)).startswith("HTTP 503: ")


def test_files_of_replicas_are_found_from_the_run_s_folder(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "eval-runs" / "x"
    text = json.dumps(served(parse_policy(POLICY), folder, home))
    made = parse_policy(text.encode())
    assert file_path(made.pools["small"].source or "", folder) == home / "replicas.yaml"
    assert made.pools["big"].source == "dns://engines:8000"
    assert "secret" not in text
