"""Streams through the gate: no bad call comes out, good ones come out unchanged and in time, the rest untouched."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switchyard.check.gate import StreamGate
from switchyard.check.tools import GivenTools

from .readers import events_of, read, read_chat
from .streams import ANY_CALLS, EMPTY, GOOD_CALLS, SAID, STYLES, Piece, Style, fields_of, make, tools_of

PROTOCOLS = st.sampled_from(["chat", "messages", "responses"])
ANY = st.lists(st.one_of(SAID, ANY_CALLS), max_size=5)
ALL_GOOD = st.lists(st.one_of(SAID, GOOD_CALLS), max_size=5)
BAD = Piece("call", '{"town":"Paris"}', "get_weather")
GOOD = Piece("call", '{"city":"Paris"}', "get_weather")
SAYS = Piece("text", "Let me look.")


def gate_for(protocol: str, **fields) -> StreamGate:
    return StreamGate(protocol, GivenTools.read(protocol, fields_of(tools=tools_of(protocol), **fields)))


def run(gate: StreamGate, pieces: list[bytes]) -> list[bytes]:
    """What comes out with each piece, and at the end."""
    return [*(gate.feed(piece) for piece in pieces), gate.end()]


def cut(raw: bytes, places: list[int]) -> list[bytes]:
    at = [0, *sorted({p % (len(raw) + 1) for p in places}), len(raw)]
    return [raw[a:b] for a, b in pairwise(at)]


CUTS = st.lists(st.integers(0, 1 << 20), max_size=12)


@given(PROTOCOLS, st.lists(SAID, max_size=5), STYLES, CUTS)
def test_a_stream_without_calls_passes_byte_for_byte(protocol, pieces, style, cuts):
    raw = make(protocol, pieces, style).raw
    gate = gate_for(protocol)
    assert b"".join(run(gate, cut(raw, cuts))) == raw
    assert gate.problem is None


@given(PROTOCOLS, st.binary(max_size=80) | st.text("data:{}[]\r\n\"' ", max_size=60).map(str.encode), CUTS)
def test_so_does_anything_that_is_no_stream(protocol, raw, cuts):
    assert b"".join(run(gate_for(protocol), cut(raw, cuts))) == raw


@given(PROTOCOLS, ALL_GOOD, STYLES, CUTS)
def test_so_does_a_stream_whose_calls_are_all_good(protocol, pieces, style, cuts):
    raw = make(protocol, pieces, style).raw
    gate = gate_for(protocol)
    assert b"".join(run(gate, cut(raw, cuts))) == raw
    assert gate.problem is None


@given(PROTOCOLS, ALL_GOOD, STYLES)
def test_good_calls_and_text_are_not_held_longer_than_the_call(protocol, pieces, style):
    end = "\n" if style.end == "\r" else style.end  # a CR alone may be half of a CRLF: it waits for the next byte
    stream = make(protocol, pieces, replace(style, end=end, last_line=True))
    gate = gate_for(protocol)
    came = out = b""
    lengths = [0]
    for event, due in zip(stream.events, stream.due, strict=True):
        came += event
        lengths.append(len(came))
        out += gate.feed(event)
        assert len(out) >= lengths[due]


@settings(max_examples=300)
@given(PROTOCOLS, ANY, STYLES, CUTS)
def test_no_bad_call_comes_out_and_the_good_ones_before_it_do(protocol, pieces, style, cuts):
    raw = make(protocol, pieces, style).raw
    gate = gate_for(protocol)
    out = b"".join(run(gate, cut(raw, cuts)))
    calls = [p for p in pieces if p.kind == "call"]
    first_bad = next((i for i, call in enumerate(calls) if not call.good), None)
    assert (gate.problem is not None) == (first_bad is not None)
    if first_bad is None and protocol == "chat" and any(not call.text for call in calls):
        assert sorted(out) == sorted(raw)  # arguments might still come: what is said next overtakes the call
        return
    if first_bad is None:
        assert out == raw
        return
    assert gate.feed(raw) == gate.end() == b""
    told = told_in(protocol, out)
    shown = [c for c in calls[:first_bad] if c.text or protocol != "chat"]  # there, a call without arguments may be unfinished
    if shown == calls[:first_bad]:
        assert told == [(c.name, c.text) for c in shown]
    else:
        assert told == [(c.name, c.text) for c in calls[: len(told)]]
    if not (style.llama and protocol == "responses"):  # there a text's end comes after the calls
        before = pieces[: pieces.index(calls[first_bad])]
        for kind, said in zip(("text", "reasoning"), said_in(protocol, out), strict=True):
            assert said.startswith("".join(p.text for p in before if p.kind == kind))


def told_in(protocol: str, raw: bytes) -> list[tuple[str, str]]:
    """Every call, or beginning of one, that stands in a piece of a stream."""
    if protocol == "chat":
        return read_chat(raw).called
    found: dict[object, list[str]] = {}
    for _, data in events_of(raw):
        event = json.loads(data)
        item = event.get("content_block") or event.get("item") or {}
        key = event.get("index", event.get("output_index", event.get("item_id", item.get("call_id"))))
        if item.get("type") in {"tool_use", "function_call"} and key not in found:
            found[key] = [item["name"], ""]
        elif key in found:
            found[key][1] += (
                event.get("delta", {}).get("partial_json", "") if protocol == "messages" else event.get("delta", "")
            )
        assert not event.get("response", {}).get("output")
    return [(name, arguments) for name, arguments in found.values()]


def said_in(protocol: str, raw: bytes) -> tuple[str, str]:
    """Text and reasoning in a piece of a stream."""
    if protocol == "chat":
        message = read_chat(raw)
        return message.text, message.reasoning
    text = reasoning = ""
    for _, data in events_of(raw):
        event = json.loads(data)
        delta = event.get("delta")
        if event["type"] == "response.output_text.delta":
            text += delta
        elif event["type"] == "response.reasoning_text.delta":
            reasoning += delta
        elif event["type"] == "content_block_delta":
            text += delta.get("text", "")
            reasoning += delta.get("thinking", "")
    return text, reasoning


@given(ALL_GOOD, STYLES, st.binary(min_size=0, max_size=0) | st.just(b"\xef\xbb\xbf"))
def test_a_mark_at_the_beginning_is_no_trouble(pieces, style, mark):
    for protocol in ("chat", "messages", "responses"):
        raw = mark + make(protocol, [*pieces, BAD], style).raw
        gate = gate_for(protocol)
        assert b"".join(run(gate, [raw])).startswith(mark)
        assert gate.problem is not None


# ---- single cases, in chat ----


def chunk(*calls: dict, finish: str | None = None, choice: int = 0, **delta) -> bytes:
    if calls:
        delta["tool_calls"] = list(calls)
    told = {"id": "c", "created": 1, "model": "m", "choices": [{"index": choice, "delta": delta, "finish_reason": finish}]}
    return b"data: " + json.dumps(told).encode() + b"\n\n"


def call(index: int | None, arguments: object = "", name: str | None = None, call_id: object = None) -> dict:
    entry = {"function": {"arguments": arguments} | ({} if name is None else {"name": name})}
    return entry | ({} if index is None else {"index": index}) | ({} if name is None else {"id": call_id or f"id-{index}"})


END = chunk(finish="tool_calls")
USAGE = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":7}}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    "events",
    [
        [
            chunk(call(0, "", "list_files")), chunk(call(1, "", "anything")), chunk(call(0, '{"depth"')),
            chunk(call(1, "{")), chunk(call(0, ":1}")), chunk(call(1, "}")), END,
        ],
        [chunk(call(0, "", "list_files"), call(1, "{}", "anything")), chunk(call(0, "{}")), END, USAGE, DONE],
        [chunk(call(0, '{"city":"Paris"}', "get_weather"), finish="stop"), DONE],
        [chunk(call(0, "", "list_files")), END],
        [chunk(call(0, "", "list_files")), chunk(call(1, "", "list_files")), DONE],
        [chunk(call(0, "{}", "list_files")), chunk(call(0, "\n ")), END],
        [chunk(call(0, "{}", "list_")), chunk(call(0, "", "files")), END],
        [chunk(call(None, "{", "anything", "x")), chunk(call(None, "}")), chunk(call(None, "{}", "list_files", "y")), END],
        [chunk(call(0, "{}", "list_files"), content="both at once"), END],
        [chunk(call(0, None, "list_files")), chunk(call(0, "{}", "list_files")), END],
        [
            chunk(call(0, "{", "list_files")), b": ping\n\n", b"data: no json\n\n", b'data: {"choices":[]}\n\n',
            chunk(content=""), chunk(call(0, "}")), END,
        ],
    ],
)  # fmt: skip
def test_odd_but_good_chat_streams_pass_whole(events):
    gate = gate_for("chat")
    assert b"".join(run(gate, events)) == b"".join(events)
    assert gate.problem is None


@pytest.mark.parametrize(
    ("events", "out"),
    [
        ([chunk(call(0, "{}{}", "list_files")), END, DONE], []),
        ([chunk(call(0, "{", "list_files")), DONE], []),
        ([chunk(call(0, "{", "list_files"))], []),
        ([chunk(call(0, {"depth": 1}, "list_files")), END], []),
        ([chunk(call(0, "{}", "list_files")), chunk(call(0, "{}", "list_files", "other")), END], []),
        ([chunk(call(0, "{}", "nobody"), finish="tool_calls")], []),
        ([chunk(call(0, "{}", "list_files"), call(1, "[]", "list_files")), END], [0]),
        ([chunk(call(0, "{}", "list_files")), chunk(call(1, "[]", "list_files")), END], [0]),
        ([chunk(call(0, "{", "list_files")), chunk(call(1, "[]", "list_files")), chunk(call(0, "}")), END], [0]),
        ([chunk(call(0, "{}", "list_files")), chunk(content="so"), chunk(call(0, "}")), END], [0]),
        ([chunk(call(0, "[]", "list_files")), chunk(call(1, "{}", "list_files")), END], []),
        ([chunk(call(0, "{}", "list_files")), chunk(content="so"), chunk(call(0, "", "anything", "other")), END], [0]),
        ([chunk(call(0, "{}", "list_files"), call(1, "[]", "list_files"), finish="tool_calls")], [0]),
    ],
)
def test_odd_and_bad_chat_streams(events, out):
    gate = gate_for("chat")
    found = read_chat(b"".join(run(gate, events)))
    assert [c[0] for c in found.calls] == [f"id-{i}" for i in out]
    assert found.called == [("list_files", "{}")] * len(out)
    assert found.finish is None
    assert gate.problem is not None


def test_two_objects_in_one_event_are_seen_by_those_who_read_by_lines():
    lines = chunk(call(0, "[]", "list_files")).strip() + b"\n" + END
    gate = gate_for("chat")
    assert run(gate, [lines]) == [b"", b""]
    assert gate.problem is not None


def test_text_overtakes_a_call_that_is_open_only_in_chat():
    gate = gate_for("chat")
    first, text, other = chunk(call(0, "{", "list_files")), chunk(content="x"), chunk(content="y", choice=1)
    rest = [chunk(call(0, "}")), END]
    assert run(gate, [first, text, other, *rest]) == [b"", text, other, b"", first + b"".join(rest), b""]


def test_a_bad_call_in_one_choice_leaves_the_other_as_far_as_it_came():
    events = [
        chunk(role="assistant", content=""), chunk(role="assistant", content="", choice=1),
        chunk(call(0, "{}", "list_files"), choice=1), chunk(call(0, "[", "list_files")), chunk(finish="tool_calls", choice=1),
        chunk(call(0, "]")), END, DONE,
    ]  # fmt: skip
    gate = gate_for("chat")
    out = b"".join(run(gate, events))
    assert read_chat(out, 1).called == [("list_files", "{}")]
    assert read_chat(out, 1).finish == "tool_calls"
    assert read_chat(out, 0).called == []
    assert read_chat(out, 0).finish is None
    assert gate.carried.choices[1].finished


def test_usage_after_a_bad_call_is_noted_though_nothing_comes_out():
    gate = gate_for("chat")
    assert run(gate, [chunk(call(0, "[]", "list_files")), END, USAGE, DONE]) == [b""] * 5
    assert gate.ending
    assert gate.carried.usage == {"prompt_tokens": 7}


# ---- the engine fails while a call is open ----

FAILURES = {
    "chat": {"error": {"message": "out of memory"}},
    "messages": {"type": "error", "error": {"type": "api_error", "message": "out of memory"}},
    "responses": {"type": "error", "message": "out of memory", "code": None, "param": None, "sequence_number": 99},
}


@pytest.mark.parametrize("protocol", FAILURES)
def test_an_engines_failure_passes_and_the_call_it_cut_off_does_not(protocol):
    stream = make(protocol, [SAYS, GOOD], Style(comments=False))
    opened = next(i for i, due in enumerate(stream.due) if due < i + 1)
    failure = b"data: " + json.dumps(FAILURES[protocol]).encode() + b"\n\n"
    gate = gate_for(protocol)
    out = b"".join(run(gate, [*stream.events[: opened + 2], failure]))
    assert out == b"".join(stream.events[:opened]) + failure
    assert gate.problem is None


def test_a_failed_response_with_half_a_call_in_it_is_not_shown():
    item = {"type": "function_call", "call_id": "x", "name": "get_weather", "arguments": '{"ci'}
    failed = {"type": "response.failed", "sequence_number": 5, "response": {"id": "r", "status": "failed", "output": [item]}}
    gate = gate_for("responses")
    assert run(gate, [b"data: " + json.dumps(failed).encode() + b"\n\n"]) == [b"", b""]
    assert gate.problem is not None


# ---- single cases, in messages and responses ----


def events_from(*told: dict) -> list[bytes]:
    return [f"event: {m['type']}\ndata: {json.dumps(m)}\n\n".encode() for m in told]


START = {
    "type": "content_block_start",
    "index": 0,
    "content_block": {"type": "tool_use", "id": "t", "name": "get_weather", "input": {}},
}
STOP = {"type": "content_block_stop", "index": 0}


def delta(text: object) -> dict:
    return {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": text}}


def started(given: object) -> dict:
    return {**START, "content_block": {**START["content_block"], "input": given}}


@pytest.mark.parametrize(
    ("told", "good"),
    [
        ([started({"city": "Paris"}), STOP], True),
        ([started({"town": "Paris"}), STOP], False),
        ([started({"town": "Paris"}), delta('{"city":"Paris"}'), STOP], True),
        ([START, delta(""), STOP], False),
        ([START, delta({"city": "Paris"}), STOP], False),
        ([START, delta('{"city":"Paris"}'), STOP, delta("}")], False),
        ([START, delta('{"city":"Paris"}'), STOP, delta(" ")], True),
        ([START, delta('{"city":"Paris"}'), {"type": "message_delta", "delta": {"stop_reason": "tool_use"}}], True),
        ([START, delta('{"city":"Par'), {"type": "message_stop"}], False),
        ([START, delta('{"city":"Par')], False),
        (
            [
                {**START, "content_block": {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}},
                delta("["),
                STOP,
            ],
            True,
        ),
        ([{k: v for k, v in one.items() if k != "index"} for one in (START, delta('{"city":"Paris"}'), STOP)], True),
    ],
)
def test_messages(told, good):
    events = events_from(*told)
    gate = gate_for("messages")
    out = run(gate, events)
    assert (gate.problem is None) == good
    if good:
        assert b"".join(out) == b"".join(events)


ITEM = {"type": "function_call", "id": "fc", "call_id": "c", "name": "get_weather", "arguments": '{"city":"Paris"}'}
ADDED = {"type": "response.output_item.added", "output_index": 0, "item": {**ITEM, "arguments": ""}}
SAID_BAD = {"type": "response.function_call_arguments.delta", "item_id": "fc", "output_index": 0, "delta": '{"town":1}'}
OVER = {"type": "response.completed", "response": {"id": "r", "output": [ITEM], "usage": None}}


def item_done(**how) -> dict:
    return {"type": "response.output_item.done", "output_index": 0, "item": {**ITEM, **how}}


@pytest.mark.parametrize(
    ("told", "good"),
    [
        ([ADDED, item_done(), OVER], True),
        ([item_done(), OVER], True),
        ([OVER], True),
        ([ADDED, OVER], True),
        ([{**OVER, "response": {"output": [{**ITEM, "name": "nobody"}]}}], False),
        ([ADDED, SAID_BAD, item_done()], False),
        ([ADDED, item_done(arguments='{"town":1}')], False),
        ([ADDED, item_done(name="nobody")], False),
        ([ADDED, item_done(), {**OVER, "response": {"output": [{**ITEM, "arguments": "{"}]}}], False),
        ([ADDED, item_done(), SAID_BAD], False),
        ([ADDED, item_done(), item_done(arguments="{}")], False),
        ([ADDED, item_done(), item_done()], True),
        ([ADDED, item_done(arguments={"city": "Paris"})], False),
        ([ADDED, {**SAID_BAD, "delta": {"city": "Paris"}}, item_done()], False),
        ([{**ADDED, "item": ITEM}, item_done(arguments=""), OVER], True),
        ([{**ADDED, "item": {**ITEM, "type": "custom_tool_call", "input": "x"}}, item_done()], False),
        ([ADDED], False),
    ],
)
def test_responses(told, good):
    events = events_from(*told)
    gate = gate_for("responses")
    out = run(gate, events)
    assert (gate.problem is None) == good
    if good:
        assert b"".join(out) == b"".join(events)
    else:
        assert b"town" not in b"".join(out)


@pytest.mark.parametrize("protocol", ["chat", "messages", "responses"])
def test_tool_choice_none(protocol):
    none = {"type": "none"} if protocol == "messages" else "none"
    gate = gate_for(protocol, tool_choice=none)
    stream = make(protocol, [SAYS, GOOD, SAYS], Style())
    out = b"".join(run(gate, [stream.raw]))
    assert gate.problem == "get_weather is called, though tool_choice is none"
    assert told_in(protocol, out) == []


@pytest.mark.parametrize("protocol", ["chat", "messages", "responses"])
def test_no_arguments_at_all(protocol):
    stream = make(protocol, [SAYS, Piece("call", EMPTY[1], EMPTY[0])], Style())
    gate = gate_for(protocol)
    assert b"".join(run(gate, [stream.raw])) == stream.raw
    assert read(protocol, stream.raw).called == [EMPTY]


def test_a_call_without_end_is_not_held_for_ever(monkeypatch):
    monkeypatch.setattr("switchyard.check.gate.MAX_HELD_BYTES", 10_000)
    gate = gate_for("chat")
    events = [chunk(call(0, '{"x":"', "anything")), *[chunk(call(0, "y" * 10))] * 200]
    assert set(run(gate, events)) == {b""}
    assert gate.problem == "a tool call takes more than 10000 bytes of the stream"


def test_a_call_whose_arguments_are_too_long(monkeypatch):
    monkeypatch.setattr("switchyard.check.calls.MAX_ARGUMENT_CHARACTERS", 1000)
    gate = gate_for("messages")
    assert set(run(gate, events_from(START, *[delta("x" * 100)] * 20))) == {b""}
    assert gate.problem == "the arguments of a call are longer than 1000 characters"
