"""Counting a prompt with a model's tokenizer: what is counted, when it is worth it, what it changes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from switchyard.errors import ContextOverflow
from switchyard.routing.media import MEDIA_TOKENS
from switchyard.routing.policy import SURE_OVERFLOW, find_candidates, worth_counting
from switchyard.routing.tokens import MESSAGE_TOKENS, count_prompt, load_tokenizer, why_no_tokenizer

from ..build import chat, signals_of
from ..pool_views import View, views

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 4000}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def count_words(texts) -> int:
    return sum(len(text.split()) for text in texts)


# body, words in it, messages, pictures
COUNTED = [
    (chat(("user", "one two three")), 3, 1, 0),
    (chat(("system", "be brief"), ("user", "one"), ("assistant", "two three")), 5, 3, 0),
    (chat(("user", [{"type": "text", "text": "what is this"}, IMAGE])), 3, 1, 1),
    (chat(("user", "x"), tools=[TOOL]), 2, 1, 0),
    (chat(("user", "x"), metadata={"note": "not a part of the prompt"}, stop=["a b c"]), 1, 1, 0),
    (chat({"role": "tool", "tool_call_id": "no text", "content": "a b"}), 2, 1, 0),
    (chat({"role": "assistant", "content": None, "tool_calls": [
        {"id": "1 2", "type": "function", "function": {"name": "f", "arguments": '{"a": "b c"}'}}]}), 4, 1, 0),
]  # fmt: skip


@pytest.mark.parametrize(("body", "words", "messages", "pictures"), COUNTED)
def test_texts_are_counted_and_what_is_no_text_is_not(body, words, messages, pictures):
    expected = words + MESSAGE_TOKENS * messages + MEDIA_TOKENS * pictures
    assert count_prompt(signals_of(body).view, count_words) == expected


@pytest.mark.parametrize(
    ("kind", "body", "words"),
    [
        ("responses", {"model": "m", "instructions": "be brief", "input": "one two"}, 4),
        ("messages", {"model": "m", "system": [{"type": "text", "text": "be brief"}], "messages": []}, 2),
        ("completions", {"model": "m", "prompt": "one two three"}, 3),
    ],
)
def test_every_protocol(kind, body, words):
    lists = sum(len(v) for k, v in body.items() if isinstance(v, list))
    assert count_prompt(signals_of(body, kind).view, count_words) == words + MESSAGE_TOKENS * lists


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["type", "text", "content", "input"]) | st.text(), inner),
)


@given(JSON, JSON)
def test_any_body_can_be_counted(messages, tools):
    body = {"model": "m", "messages": messages, "tools": tools}
    assert count_prompt(signals_of(body).view, lambda texts: sum(map(len, texts))) >= 0


# estimate, context, wanted output, whether a count could change anything
WORTH = [(100, 10_000, 0, False), (3_000, 10_000, 0, True), (9_000, 10_000, 0, True), (1_000, 10_000, 7_000, True),
         (10_000 * SURE_OVERFLOW + 10, 10_000, 0, False)]  # fmt: skip


@pytest.mark.parametrize(("estimate", "context", "wanted", "worth"), WORTH)
def test_it_is_worth_it_where_the_estimate_leaves_it_open(estimate, context, wanted, worth):
    signals = signals_of(chat(("user", "word" * estimate), max_tokens=wanted))
    assert worth_counting(View("p", context_tokens=context), signals) == worth
    assert not worth_counting(View("p"), signals)


def test_a_count_wins_over_the_estimate():
    small, big = View("small", context_tokens=1_000), View("big", context_tokens=5_000)
    pools = views(small, big)
    signals = signals_of(chat(("user", "word" * 2_000)))
    assert find_candidates(["small", "big"], pools, signals).pools == ("big",)
    signals.counted["small"] = 900
    assert find_candidates(["small", "big"], pools, signals).pools == ("small", "big")
    signals.counted.update(small=1_900, big=4_999)
    assert find_candidates(["small", "big"], pools, signals).pools == ("big",)
    signals.counted["big"] = 5_001
    with pytest.raises(ContextOverflow, match="5001 tokens \\(counted\\)"):
        find_candidates(["small", "big"], pools, signals)


@given(st.lists(st.text(max_size=50)))
def test_a_tokenizer_file_is_used(tokenizer_file, texts):
    count = load_tokenizer(str(tokenizer_file))
    assert count(["hello world hello"]) == 3
    assert count(texts) >= 0


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory):
    tokenizer = Tokenizer(models.WordLevel({"hello": 0, "world": 1, "?": 2}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def test_a_file_that_is_none_is_said_so(tmp_path, tokenizer_file):
    assert "is not there" in why_no_tokenizer(str(tmp_path / "gone.json"))
    assert why_no_tokenizer(str(tokenizer_file)) is None
    broken = tmp_path / "tokenizer.json"
    broken.write_text("{}")
    with pytest.raises(ValueError, match=r"is no tokenizer\.json"):
        load_tokenizer(str(broken))
