"""Emulated answers have the shapes that the gateway reads and SDKs take, streamed and whole."""

import json

import msgspec
import pytest

from switchyard.emulate.answers import ENDPOINTS, Answer, words
from switchyard.emulate.asked import answer_length, block_keys, read_asked
from switchyard.upstream.sse import AnswerReader

PROTOCOLS = sorted(ENDPOINTS.values())


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_gateway_reads_usage_and_end(protocol, stream):
    answer = Answer(protocol, "x1", "acme/model", 1000, include_usage=True)
    answer.cached_tokens = 640
    reader = AnswerReader(protocol, stream)
    if stream:
        reader.see(answer.begin() + answer.tokens(0, 3) + answer.tokens(3, 7) + answer.end(7, cut=False))
        assert reader.has_ended
    else:
        reader.see(answer.whole(7, cut=False))
    usage = reader.usage()
    assert (usage.input_tokens, usage.output_tokens) == (1000, 7)
    assert usage.cached_tokens == (None if protocol == "messages" else 640)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_stream_and_whole_say_the_same(protocol):
    answer = Answer(protocol, "x1", "acme/model", 10, include_usage=False)
    whole = json.loads(answer.whole(5, cut=True))
    events = [
        json.loads(line[6:])
        for line in (answer.begin() + answer.tokens(0, 5) + answer.end(5, cut=True)).decode().splitlines()
        if line.startswith("data: ") and line != "data: [DONE]"
    ]
    text = {
        "chat": lambda e: e["choices"][0]["delta"].get("content", ""),
        "completions": lambda e: e["choices"][0]["text"],
        "responses": lambda e: e.get("delta", ""),
        "messages": lambda e: e["delta"].get("text", "") if e["type"] == "content_block_delta" else "",
    }[protocol]
    assert "".join(map(text, events)) == words(0, 5)
    assert words(0, 5) in json.dumps(whole)
    ends = json.dumps([whole, events[-2:]])
    assert {"chat": '"length"', "completions": '"length"', "responses": "max_output_tokens", "messages": "max_tokens"}[
        protocol
    ] in ends


def test_a_token_is_four_bytes():
    assert len(words(3, 13)) == 40


def test_the_next_turn_begins_like_this_one():
    def text(*messages):
        body = {"model": "m", "messages": [{"role": "user", "content": m} for m in messages]}
        return read_asked(json.dumps(body).encode()).text().encode()

    first, second = block_keys(text("a" * 600), 256), block_keys(text("a" * 600, "and more" * 40), 256)
    assert len(first) == 2
    assert second[:2] == first
    assert block_keys(text("b" * 600), 256)[0] != first[0]


def test_answers_end_by_themselves_or_at_a_limit():
    def length(**fields):
        return answer_length(read_asked(json.dumps({"model": "m", **fields}).encode()), b"some text", 10_000)

    natural, cut = length()
    assert (natural, cut) == length()
    assert not cut
    assert 10 < natural < 2000
    assert length(max_tokens=3) == (3, True)
    assert length(max_tokens=9000) == (natural, False)
    assert length(max_output_tokens=500, ignore_eos=True) == (500, True)
    assert length(min_tokens=4000) == (4000, False)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"model": 5}', b'{"max_tokens": "x"}', b'{"stream_options": 1}', b"\xff"])
def test_what_is_no_request(body):
    with pytest.raises((msgspec.MsgspecError, UnicodeDecodeError)):
        read_asked(body)
