"""What an answer says, in one piece or streamed, and whether two say the same."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.check.answers import LONGEST_TEXT, Answer, compare, normal, read_answer, same_value
from switchyard.check.tools import read_arguments

from .streams import ANY_CALLS, SAID, STYLES, Piece, Style, make

SAYS = Answer("Let me look.", (("weather", {"city": "Paris"}),))
PROTOCOLS = ["chat", "messages", "responses"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=8,
)


def whole(protocol: str, text: str, arguments: str | None) -> bytes:
    call = {"name": "weather", "arguments": arguments}
    used = {"type": "tool_use", "name": "weather", "input": json.loads(arguments or "{}")}
    calls = [{"type": "function", "function": call}]
    bodies = {
        "chat": {"choices": [{"message": {"content": text, "reasoning": "hm", "tool_calls": calls if arguments else None}}]},
        "messages": {"content": [{"type": "text", "text": text}, *([used] if arguments else [])]},
        "responses": {
            "output": [
                {"type": "message", "content": [{"type": "output_text", "text": text}]},
                *([{"type": "function_call", **call}] if arguments else []),
            ]
        },
    }
    return json.dumps(bodies[protocol]).encode()


@pytest.mark.parametrize("arguments", ['{"city": "Paris"}', None])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_answer_in_one_piece(protocol, arguments):
    expected = Answer("Let me look.", SAYS.calls if arguments else ())
    assert read_answer(protocol, whole(protocol, "Let me look.", arguments), False) == expected
    assert read_answer(protocol, whole(protocol, "x", None)[:-3], False) is None


def value_of(arguments: str):
    try:
        return read_arguments(arguments) if arguments.strip() else {}
    except ValueError:
        return arguments


def test_arguments_that_are_no_json_are_compared_as_they_are_written():
    """Python reads NaN, and finds it unlike itself."""
    answer = whole("chat", "", '{"city":NaN}')
    says = read_answer("chat", answer, False)
    assert says.calls == (("weather", '{"city":NaN}'),)
    assert compare(says, says) == ("tool_calls", True)


@given(st.sampled_from(PROTOCOLS), st.lists(st.one_of(SAID, ANY_CALLS), max_size=5), STYLES)
def test_a_stream_of_any_style_says_what_was_put_into_it(protocol, pieces, style):
    found = read_answer(protocol, make(protocol, pieces, style).raw, True)
    calls = [(p.name, value_of(p.text)) for p in pieces if p.kind == "call"]
    assert found is not None
    assert found.text == "".join(p.text for p in pieces if p.kind == "text")
    assert [name for name, _ in found.calls] == [name for name, _ in calls]
    assert all(same_value(a, b) for (_, a), (_, b) in zip(found.calls, calls, strict=True))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_is_cut_off_is_not_read(protocol):
    stream = make(protocol, [Piece("text", "Let me look."), Piece("call", '{"city":"Paris"}', "get_weather")], Style()).raw
    expected = read_answer(protocol, stream, True)
    cut = [read_answer(protocol, stream[:at], True) for at in range(len(stream))]
    assert all(found is None or found == expected for found in cut)
    assert cut[len(stream) // 2] is None


@given(st.sampled_from([*PROTOCOLS, "embeddings"]), st.binary(max_size=80), st.booleans())
def test_anything_at_all_is_read_or_not(protocol, body, stream):
    read_answer(protocol, body, stream)
    read_answer(protocol, b"data: {" + body + b"}\n\n", stream)


@given(JSON)
def test_shapes_that_nobody_expects_are_read_or_not(value):
    inner = {"message": value, "delta": value, "content": value, "type": value, "index": value}
    for protocol, key in (("chat", "choices"), ("messages", "content"), ("responses", "output")):
        for shape in ({key: value}, {key: [value]}, {key: [inner]}, {"type": "content_block_start", **inner}):
            read_answer(protocol, json.dumps(shape).encode(), False)
            read_answer(protocol, b"data: " + json.dumps(shape).encode() + b"\n\n", True)


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        (SAYS, Answer("Looking.", SAYS.calls), ("tool_calls", True)),
        (SAYS, Answer("Let me look.", ()), ("tool_calls", False)),
        (SAYS, Answer("", (("weather", {"city": "Rome"}),)), ("tool_calls", False)),
        (SAYS, Answer("", SAYS.calls * 2), ("tool_calls", False)),
        (Answer("", (("a", 1), ("b", 2))), Answer("", (("b", 2.0), ("a", 1))), ("tool_calls", True)),
        (Answer("", (("a", 1),)), Answer("", (("a", True),)), ("tool_calls", False)),
        (Answer("The answer is 42.", ()), Answer("**the answer** is: 42", ()), ("text", True)),
        (Answer("42", ()), Answer("43", ()), ("text", False)),
        (Answer("", ()), Answer("42", ()), None),
        (Answer("x" * (LONGEST_TEXT + 1), ()), Answer("x", ()), None),
    ],
)
def test_the_same(first, second, found):
    assert compare(first, second) == found
    assert compare(second, first) == found


def test_values():
    assert same_value({"a": [1, {"b": None}], "c": "x"}, {"c": "x", "a": [1.0, {"b": None}]})
    assert not same_value([1, 2], [2, 1])
    assert not same_value({"a": 1}, {"a": 1, "b": 2})
    assert not same_value(0, False)
    assert not same_value("1", 1)
    nan = float("nan")
    assert same_value({"a": nan}, {"a": nan})
    assert not same_value(nan, 1)


@given(st.text(max_size=30))
def test_the_normal_form_is_one(text):
    assert normal(normal(text)) == normal(text) or not text.isascii()
    assert normal(f"  {text}!  ") == normal(text)
