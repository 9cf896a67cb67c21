"""Answers in one piece: all their calls are judged, and two answers' usage becomes one."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.check.gate import StreamGate
from switchyard.check.tools import GivenTools
from switchyard.check.whole import check_answer, merge_usage

from .streams import ANY_CALLS, Piece, fields_of, tools_of

PROTOCOLS = ["chat", "messages", "responses"]
CALLS = st.lists(ANY_CALLS, max_size=3)


def answer_of(protocol: str, calls: list[Piece], second: list[Piece] = ()) -> dict:
    """An answer with these calls; in chat, a second choice with some more."""
    if protocol == "chat":
        choices = []
        for of_choice in (calls, second):
            written = [{"id": "x", "type": "function", "function": {"name": c.name, "arguments": c.text}} for c in of_choice]
            choices.append({"index": len(choices), "message": {"role": "assistant", "content": None, "tool_calls": written}})
        return {"id": "a", "choices": choices, "usage": {"prompt_tokens": 1}}
    if protocol == "messages":
        blocks = [{"type": "tool_use", "id": "x", "name": c.name, "input": json.loads(c.text or "{}")} for c in calls]
        return {"id": "a", "type": "message", "content": [{"type": "text", "text": "tool_use"}, *blocks]}
    items = [{"type": "function_call", "call_id": "x", "name": c.name, "arguments": c.text} for c in calls]
    return {"id": "a", "object": "response", "output": [{"type": "message", "content": []}, *items]}


def problem_of(protocol: str, answer: object) -> str | None:
    body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    return check_answer(protocol, body, GivenTools.read(protocol, fields_of(tools=tools_of(protocol))))


@given(st.sampled_from(["chat", "responses"]), CALLS, CALLS)
def test_an_answer_is_good_when_all_its_calls_are(protocol, calls, second):
    found = problem_of(protocol, answer_of(protocol, calls, second))
    assert (found is None) == all(c.good for c in [*calls, *(second if protocol == "chat" else [])])


@given(CALLS)
def test_and_in_messages(calls):
    def readable(call: Piece) -> bool:
        try:
            json.loads(call.text or "{}", parse_constant=int)
        except ValueError:
            return False
        return True

    calls = [c for c in calls if readable(c)]
    assert (problem_of("messages", answer_of("messages", calls)) is None) == all(c.good for c in calls)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"<html>",
        b'{"choices":5,"content":null,"output":{}}',
        b'{"error":{"message":"x"}}',
        b'{"choices":[{"message":null}]}',
    ],
)
def test_what_holds_no_call_is_no_problem(protocol, body):
    assert problem_of(protocol, body) is None


@pytest.mark.parametrize(
    ("protocol", "body", "good"),
    [
        ("chat", {"choices": [{"message": {"tool_calls": [{"function": {"name": "list_files", "arguments": {}}}]}}]}, False),
        ("chat", {"choices": [{"message": {"tool_calls": [{"function": {"name": "list_files", "arguments": None}}]}}]}, True),
        ("chat", {"choices": [{"message": {"tool_calls": [{"function": None}]}}]}, False),
        ("chat", {"choices": [{"message": {"tool_calls": [{"custom": {"name": "list_files", "input": "{}"}}]}}]}, True),
        ("messages", {"content": [{"type": "tool_use", "name": "list_files"}]}, True),
        ("messages", {"content": [{"type": "tool_use", "name": "list_files", "input": "{}"}]}, False),
        ("messages", {"content": [{"type": "server_tool_use", "name": "web_search", "input": {}}]}, True),
        ("responses", {"output": [{"type": "custom_tool_call", "name": "list_files", "input": "{}"}]}, True),
        ("responses", {"output": [{"type": "custom_tool_call", "name": "nobody", "input": "{}"}]}, False),
        ("responses", {"output": [{"type": "web_search_call", "action": {}}]}, True),
    ],
)
def test_odd_calls(protocol, body, good):
    assert (problem_of(protocol, body) is None) == good


def test_other_protocols_have_no_calls():
    assert problem_of("completions", {"choices": [{"message": {"tool_calls": [{"function": {"name": "x"}}]}}]}) is None


FIRST = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15, "details": {"cached": 2, "reasoning": None}, "old": 1}


def test_usage_is_summed_and_nothing_else_changes():
    second = (
        b'{ "id":"b","usage" : {"prompt_tokens":100,"completion_tokens":50,"total_tokens":150,'
        b'"details":{"cached":null,"reasoning":7},"flag":true},\n"x":1e999, "n": 1.50}'
    )
    merged = merge_usage("chat", json.dumps({"usage": FIRST}).encode(), second)
    usage = {
        "prompt_tokens": 110,
        "completion_tokens": 55,
        "total_tokens": 165,
        "details": {"cached": 2, "reasoning": 7},
        "flag": True,
        "old": 1,
    }
    start, end = second.index(b'{"prompt'), second.index(b",\n")
    assert merged.startswith(second[:start])
    assert merged.endswith(second[end:])
    assert json.loads(merged[start : len(merged) - len(second[end:])]) == usage


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (b"{}", b'{"usage":{"prompt_tokens":1}}'),
        (b'{"usage":null}', b'{"usage":{"prompt_tokens":1}}'),
        (b"<html>", b'{"usage":{"prompt_tokens":1}}'),
        (b'{"usage":{"prompt_tokens":1}}', b'{"id":1}'),
        (b'{"usage":{"prompt_tokens":1}}', b'{"usage":null}'),
        (b'{"usage":{"prompt_tokens":1}}', b"not json"),
        (b'{"usage":{"prompt_tokens":1}}', b'{"usage":{"prompt_tokens":1},"a":1,"a":2}'),
    ],
)
def test_where_one_side_tells_nothing_the_second_answer_stays(first, second):
    assert merge_usage("responses", first, second) == second


def test_a_type_that_is_no_text_is_no_call():
    """An engine may answer anything; looking at it must not fail."""
    tools = GivenTools("responses", None, None)
    for strange in ([], {}, None, 1):
        assert check_answer("responses", json.dumps({"output": [{"type": strange, "name": "x"}]}).encode(), tools) is None
        gate = StreamGate("responses", tools)
        event = {"type": "response.completed", "item": {"type": strange}, "response": {"output": [{"type": strange}]}}
        gate.feed(b"data: " + json.dumps(event).encode() + b"\n\n")
        assert gate.problem is None
