"""What is read from an answer on its way: usage of every shape (field case F11), the first token, ids."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.upstream.sse import TAIL_BYTES, AnswerReader, Usage

from . import streams as s
from .test_events import cut

U1 = b'{"prompt_tokens":13,"total_tokens":14,"completion_tokens":1,"completion_tokens_details":null}'
U2 = b'{"prompt_tokens":13,"total_tokens":25,"completion_tokens":12}'
LLAMA = b'{"completion_tokens":4,"prompt_tokens":34,"total_tokens":38,"prompt_tokens_details":{"cached_tokens":33}}'
TEXT = s.chat(b'"content":"The"')
MESSAGES = [s.MESSAGE_START, s.TEXT_START, s.TEXT_DELTA, s.BLOCK_STOP, s.MESSAGE_DELTA, s.MESSAGE_STOP]


def reader_of(*pieces: bytes, protocol: str = "chat", stream: bool = True) -> AnswerReader:
    reader = AnswerReader(protocol, stream)
    for piece in pieces:
        reader.see(piece)
    return reader


def first_token_at(pieces: list[bytes], protocol: str) -> int:
    """The number of the piece with which the first token was seen; 0 when there was none."""
    reader = AnswerReader(protocol, True)
    for n, piece in enumerate(pieces, 1):
        reader.see(piece)
        if reader.first_token_s:
            return n
    return 0


# protocol, pieces of a stream, usage
STREAMED = [
    ("chat", [s.VLLM_ROLE, TEXT, s.usage(U2), s.DONE], Usage(13, 12)),
    ("chat", [s.VLLM_ROLE, TEXT, s.usage(U2, b""), s.DONE], Usage(13, 12)),
    ("chat", [s.VLLM_ROLE, TEXT, s.usage(U2, b'"choices":null,'), s.DONE], Usage(13, 12)),
    ("chat", [s.LLAMA_ROLE, TEXT, s.usage(LLAMA), s.DONE], Usage(34, 4, 33)),
    ("chat", [s.chat(b'"content":"a"', b',"usage":' + U1), s.chat(b'"content":"b"', b',"usage":' + U2), s.DONE], Usage(13, 12)),
    ("chat", [s.chat(b'"content":"a"', b',"usage":' + U2), s.usage(U2), s.DONE], Usage(13, 12)),  # twice is not added up
    ("chat", [TEXT, s.usage(U2), s.usage(b"null"), s.DONE], Usage(13, 12)),
    ("chat", [TEXT, s.chat(b'"content":"b"', b',"usage":null'), s.DONE], Usage()),
    ("chat", [TEXT, s.DONE], Usage()),
    ("chat", [s.chat(rb'"content":"\"usage\":{\"prompt_tokens\":666}"'), s.usage(U2)], Usage(13, 12)),
    ("chat", [s.usage(b'{"prompt_tokens":13,"completion_tokens":12,"prompt_tokens_details":null}')], Usage(13, 12)),
    ("chat", [s.usage(b'{"prompt_tokens":"13"}')], Usage()),
    ("completions", [s.usage(LLAMA, b'"choices":[{"text":"","index":0,"finish_reason":"length"}],')], Usage(34, 4, 33)),
    ("messages", MESSAGES, Usage(1, 8, 35)),  # begun in the first event, ended in the last but one
    ("messages", [s.MESSAGE_START.replace(b'"cache_read_input_tokens":35,', b""), s.MESSAGE_DELTA], Usage(1, 8)),
    ("responses", [s.CREATED, s.IN_PROGRESS, s.TEXT, s.COMPLETED], Usage(15, 8, 3)),
]  # fmt: skip


@pytest.mark.parametrize(("protocol", "pieces", "usage"), STREAMED, ids=range(len(STREAMED)))
def test_usage_of_a_stream(protocol, pieces, usage):
    assert reader_of(*pieces, protocol=protocol).usage() == usage


WHOLE = [
    (b'{"choices":[{"message":{"content":"I"}}],"usage":{"prompt_tokens":15,"total_tokens":23,"completion_tokens":8,'
     b'"prompt_tokens_details":null},"metrics":null}', Usage(15, 8)),
    (b'{"usage":{"completion_tokens":8,"prompt_tokens":36,"prompt_tokens_details":{"cached_tokens":24}},"timings":{"cache_n":24}}',
     Usage(36, 8, 24)),
    (b'{"type":"message","content":[],"usage":{"cache_read_input_tokens":24,"input_tokens":12,"output_tokens":8}}',
     Usage(12, 8, 24)),
    (b'{"data":[{"embedding":"AACAPw=="}],"usage":{"prompt_tokens":5,"total_tokens":5}}', Usage(5)),
    (b'{"usage" : {"prompt_tokens" : 5}}', Usage(5)),
    (b'{"usage":{}}', Usage()),
    (b'{"input_tokens":3}', Usage()),
    (b"", Usage()),
    (b"\xff", Usage()),
]  # fmt: skip


@pytest.mark.parametrize(("body", "usage"), WHOLE, ids=range(len(WHOLE)))
def test_usage_of_a_whole_answer(body, usage):
    assert reader_of(body, stream=False).usage() == usage


@pytest.mark.parametrize("protocol", ["messages", "responses", "chat"])
def test_usage_at_both_ends_of_a_long_answer(protocol):
    begin = {"messages": [s.MESSAGE_START], "responses": [s.CREATED], "chat": [s.VLLM_ROLE]}[protocol]
    end = {"messages": [s.MESSAGE_DELTA], "responses": [s.COMPLETED], "chat": [s.usage(U2)]}[protocol]
    reader = reader_of(*begin, *[TEXT * 20] * 400, *end, protocol=protocol)
    assert reader.usage() == {"messages": Usage(1, 8, 35), "responses": Usage(15, 8, 3), "chat": Usage(13, 12)}[protocol]
    assert reader.received_bytes == len(begin[0]) + 8000 * len(TEXT) + len(end[0])
    assert len(reader.tail) <= 2 * TAIL_BYTES  # memory is bounded


@given(st.sampled_from(STREAMED), st.lists(st.integers(0, 10_000), max_size=12))
def test_usage_does_not_depend_on_the_cuts(case, at):
    protocol, pieces, usage = case
    assert reader_of(*cut(b"".join(pieces), at), protocol=protocol).usage() == usage


# protocol, pieces, number of the piece with the first token (0: none)
FIRST = [
    ("chat", [s.VLLM_ROLE, s.COMMENT, TEXT], 3),
    ("chat", [s.LLAMA_ROLE, s.COMMENT, s.chat(b'"content":"\\""')], 3),
    ("chat", [s.VLLM_ROLE, s.chat(b'"reasoning":"hm"'), TEXT], 2),
    ("chat", [s.VLLM_ROLE, s.chat(b'"reasoning_content":"hm"')], 2),
    ("chat", [s.VLLM_ROLE, s.chat(b'"content":"","reasoning":""'), TEXT], 3),
    ("chat", [s.VLLM_ROLE, s.chat(b'"content":null'), s.chat(b'"refusal":"no"')], 3),
    ("chat", [s.VLLM_ROLE, s.chat(b'"tool_calls":[{"index":0,"id":"c","function":{"name":"ls","arguments":""}}]')], 2),
    ("chat", [s.VLLM_ROLE, s.chat(b'"tool_calls":[{"index":0,"function":{"arguments":"{"}}]')], 2),
    ("chat", [s.VLLM_ROLE, s.chat(b""), s.usage(U2), s.DONE], 0),
    ("chat", [b'data: {"choices":[{"delta":{"content" : "a"}}]}\n\n'], 1),
    ("completions", [s.COMMENT, b'data: {"choices":[{"text":""}]}\n\n', b'data: {"choices":[{"text":" Paris"}]}\n\n'], 3),
    ("messages", [s.MESSAGE_START, s.TEXT_START, s.TEXT_DELTA], 3),
    ("messages", [s.MESSAGE_START, b"event: ping\ndata: {\"type\": \"ping\"}\n\n", s.TEXT_START, s.TEXT_DELTA], 4),
    ("messages", [s.MESSAGE_START, s.THINKING_START, s.THINKING_DELTA], 3),
    ("messages", [s.MESSAGE_START, s.TOOL_START], 2),
    ("messages", [s.MESSAGE_START, s.TEXT_START, s.BLOCK_STOP, s.MESSAGE_DELTA, s.MESSAGE_STOP], 0),
    ("responses", [s.CREATED, s.IN_PROGRESS, s.ITEM_ADDED, s.TEXT], 4),
    ("responses", [s.CREATED, s.IN_PROGRESS, s.REASONING], 3),
    ("responses", [s.CREATED, s.IN_PROGRESS, s.CALL_ADDED], 3),
    ("responses", [s.CREATED, s.IN_PROGRESS, s.ITEM_ADDED, s.COMPLETED], 0),
    ("embeddings", [b'data: {"content":"x"}\n\n'], 0),
]  # fmt: skip


@pytest.mark.parametrize(("protocol", "pieces", "at"), FIRST, ids=range(len(FIRST)))
def test_the_first_token_is_the_first_reasoning_text_or_tool_piece(protocol, pieces, at):
    assert first_token_at(pieces, protocol) == at


@given(st.sampled_from([case for case in FIRST if case[2]]), st.lists(st.integers(0, 10_000), max_size=12))
def test_the_first_token_is_seen_wherever_the_bytes_are_cut(case, at):
    protocol, pieces, _ = case
    data = b"".join(pieces)
    byte = first_token_at([data[i : i + 1] for i in range(len(data))], protocol)
    pieces = cut(data, at)
    found = first_token_at(pieces, protocol)
    assert len(b"".join(pieces[: found - 1])) < byte <= len(b"".join(pieces[:found]))


def test_the_time_of_the_first_token_is_kept():
    reader = reader_of(TEXT)
    first_s = reader.first_token_s
    reader.see(TEXT)
    assert 0 < first_s == reader.first_token_s <= time.monotonic()


def test_only_a_stream_has_a_first_token():
    assert reader_of(b'{"choices":[{"message":{"content":"I"}}]}', stream=False).first_token_s == 0


@pytest.mark.parametrize(
    ("data", "between"),
    [(b"", True), (TEXT, True), (TEXT[:-1], False), (TEXT[:-9], False), (b"data: a\r\n\r\n", True), (b"data: a\r\r", True),
     (b"data: a\r\n", False)],
)  # fmt: skip
def test_whether_a_stream_stands_between_events(data, between):
    assert reader_of(data).between_events is between


@pytest.mark.parametrize(
    ("pieces", "found"),
    [
        ([s.CREATED, s.TEXT, s.COMPLETED], "resp_a7fa92"),
        ([b'{"id":"resp_904f0f","object":"response","output":[{"id":"msg_1"}]}'], "resp_904f0f"),
        ([s.CREATED, *[s.TEXT * 100] * 100, s.COMPLETED], "resp_a7fa92"),
        ([b'{"id":"msg_1"}'], None),
        ([], None),
    ],
)
def test_the_id_of_a_stored_response(pieces, found):
    assert reader_of(*pieces, protocol="responses").response_id() == found


@given(
    st.lists(st.binary(max_size=50), max_size=10), st.sampled_from(["chat", "messages", "responses", "completions", "score"])
)
def test_no_bytes_make_it_fail(pieces, protocol):
    reader = reader_of(*pieces, protocol=protocol)
    assert reader.received_bytes == sum(map(len, pieces))
    assert isinstance(reader.usage(), Usage)
    assert reader.response_id() is None or reader.response_id().startswith("resp_")
