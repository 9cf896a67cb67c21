"""Bodies of half a megabyte that were made to take long: reading them costs about as much as reading any other."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from switchyard.api.envelope import engine_error_body
from switchyard.routing.request import Body, RequestView
from switchyard.routing.session import identify
from switchyard.routing.signals import Signals
from switchyard.upstream.sse import AnswerReader

from .body import SIGNAL_NAMES

SIZE = 1 << 19
MOST_CPU_S = 0.75
"""A body of this size without malice takes a thirtieth of it."""
PIECE = 16_000
PIECES = {
    "begun tags": "<system-reminder>",
    "other begun tags": "<environment_context><user_instructions><command-a>",
    "angle brackets": "<",
    "long tag names": "<command-" + "a" * 7900,
    "billing lines": "x-anthropic-billing-header:\\",
    "summaries": "summarize summary ",
    "spaces": " ",
    "code": "def f(): {\n",
    "escapes": '\ud83d\\"\u0000',
    "title": "title ",
}


def texts(piece: str) -> list[str]:
    return [(piece * (PIECE // len(piece) + 1))[:PIECE]] * (SIZE // PIECE)


def bodies(piece: str) -> dict[str, tuple[str, Any]]:
    """A text in the places where texts stand."""
    long = texts(piece)
    results = [[{"type": "tool_result", "tool_use_id": "t", "content": t}, {"type": "text", "text": t}] for t in long]
    return {
        "chat": ("chat", {"model": "m", "messages": [{"role": "user", "content": t} for t in long]}),
        "tool results": ("messages", {"model": "m", "messages": [{"role": "user", "content": r} for r in results]}),
        "system": ("messages", {"model": "m", "system": "".join(long), "messages": [{"role": "user", "content": "hi"}]}),
        "one text": ("responses", {"model": "m", "input": "".join(long)}),
        "outputs": ("responses", {"model": "m", "input": [{"type": "function_call_output", "output": t} for t in long]}),
        "name": ("chat", {"model": "m", "messages": [], "metadata": {"user_id": "".join(long)}, "".join(long): 1}),
    }


@pytest.mark.parametrize("piece", PIECES)
def test_a_request(piece: str) -> None:
    for where, (protocol, body) in bodies(PIECES[piece]).items():
        raw = json.dumps(body).encode()
        began_s = time.process_time()
        view = RequestView(protocol, Body(raw), {"user-agent": "claude-cli"})
        signals = Signals(view)
        identify(signals)
        for name in SIGNAL_NAMES:
            signals.get(name)
        took_s = time.process_time() - began_s
        assert took_s < MOST_CPU_S, f"{where}: {took_s:.2f} s"


@pytest.mark.parametrize("piece", ["<script", "<", '"usage":{', '{"detail":[', "<!--", '"id":"resp_'])
def test_an_answer(piece: str) -> None:
    raw = (piece * (SIZE // len(piece) + 1))[:SIZE].encode()
    began_s = time.process_time()
    engine_error_body("chat", 500, "text/html", raw)
    reader = AnswerReader("responses", True)
    for at in range(0, SIZE, 64):
        reader.see(raw[at : at + 64])
    reader.usage()
    reader.response_id()
    assert time.process_time() - began_s < MOST_CPU_S
