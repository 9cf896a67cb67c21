"""The view of a request: items, parts and tools are read as far as they can be; odd shapes are left out, never an error."""

import contextlib
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.config.vocabulary import PROTOCOLS, SIGNALS
from switchyard.errors import InvalidRequest
from switchyard.routing.request import content_parts
from switchyard.routing.session import identify

from ..build import signals_of, view_of
from ..json_text import VALUES

ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
ROLES = st.sampled_from(["user", "assistant", "tool", "system", "developer", None, 3])
TYPES = st.sampled_from(
    ["message", "text", "input_text", "tool_result", "tool_use", "image", "image_url", "input_audio", "function_call",
     "function_call_output", "reasoning", None, 1]
)  # fmt: skip
PARTS = st.fixed_dictionaries(
    {}, optional={"type": TYPES, "text": st.text(max_size=9) | ANY, "is_error": ANY, "name": ANY, "input": ANY, "content": ANY}
)
CONTENT = ANY | st.text(max_size=20) | st.lists(PARTS | ANY, max_size=3)
CALLS = st.lists(
    st.fixed_dictionaries({}, optional={"function": ANY | st.fixed_dictionaries({"name": ANY, "arguments": ANY})}) | ANY
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {},
        optional={"role": ROLES, "type": TYPES, "content": CONTENT, "tool_calls": ANY | CALLS, "name": ANY, "arguments": ANY,
                  "output": CONTENT},
    ) | ANY,
    max_size=4,
)  # fmt: skip
BODIES = st.fixed_dictionaries(
    {"model": st.just("auto")},
    optional={
        "messages": MESSAGES | ANY, "input": MESSAGES | ANY, "tools": ANY | st.lists(PARTS), "system": CONTENT, "prompt": ANY,
        "instructions": CONTENT, "stream": ANY, "max_tokens": ANY, "max_completion_tokens": ANY, "response_format": ANY,
        "text": ANY, "output_config": ANY, "thinking": ANY, "reasoning": ANY, "reasoning_effort": ANY, "modalities": ANY,
        "metadata": ANY, "prompt_cache_key": ANY, "conversation": ANY, "previous_response_id": ANY,
    },
)  # fmt: skip
KIND = {"bool": bool, "int": int, "float": float, "text": str}


@given(BODIES, st.sampled_from(PROTOCOLS))
def test_no_json_of_any_shape_makes_a_signal_or_the_session_fail(body, protocol):
    signals = signals_of(body, protocol)
    for name, spec in SIGNALS.items():
        assert type(signals.get(name)) is KIND[spec.kind], name
    assert isinstance(signals.last_human_text, str)
    assert len(identify(signals).key) == 16


@given(VALUES, st.sampled_from(["messages", "input", "tools", "system"]))
def test_items_parts_and_tools_of_any_json_text(value, field):
    view = view_of(b'{"model":"a","' + field.encode() + b'":' + value + b"}", "responses" if field == "input" else "messages")
    for item in view.items:
        content_parts(item.content)
        content_parts(item.output)
    assert view.tool_count == len(view.tool_names)


@pytest.mark.parametrize(
    ("messages", "kept"),
    [
        ([], []),
        (None, []),
        ({}, []),
        (3, []),
        ("hello", ["user"]),
        ([{"role": "user", "content": "a"}, {"role": "tool", "content": None}], ["user", "tool"]),
        ([None, 3, [], {"role": 1}, {"role": "user"}], ["user"]),
        (["a", {"role": "system"}], ["user", "system"]),
        ([{"role": "user", "name": 3, "arguments": {"a": 1}, "x_future": [1]}], ["user"]),
    ],
)
def test_items_that_cannot_be_read_are_left_out(messages, kept):
    assert [item.role for item in view_of({"messages": messages}).items] == kept


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        ("plain", ["plain"]),
        ("", [""]),
        (None, []),
        (3, []),
        ({"text": "a"}, []),
        ([], []),
        ([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}], ["a", ""]),
        (["a", None, 3, {"type": "text", "text": None}, {"type": "text", "text": "b"}], ["a", "b"]),
        ("with \ud83d half", ["with \ufffd half"]),
    ],
)
def test_parts_of_a_content(content, texts):
    (item,) = view_of({"messages": [{"role": "user", "content": content}]}).items
    assert [part.text for part in content_parts(item.content)] == texts


@pytest.mark.parametrize(
    ("tools", "names"),
    [
        (None, ()),
        ("x", ()),
        ([{"type": "function", "function": {"name": "bash", "parameters": {}}}], ("bash",)),  # chat
        ([{"type": "function", "name": "shell"}, {"type": "web_search"}], ("shell", "web_search")),  # responses
        ([{"name": "Bash", "input_schema": {}}], ("Bash",)),  # messages
        ([{"type": "function", "function": {}}, {"name": "a"}], ("function", "a")),
        ([None, {"name": 3}, {"name": "a"}], ("unreadable", "unreadable", "a")),
    ],
)
def test_tools_of_every_protocol(tools, names):
    assert view_of({"tools": tools}).tool_names == names


@pytest.mark.parametrize(
    ("value", "streams"), [("true", True), ("false", False), ("null", False), ('"true"', False), ("1", False)]
)
def test_only_true_asks_for_a_stream(value, streams):
    assert view_of(b'{"stream" : ' + value.encode() + b" }").stream is streams


BROKEN_UTF8 = [
    ("chat", b'"messages":[{"role":"user","content":"x \xff"}]'),
    ("chat", b'"messages":[{"role":"user","content":["x \xff"]}]'),
    ("chat", b'"messages":[{"role":"user","content":[{"type":"text","text":"x \xff"}]}]'),
    ("chat", b'"messages":[{"role":"\xff","content":"x"}]'),
    ("chat", b'"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"x \xff"}}]}]'),
    ("chat", b'"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f"}, "n":1e999}]}]'),
    ("messages", b'"system":"x \xff","messages":[]'),
    ("messages", b'"messages":[{"role":"assistant","content":[{"type":"tool_use","name":"f","input":{"a":"\xff"}}]}]'),
    ("messages", b'"messages":[{"role":"assistant","content":[{"type":"tool_use","name":"f","input":{"a":1e999}}]}]'),
    ("responses", b'"input":"\xff"'),
    ("responses", b'"input":[{"type":"function_call","name":"f","arguments":{"a":1e999}}]'),
    ("responses", b'"input":[{"type":"function_call_output","output":"\xff"}]'),
    ("completions", b'"prompt":"\xff"'),
    ("chat", b'"tools":[{"name":"\xff"}]'),
]


@pytest.mark.parametrize(("protocol", "fields"), BROKEN_UTF8, ids=range(len(BROKEN_UTF8)))
def test_what_msgspec_cannot_read_is_never_more_than_a_400(protocol, fields):
    signals = signals_of(b'{"model":"a",' + fields + b"}", protocol)
    _read_all(signals)


NESTED = [
    '"messages":%s',
    '"messages":[{"role":"user","content":%s}]',
    '"messages":[{"role":"user","content":[{"type":"tool_use","input":%s}]}]',
    '"messages":[{"role":"assistant","tool_calls":%s}]',
    '"tools":%s',
    '"reasoning":%s',
]


@pytest.mark.parametrize("place", NESTED)
def test_no_depth_of_nesting_is_more_than_a_400(place):
    for depth in range(700, 1000, 3):
        body = ('{"model":"a",' + place % ("[" * depth + "]" * depth) + "}").encode()
        try:
            signals = signals_of(body)
        except InvalidRequest:
            continue
        _read_all(signals)


def test_media_nested_ever_deeper():
    for depth in (*range(100, 470, 30), *range(470, 500)):
        content = '[{"content":' * depth + '[{"type":"image"}]' + "}]" * depth
        try:
            signals = signals_of(b'{"model":"a","messages":[{"role":"user","content":' + content.encode() + b"}]}")
        except InvalidRequest:
            continue
        _read_all(signals)


def _read_all(signals) -> None:
    for name in [*SIGNALS, "last_human_text", "system_text"]:
        with contextlib.suppress(InvalidRequest):
            signals.get(name)


def test_content_parts_wants_json_text():
    assert content_parts(msgspec.Raw(json.dumps([{"type": "text", "text": "a"}, "b"]).encode()))[1].text == "b"
