"""Two streams as one message: what a strict client reads from both together."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switchyard.check.continuation import Continuation

from .readers import events_of, read, read_chat
from .streams import GOOD_CALLS, SAID, STYLES, Piece, Stream, Style, make, mutated, second_style
from .test_gate import BAD, CUTS, END, GOOD, SAYS, call, chunk, cut, events_from, gate_for, run

PROTOCOLS = st.sampled_from(["chat", "messages", "responses"])
PIECES = st.lists(st.one_of(SAID, GOOD_CALLS), max_size=3)
BAD_CALLS = mutated().map(lambda c: Piece("call", c[1], c[0])).filter(lambda p: not p.good)


def both(protocol: str, first: Stream, second: Stream, cuts: list[int] = ()) -> tuple[bytes, bytes]:
    """What the client gets of the first stream, and of the second."""
    gate = gate_for(protocol)
    begin = b"".join(run(gate, cut(first.raw, cuts)))
    assert gate.problem is not None
    rest = Continuation(protocol, gate.carried)
    return begin, b"".join([*(rest.feed(piece) for piece in cut(second.raw, cuts)), rest.end()])


@settings(max_examples=300)
@given(PROTOCOLS, PIECES, BAD_CALLS, PIECES, PIECES, STYLES, STYLES, CUTS)
def test_both_streams_are_one_message(protocol, before, bad, after, answer, style, other, cuts):
    other = second_style(replace(other, last_line=True, named=False))
    first, second = make(protocol, [*before, bad, *after], style), make(protocol, answer, other)
    begin, rest = both(protocol, first, second, cuts)
    alone, message = read(protocol, second.raw), read(protocol, begin + rest)
    assert message.over
    assert message.called == [(p.name, p.text) for p in [*before, *answer] if p.kind == "call"]
    for kind, said in (("text", message.text), ("reasoning", message.reasoning)):
        told = "".join(p.text for p in before if p.kind == kind)
        ours, theirs = said[: len(said) - len(getattr(alone, kind))], getattr(alone, kind)
        assert said.endswith(theirs)
        assert ours.startswith(told)
    assert [c[0] for c in message.calls if "b" in c[0].split("-") + c[0].split("_")] == [c[0] for c in alone.calls]
    assert message.head[0] == read_head(protocol, first.raw)
    assert ("", "[DONE]") not in events_of(begin)
    check_finish(protocol, message.finish, [*before, *answer])
    check_usage(protocol, message.usage, style, other)


def read_head(protocol: str, raw: bytes) -> str:
    first = json.loads(events_of(raw)[0][1])
    return {"chat": first, **first}.get("id") or first.get("message", first.get("response"))["id"]


def check_finish(protocol: str, finish: str | None, told: list[Piece]) -> None:
    called = any(p.kind == "call" for p in told)
    words = {"chat": ("tool_calls", "stop"), "messages": ("tool_use", "end_turn"), "responses": ("completed", "completed")}
    assert finish == words[protocol][not called]


def check_usage(protocol: str, usage: dict | None, style: Style, other: Style) -> None:
    if protocol == "chat":
        assert (usage is not None) == other.usage
        if usage is not None:
            add = style.usage
            assert usage["prompt_tokens"] == 1000 + 100 * add
            assert usage["total_tokens"] == 1300 + 120 * add
            assert usage["prompt_tokens_details"] == {"cached_tokens": 3 + 3 * add}
        return
    assert usage["input_tokens"] == 1100
    assert usage["output_tokens"] == 320
    if protocol == "responses":
        assert usage["total_tokens"] == 1420
        assert usage["output_tokens_details"] == {"reasoning_tokens": 2, "per_turn": []}


@given(PROTOCOLS, PIECES, PIECES, st.integers(0, 1 << 30))
def test_a_second_stream_that_fails_tells_so_itself(protocol, before, answer, seed):
    first, second = make(protocol, [*before, BAD], Style(seed)), make(protocol, answer, second_style(Style(seed)))
    error = {"error": {"message": "gone"}} | ({} if protocol == "chat" else {"type": "error"})
    failure = (b"" if protocol == "chat" else b"event: error\n") + b"data: " + json.dumps(error).encode() + b"\n\n"
    second.events[len(second.events) // 2 :] = [failure]
    begin, rest = both(protocol, first, second)
    assert (begin + rest).endswith(failure)


def test_a_text_that_was_open_is_closed_before_the_second_stream():
    first = make("messages", [SAYS, BAD], Style(llama=True))
    begin, rest = both("messages", first, make("messages", [GOOD], second_style(Style())))
    assert b"content_block_stop" not in begin
    told = [json.loads(data) for _, data in events_of(rest)]
    assert told[0] == {"type": "content_block_stop", "index": 0}
    assert told[1] == {
        "type": "content_block_start",
        "index": 1,
        "content_block": {"type": "tool_use", "id": "toolu-b-0", "name": "get_weather", "input": {}},
    }
    assert read("messages", begin + rest).finish == "tool_use"


@pytest.mark.parametrize("llama", [False, True])
def test_open_items_of_a_response_are_closed_and_stand_in_its_output(llama):
    first = make("responses", [Piece("reasoning", "Hm."), SAYS, GOOD, BAD], Style(llama=llama))
    begin, rest = both("responses", first, make("responses", [SAYS], second_style(Style())))
    message = read("responses", begin + rest)
    assert message.text == SAYS.text * 2
    assert message.called == [(GOOD.name, GOOD.text)]
    over = json.loads(events_of(rest)[-1][1])["response"]
    assert [item["type"] for item in over["output"]] == ["reasoning", "message", "function_call", "message"]
    assert over["id"] == "resp_a"
    assert over["model"] == ("model-b" if llama else "model-a")  # llama.cpp tells it at the end only


def test_a_response_numbers_go_on_also_where_the_second_engine_gives_none():
    first = make("responses", [SAYS, BAD], Style())
    begin, rest = both("responses", first, make("responses", [SAYS, GOOD], second_style(Style(llama=True))))
    numbers = [json.loads(data)["sequence_number"] for _, data in events_of(begin + rest)]
    assert numbers == list(range(len(numbers)))
    places = [e["output_index"] for _, data in events_of(rest) if "output_index" in (e := json.loads(data))]
    assert set(places) == {1, 2}


@pytest.mark.parametrize("protocol", ["chat", "messages", "responses"])
def test_engines_that_count_their_ids_give_no_id_twice(protocol):
    first = make(protocol, [GOOD, BAD], Style())
    second = make(protocol, [GOOD, SAYS], Style(name="a"))
    begin, rest = both(protocol, first, second)
    message = read(protocol, begin + rest)
    assert message.called == [(GOOD.name, GOOD.text)] * 2


def test_a_length_limit_of_the_second_answer_stays_the_reason():
    first = make("chat", [GOOD, BAD], Style())
    begin, rest = both("chat", first, make("chat", [SAYS], second_style(Style(finish="length"))))
    assert read("chat", begin + rest).finish == "length"


def test_a_choice_that_was_finished_is_not_opened_again():
    gate = gate_for("chat")
    opened = [
        chunk(role="assistant", content=""),
        chunk(role="assistant", content="one", choice=1),
        chunk(finish="stop", choice=1),
    ]
    begin = b"".join(run(gate, [*opened, chunk(call(0, "[]", "list_files")), END]))
    rest = Continuation("chat", gate.carried)
    second = [
        chunk(role="assistant", content=""), chunk(role="assistant", content="", choice=1), chunk(content="zero"),
        chunk(content="ONE", choice=1), chunk(finish="stop"), chunk(finish="stop", choice=1),
    ]  # fmt: skip
    out = begin + b"".join(map(rest.feed, second))
    assert (read_chat(out, 0).text, read_chat(out, 1).text) == ("zero", "one")
    assert (read_chat(out, 0).finish, read_chat(out, 1).finish) == ("stop", "stop")


def test_a_second_answer_without_indices_gets_some():
    gate = gate_for("chat")
    begin = b"".join(
        run(
            gate,
            [chunk(role="assistant", content=""), chunk(call(0, "{}", "list_files")), chunk(call(1, "[]", "anything")), END],
        )
    )
    rest = Continuation("chat", gate.carried)
    second = [chunk(call(None, "{", "anything", "x")), chunk(call(None, "}")), chunk(call(None, "{}", "anything", "y")), END]
    found = read_chat(begin + b"".join(map(rest.feed, second)))
    assert found.calls == [["id-0", "list_files", "{}"], ["x", "anything", "{}"], ["y", "anything", "{}"]]


def test_a_role_that_comes_with_content_is_left_out_and_the_content_stays():
    gate = gate_for("chat")
    run(gate, [chunk(role="assistant", content=""), chunk(call(0, "[]", "anything")), END])
    rest = Continuation("chat", gate.carried)
    out = rest.feed(b"\xef\xbb\xbf" + chunk(role="assistant", content="Hi") + b": ping\n\n")
    choice = b'{"index":0,"delta":{"content":"Hi"},"finish_reason":null}'
    assert out == b'data: {"id":"c","created":1,"model":"m","choices":[' + choice + b"]}\n\n: ping\n\n"


def test_a_first_stream_of_which_nothing_was_shown_lets_the_second_begin_itself():
    for protocol in ("chat", "messages", "responses"):
        gate = gate_for(protocol)
        bad = make(protocol, [BAD], Style())
        opening = (b'"message_start"', b'"response.created"', b'"response.in_progress"', b'"role"')
        assert b"".join(run(gate, [e for e in bad.events if not any(word in e for word in opening)])) == b""
        rest = Continuation(protocol, gate.carried)
        second = make(protocol, [SAYS, GOOD], second_style(Style()))
        message = read(protocol, rest.feed(second.raw) + rest.end())
        assert message.called == [(GOOD.name, GOOD.text)]
        assert message.head[0] == read_head(protocol, second.raw)


def test_events_without_empty_lines_between_them_are_told_apart():
    gate = gate_for("messages")
    begin = b"".join(run(gate, [make("messages", [SAYS, BAD], Style()).raw]))
    second = make("messages", [SAYS], second_style(Style())).events
    lines = b"".join(line + b"\n" for event in second for line in event.split(b"\n") if line.startswith(b"data")) + b"\n"
    rest = Continuation("messages", gate.carried).feed(lines)
    told = [json.loads(data) for _, data in events_of(begin + rest)]
    named = b"".join(events_from(*told))
    assert read("messages", named).text == SAYS.text * 2


def test_lines_beside_the_data_stay():
    gate = gate_for("chat")
    run(gate, [chunk(role="assistant", content=""), chunk(call(0, "[]", "anything")), END])
    out = Continuation("chat", gate.carried).feed(b'id: 7\r\ndata:{"id":"z","choices":[]}\r\nretry: 5\r\n\r\n')
    assert out == b'id: 7\r\ndata: {"id":"c","choices":[]}\r\nretry: 5\r\n\r\n'
