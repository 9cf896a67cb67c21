"""`switchyard bench` measures what is there: an emulated engine, whose speed is known, a real one, and what fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from switchyard.bench.measure import BenchFailed, measure
from switchyard.cli.main import main

from .emulated import Emulated
from .engine import Engine, reply, sse, stream
from .gateway import Gateway

Start = Callable[..., Any]


def quiet(text: str) -> None:
    pass


def test_an_emulated_engine_is_as_fast_as_it_is(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    """Measured through the gateway and direct; other load can only make it slower, so one side has more room."""
    emulated = start(Emulated())
    gateway = start(Gateway(emulated.policy()))
    direct = f"http://127.0.0.1:{emulated.port('small-1')}"
    arguments = ["bench", f"http://127.0.0.1:{gateway.port}", "--model", "small", "--direct", direct, "--concurrency", "1,4"]
    assert main([*arguments, "--prompt-tokens", "2000", "--answer-tokens", "40", "--runs", "1", "--json"]) == 0
    through, straight = json.loads(capsys.readouterr().out)["measured"]
    assert (through["direct"], straight["direct"]) == (False, True)
    for measured in (through, straight):
        alone, four = measured["rows"]
        assert alone["prompt_tokens"] == pytest.approx(2000, rel=0.1)
        assert alone["answer_tokens"] == 40
        assert 0.7 * 10_000 < alone["prefill_tokens_s"]["total"]["mean"] < 1.05 * 10_000
        assert 0.7 * 100 < alone["decode_tokens_s"]["per_user"]["mean"] < 1.03 * 100
        assert four["decode_tokens_s"]["total"]["mean"] > four["decode_tokens_s"]["per_user"]["mean"]
        assert four["failed"] == 0


def test_a_table_for_people(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    emulated = start(Emulated(speedup=20))
    url = f"http://127.0.0.1:{emulated.port('small-1')}"
    assert main(["bench", url, "--concurrency", "2", "--prompt-tokens", "100", "--answer-tokens", "5", "--runs", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{url}  acme/model  ")
    assert lines[2].split() == ["at", "once", "total", "per", "user", "total", "per", "user", "ms"]
    assert lines[3].split()[0] == "2"


def test_who_lists_no_models(run: Callable[..., Any], engine: Engine) -> None:
    engine.play_at("/v1/models", reply({"data": []}))
    with pytest.raises(BenchFailed, match="--model"):
        run(measure(f"http://127.0.0.1:{engine.port}", "", None, 100, 5, [1], 1, quiet))


def test_texts_with_what_python_takes_for_an_end_of_a_line(run: Callable[..., Any], engine: Engine) -> None:
    """Engines don't escape U+2028; it ends no line of an event stream."""
    usage = {"prompt_tokens": 100, "completion_tokens": 4}
    pieces = [{"choices": [{"delta": {"content": text}}]} for text in ("a", "\u2028", "\x85b", "c")]
    events = [*pieces, {"choices": [{"delta": None}], "usage": usage}]
    body = "".join(f"data: {json.dumps(e, ensure_ascii=False)}\n\n" for e in events).encode()
    engine.play(stream(body))
    _, (row,) = run(measure(f"http://127.0.0.1:{engine.port}", "", "m", 100, 5, [1], 1, quiet))
    assert row.failed == 0
    assert row.answer_tokens == 4


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        (reply({"error": {"message": "busy"}}, 503), "status 503.*busy"),
        (stream(sse({"choices": [{"delta": {"content": "a"}}]}, done=True)), "without usage"),
        (stream(sse({"choices": []}, done=True)), "without text"),
        (stream(sse({"error": {"message": "broke"}})), "broke"),
        (stream(b"data: nonsense\n\n"), "no JSON object"),
    ],
    ids=["refused", "no usage", "no text", "error event", "no json"],
)
def test_what_is_no_answer(run: Callable[..., Any], engine: Engine, answer: Any, match: str) -> None:
    engine.play(answer)
    with pytest.raises(BenchFailed, match=match):
        run(measure(f"http://127.0.0.1:{engine.port}", "", "m", 100, 5, [1], 1, quiet))


def test_nobody_there(run: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "http://127.0.0.1:9", "--concurrency", "1"]) == 3
    assert "can't be asked" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["localhost:4000"], ["http://x", "--concurrency", "0"], ["http://x", "--concurrency", "a"], ["http://x", "--runs", "0"],
        ["http://x", "--answer-tokens", "1"], ["http://x", "--key-env", "NOT_SET_ANYWHERE"],
        ["http://x", "--tokenizer", "somewhere"],
    ],
)  # fmt: skip
def test_wrong_use(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments]) == 2
    assert capsys.readouterr().err.startswith("switchyard bench: ")
