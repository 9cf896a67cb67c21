"""Each signal, as a table over bodies of all protocols."""

import pytest

from switchyard.config.vocabulary import SIGNALS
from switchyard.routing.media import MEDIA_TOKENS
from switchyard.routing.signals import BYTES_PER_TOKEN, Signals

from ..agents import chat_call, chat_result
from ..build import chat, signals_of, view_of

PNG = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBOR"}}
KIND = {"bool": bool, "int": int, "float": float, "text": str}


def test_every_signal_of_the_vocabulary_has_its_type_and_a_docstring():
    signals = signals_of(chat(("user", "hi")))
    for name, spec in SIGNALS.items():
        assert type(signals.get(name)) is KIND[spec.kind], name
        assert name == "hour" or getattr(Signals, name).__doc__, name


def test_only_signals_that_were_asked_for_are_in_the_record():
    signals = signals_of(chat(("user", "hi")), hour=7)
    assert signals.turns == 1
    assert signals.known() == {"turns": 1, "hour": 7}


def test_a_header_is_a_signal_by_its_name():
    signals = signals_of(chat(), headers={"x-team": "red"})
    assert signals.get("header.x-team") == "red"
    assert signals.get("header.X-Team") == "red"
    assert signals.get("header.x-other") == ""


@pytest.mark.parametrize(
    ("protocol", "body", "fields"),
    [
        ("chat", {"messages": [{"role": "user", "content": "hello"}]}, ["messages"]),
        ("chat", {"messages": [], "tools": [{"name": "a" * 90}], "x_future": "y" * 900}, ["messages", "tools"]),
        ("messages", {"system": "s" * 90, "messages": []}, ["system", "messages"]),
        ("responses", {"instructions": "i" * 90, "input": "hello"}, ["instructions", "input"]),
        ("completions", {"prompt": "p" * 90}, ["prompt"]),
        ("embeddings", {"input": ["a" * 90, "b"]}, ["input"]),
        ("rerank", {"query": "q" * 40, "documents": ["d" * 90]}, ["query", "documents"]),
        ("score", {"text_1": "a" * 40, "text_2": ["d" * 90]}, ["text_1", "text_2"]),
    ],
)
def test_prompt_tokens_are_the_bytes_of_all_that_becomes_prompt(protocol, body, fields):
    signals = signals_of({"model": "auto", **body}, protocol)
    assert signals.prompt_tokens == signals.view.body.size(fields) // BYTES_PER_TOKEN


@pytest.mark.parametrize("images", [1, 3])
def test_an_image_counts_the_same_whatever_its_bytes(images):
    def tokens(size: int) -> int:
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBORw0KGgo" * size}}
        return signals_of(chat(("user", [{"type": "text", "text": "what is it?"}, *[image] * images]))).prompt_tokens

    assert tokens(200) == tokens(20_000)
    assert images * MEDIA_TOKENS <= tokens(200) < images * MEDIA_TOKENS + 200


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({}, 0),
        ({"max_tokens": 100}, 100),
        ({"max_completion_tokens": 200}, 200),
        ({"max_output_tokens": 300}, 300),
        ({"max_tokens": 100, "max_completion_tokens": 200}, 200),
        ({"max_tokens": None}, 0),
        ({"max_tokens": "100"}, 0),
        ({"max_tokens": True}, 0),
    ],
)
def test_max_output_tokens(fields, tokens):
    assert signals_of(chat(**fields)).max_output_tokens == tokens


USER, SYSTEM, CALL, RESULT = ("user", "do it"), ("system", "be good"), chat_call("ls"), chat_result("a.py b.py")
FAILED = chat_result("Error: no such file")
# messages, turns, tool_loop, calls in history, repeated_call, errors in a row
LOOPS = [
    ([], 0, False, 0, 0, 0),
    ([SYSTEM, USER], 1, False, 0, 0, 0),
    ([SYSTEM, USER, ("assistant", "done"), USER], 2, False, 0, 0, 0),
    ([USER, CALL], 1, False, 1, 1, 0),
    ([USER, CALL, RESULT], 1, True, 1, 1, 0),
    ([USER, CALL, RESULT, CALL, RESULT], 1, True, 2, 2, 0),
    ([USER, CALL, RESULT, chat_call("cat"), RESULT], 1, True, 2, 1, 0),
    ([USER, CALL, RESULT, chat_call("ls", '{"a":1}'), RESULT], 1, True, 2, 1, 0),
    ([USER, chat_call("cat"), RESULT, CALL, FAILED, CALL, FAILED], 1, True, 3, 2, 2),
    ([USER, CALL, FAILED, CALL, RESULT], 1, True, 2, 2, 0),
    ([USER, CALL, FAILED, USER], 2, False, 1, 1, 1),
    ([USER, CALL, RESULT, SYSTEM], 1, True, 1, 1, 0),  # a reminder of the harness behind the result
    ([USER, CALL, RESULT, ("assistant", "done")], 1, False, 1, 1, 0),
    (
        [USER, {"role": "assistant", "content": None, "tool_calls": [*CALL["tool_calls"], *CALL["tool_calls"]]}],
        1,
        False,
        2,
        2,
        0,
    ),
    ([USER, {"role": "assistant", "content": None, "tool_calls": None}], 1, False, 0, 0, 0),
]


@pytest.mark.parametrize(("messages", "turns", "loop", "calls", "repeated", "errors"), LOOPS, ids=range(len(LOOPS)))
def test_the_state_of_a_tool_loop(messages, turns, loop, calls, repeated, errors):
    signals = signals_of(chat(*messages))
    found = (
        signals.turns,
        signals.tool_loop,
        signals.tool_calls_in_history,
        signals.repeated_call,
        signals.tool_errors_in_a_row,
    )
    assert found == (turns, loop, calls, repeated, errors)


@pytest.mark.parametrize(
    ("result", "is_error"),
    [
        ("ok", False),
        ("", False),
        (None, False),
        ("Error: no such file", True),
        ("  error: x", True),
        ("\n\nTraceback (most recent call last):", True),
        ("[ERROR] build failed", True),
        ("Exit code 1\nmake failed", True),
        ("Exit code: 0\nall good", False),
        ("Command failed with status 2", True),
        ("no errors found", False),
        ("the word error stands later", False),
        ('{"error": "not found"}', True),
        ([{"type": "text", "text": "Error: x"}], True),
        ([{"type": "text", "text": "fine"}], False),
        ([], False),
    ],
)
def test_a_result_that_begins_like_an_error_is_one(result, is_error):
    assert signals_of(chat(USER, CALL, chat_result(result))).tool_errors_in_a_row == is_error


MEDIA = [
    ("chat", [PNG], True, False),
    ("chat", [{"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}}], False, True),
    ("chat", [{"type": "text", "text": 'write {"type": "image_url"} for me'}], False, False),
    ("chat", '[{"type": "image_url"}]', False, False),
    ("messages", [{"type": "image", "source": {"type": "base64", "data": "iVBOR"}}], True, False),
    ("messages", [{"type": "tool_result", "content": [{"type": "image", "source": {}}]}], True, False),
    ("messages", [{"type": "tool_result", "content": "image"}], False, False),
    ("responses", [{"type": "input_image", "image_url": "data:"}], True, False),
    ("responses", [PNG, {"type": "audio"}], True, True),
]


@pytest.mark.parametrize(("protocol", "content", "images", "audio"), MEDIA, ids=range(len(MEDIA)))
def test_media_anywhere_in_the_conversation(protocol, content, images, audio):
    items = [
        {"role": "user", "content": content},
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": "and now?"},
    ]
    signals = signals_of({"model": "auto", "input" if protocol == "responses" else "messages": items}, protocol)
    assert (signals.images, signals.audio) == (images, audio)


def test_audio_may_be_wanted_as_output():
    assert signals_of(chat(USER, modalities=["text", "audio"])).audio is True
    assert signals_of(chat(USER, modalities=["text"])).audio is False


def test_an_image_in_the_output_of_a_function_call():
    item = {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": "data:"}]}
    assert signals_of({"input": [item]}, "responses").images is True


@pytest.mark.parametrize(
    ("protocol", "fields", "structured"),
    [
        ("chat", {}, False),
        ("chat", {"response_format": {"type": "json_schema", "json_schema": {}}}, True),
        ("chat", {"response_format": {"type": "json_object"}}, True),
        ("chat", {"response_format": {"type": "text"}}, False),
        ("chat", {"response_format": None}, False),
        ("chat", {"structured_outputs": {"choice": ["a"]}}, True),
        ("chat", {"structured_outputs": None}, False),
        ("chat", {"guided_json": {}}, True),
        ("chat", {"guided_regex": "a+"}, True),
        ("chat", {"grammar": "root ::= x"}, True),
        ("responses", {"text": {"format": {"type": "json_schema", "schema": {}}}}, True),
        ("responses", {"text": {"format": {"type": "text"}}}, False),
        ("responses", {"text": {"verbosity": "low"}}, False),
        ("messages", {"output_config": {"format": {"type": "json_schema"}}}, True),
        ("messages", {"output_format": {"type": "json_schema"}}, True),
        ("messages", {"output_config": {"effort": "high"}}, False),
    ],
)
def test_structured_output(protocol, fields, structured):
    assert signals_of({"model": "auto", **fields}, protocol).structured_output is structured


@pytest.mark.parametrize(
    ("protocol", "fields", "effort"),
    [
        ("chat", {}, ""),
        ("chat", {"reasoning_effort": "low"}, "low"),
        ("chat", {"reasoning_effort": None}, ""),
        ("responses", {"reasoning": {"effort": "xhigh", "summary": "auto"}}, "xhigh"),
        ("responses", {"reasoning": {"effort": None}}, ""),
        ("messages", {"output_config": {"effort": "max"}, "thinking": {"type": "adaptive"}}, "max"),
        ("chat", {"reasoning_effort": "my diary" * 1000}, "my diary" * 4),  # it is no place for texts
        ("responses", {"reasoning": {"effort": "my diary" * 1000}}, "my diary" * 4),
        ("messages", {"output_config": {"effort": "my diary" * 1000}}, "my diary" * 4),
        ("messages", {"thinking": {"type": "enabled", "budget_tokens": 1024}}, "high"),
        ("messages", {"thinking": {"type": "adaptive"}}, "medium"),
        ("messages", {"thinking": {"type": "disabled"}}, "none"),
    ],
)
def test_reasoning_effort(protocol, fields, effort):
    assert signals_of({"model": "auto", **fields}, protocol).reasoning_effort == effort


def test_what_comes_from_outside_the_body():
    signals = signals_of({"model": "a", "stream": True}, "embeddings", {}, 23, key_name="key-2")
    assert (signals.protocol, signals.stream, signals.api_key_name, signals.hour) == ("embeddings", True, "key-2", 23)
    assert view_of({}).key_name == ""
