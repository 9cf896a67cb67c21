"""What the human asked, without what the harness puts around it; and what is read from that text."""

import pytest

from ..agents import REMINDER, chat_call, chat_result
from ..build import chat, signals_of


def user(*texts: str) -> dict:
    return {"role": "user", "content": [{"type": "text", "text": text} for text in texts]}


RESULT = {"type": "tool_result", "content": "x"}
LAST = [
    ("chat", {"messages": [{"role": "user", "content": "hi"}]}, "hi"),
    ("chat", {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, "a"),
    ("chat", {"messages": [user("a", "b")]}, "a\nb"),
    ("chat", {"messages": [{"role": "user", "content": f"{REMINDER}\nfix it"}]}, "fix it"),
    ("chat", {"messages": [{"role": "user", "content": "fix it"}, {"role": "user", "content": REMINDER}]}, "fix it"),
    ("chat", {"messages": [{"role": "user", "content": "fix it"}, chat_call("ls"), chat_result("a")]}, "fix it"),
    ("chat", {"messages": [{"role": "user", "content": "<b>fix</b> <system>it</system>"}]}, "<b>fix</b> <system>it</system>"),
    ("chat", {"messages": [{"role": "system", "content": "x"}]}, ""),
    ("chat", {"messages": []}, ""),
    ("chat", {}, ""),
    ("messages", {"messages": [{"role": "user", "content": [RESULT]}]}, ""),
    ("messages", {"messages": [{"role": "user", "content": [RESULT, *user("now stop")["content"]]}]}, "now stop"),
    ("responses", {"input": "hi"}, "hi"),
    ("responses", {"input": [{"role": "user", "content": "hi"}]}, "hi"),
    ("responses", {"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}]}, "hi"),
    ("completions", {"prompt": "once upon"}, "once upon"),
    ("completions", {"prompt": ["once", "twice"]}, "once"),
    ("completions", {"prompt": [1, 2]}, ""),
    ("embeddings", {"input": ["a", "b"]}, "a"),
    ("rerank", {"query": "q"}, ""),
]  # fmt: skip


@pytest.mark.parametrize(("protocol", "body", "text"), LAST, ids=range(len(LAST)))
def test_the_last_text_of_the_human(protocol, body, text):
    assert signals_of({"model": "auto", **body}, protocol).last_human_text == text


TAGS = [
    "system-reminder",
    "environment_context",
    "environment_details",
    "user_instructions",
    "command-name",
    "local-command-stdout",
]


@pytest.mark.parametrize("tag", TAGS)
def test_what_a_harness_marks_with_its_tags_is_not_the_humans(tag):
    signals = signals_of(chat(("user", f"<{tag}>\nprove the theorem\n</{tag}>\nhello <{tag}>\nagain\n</{tag}>")))
    assert signals.last_human_text == "hello"


@pytest.mark.parametrize("tag", TAGS)
def test_a_message_that_is_all_harness_is_no_turn(tag):
    text = f"<{tag}>\nx\n</{tag}>"
    assert signals_of(chat(("user", "hi"), ("user", text))).turns == 1
    assert signals_of(chat(("user", "hi"), user(text, text))).turns == 1
    assert signals_of(chat(("user", "hi"), user(text, "now stop"))).turns == 2


def test_a_message_that_is_all_harness_does_not_end_a_tool_loop():
    loop = signals_of(chat(("user", "hi"), chat_call("ls"), chat_result("a"), ("user", REMINDER)))
    assert (loop.turns, loop.tool_loop) == (1, True)
    assert signals_of(chat(("user", "hi"), chat_call("ls"), chat_result("a"), ("user", f"{REMINDER} stop"))).tool_loop is False


def test_a_long_text_is_cut_and_a_short_one_is_whole():
    assert len(signals_of(chat(("user", "word " * 100_000))).last_human_text) == 4_000
    assert signals_of(chat(("user", "  word  "))).last_human_text == "word"


def test_system_text_is_found_in_every_protocol_and_has_no_billing_line():
    billing = "x-anthropic-billing-header: cc_version=2.1; cch=aaaaa;"
    parts = [{"type": "text", "text": billing}, {"type": "text", "text": "You code."}]
    assert signals_of({"system": parts}, "messages").system_text == "You code."
    assert signals_of({"system": f"{billing}\nYou code."}, "messages").system_text == "You code."
    assert signals_of({"instructions": "You code."}, "responses").system_text == "You code."
    assert signals_of(chat(("system", "You code."), ("user", "x"))).system_text == "You code."
    assert signals_of(chat(("developer", [{"type": "text", "text": "You code."}]))).system_text == "You code."
    assert signals_of(chat(("user", "x"))).system_text == ""


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("please tell me about Rome", 0, 0),
        ("def f(x):\n    return x + 1", 0.5, 1),
        ("const a = () => 1;\nlet b = a();", 1, 1),
        ("why does this fail?\n\nfor x in y:\n    print(x)\n", 0.3, 0.7),
        ("If it rains, use an umbrella.", 0, 0),
        ("", 0, 0),
    ],
)
def test_code_share(text, low, high):
    assert low <= signals_of(chat(("user", text))).code_share <= high


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("hello", "latin"),
        ("Übergröße", "latin"),
        ("привет", "cyrillic"),
        ("你好", "han"),
        ("こんにちは", "kana"),
        ("안녕하세요", "hangul"),
        ("مرحبا", "arabic"),
        ("नमस्ते", "devanagari"),
        ("γειά", "greek"),
        ("שלום", "hebrew"),
        ("use 你好 as greeting", "han"),
        ("1 + 1 = 2", ""),
        ("", ""),
    ],
)
def test_language(text, language):
    assert signals_of(chat(("user", text))).language == language
