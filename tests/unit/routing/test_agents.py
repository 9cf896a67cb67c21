"""The signals on bodies of the shape that Claude Code, Codex and opencode send (clients.md)."""

import pytest

from ..agents import (
    CLAUDE_CODE,
    CODEX,
    OPENCODE,
    chat_call,
    chat_result,
    claude_call,
    claude_code,
    claude_result,
    claude_title,
    codex,
    codex_call,
    codex_message,
    opencode,
    opencode_title,
)
from ..build import chat, signals_of

CASES = {
    "claude-code begins": ("messages", CLAUDE_CODE, claude_code(), {
        "client": "claude-code", "request_class": "main", "turns": 1, "tools": 3, "tool_loop": False,
        "max_output_tokens": 32000, "reasoning_effort": "medium", "stream": True, "images": False, "structured_output": False,
        "last_human_text": "fix the failing test",
    }),
    "claude-code in a tool loop": ("messages", CLAUDE_CODE, claude_code(claude_call("Bash", cmd="ls"), claude_result("a.py")), {
        "turns": 1, "tool_loop": True, "tool_calls_in_history": 1, "repeated_call": 1, "tool_errors_in_a_row": 0,
        "last_human_text": "fix the failing test",
    }),
    "a reminder behind the result": (
        "messages", CLAUDE_CODE, claude_code(claude_call("Bash", cmd="ls"), claude_result("a.py", reminder=True)),
        {"turns": 1, "tool_loop": True, "last_human_text": "fix the failing test"},
    ),
    "claude-code fails twice": (
        "messages", CLAUDE_CODE,
        claude_code(claude_call("Bash", cmd="make"), claude_result("no rule", is_error=True),
                    claude_call("Bash", cmd="make"), claude_result("Error: no rule")),
        {"tool_errors_in_a_row": 2, "repeated_call": 2, "tool_calls_in_history": 2},
    ),
    "an unknown model name: system messages inside": (
        "messages", CLAUDE_CODE,
        claude_code(claude_call("Bash", cmd="ls"), claude_result("a"), {"role": "system", "content": "note"}),
        {"turns": 1, "tool_loop": True},
    ),
    "a second ask": (
        "messages", CLAUDE_CODE,
        claude_code(claude_call("Bash", cmd="ls"), claude_result("a"), {"role": "assistant", "content": "done"},
                    {"role": "user", "content": "commit it"}),
        {"turns": 2, "tool_loop": False, "last_human_text": "commit it"},
    ),
    "claude-code's title": (
        "messages", CLAUDE_CODE, claude_title(), {"request_class": "title", "structured_output": True, "tools": 0},
    ),
    "claude-code's sub-agent": (
        "messages", {**CLAUDE_CODE, "x-claude-code-agent-id": "a1"}, claude_code(), {"request_class": "subagent"},
    ),
    "codex begins": ("responses", CODEX, codex(), {
        "client": "codex", "request_class": "main", "tools": 4, "tool_loop": False,
        "reasoning_effort": "medium", "stream": True, "last_human_text": "fix the failing test",
        "turns": 1,  # its environment_context is none
    }),
    "codex in a tool loop": ("responses", CODEX, codex(*codex_call("shell", '{"cmd":"ls"}', "a.py")), {
        "tool_loop": True, "tool_calls_in_history": 1, "repeated_call": 1, "tool_errors_in_a_row": 0,
        "last_human_text": "fix the failing test",
    }),
    "codex fails three times": (
        "responses", CODEX, codex(*codex_call("shell", '{"cmd":"make"}', "error: no rule") * 3),
        {"tool_errors_in_a_row": 3, "repeated_call": 3},
    ),
    "codex, second ask": (
        "responses", CODEX, codex(*codex_call("shell", "{}", "a"), codex_message("user", "now commit")),
        {"tool_loop": False, "last_human_text": "now commit"},
    ),
    "codex's sub-agent": ("responses", {**CODEX, "x-openai-subagent": "review"}, codex(), {"request_class": "subagent"}),
    "opencode begins": ("chat", OPENCODE, opencode(), {
        "client": "opencode", "request_class": "main", "turns": 1, "tools": 3, "max_output_tokens": 32000,
        "last_human_text": "fix the failing test",
    }),
    "opencode in a tool loop": (
        "chat", OPENCODE, opencode(chat_call("bash"), chat_result("a.py")),
        {"turns": 1, "tool_loop": True, "tool_calls_in_history": 1},
    ),
    "opencode's title": ("chat", OPENCODE, opencode_title(), {"request_class": "title"}),
    "opencode's sub-agent": ("chat", {**OPENCODE, "x-parent-session-id": "p"}, opencode(), {"request_class": "subagent"}),
    "a human asks for a title": ("chat", {}, chat(("user", "give me a title for my book")), {"request_class": "main"}),
    "a title with tools": ("chat", OPENCODE, opencode(ask="change the title of the page"), {"request_class": "main"}),
    "compaction": (
        "chat", OPENCODE, opencode({"role": "user", "content": "Write a detailed summary of our conversation so far."}),
        {"request_class": "compaction"},
    ),
    "talk about summaries": ("chat", OPENCODE, opencode(ask="add a summary field to the report"), {"request_class": "main"}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_read_from_an_agents_request(name):
    protocol, headers, body, wanted = CASES[name]
    signals = signals_of(body, protocol, headers)
    assert {key: getattr(signals, key) for key in wanted} == wanted


def test_the_endpoint_that_counts_is_a_class_of_its_own():
    assert signals_of(claude_code(), "messages", CLAUDE_CODE, counting=True).request_class == "count"
    assert (
        signals_of(claude_code(), "messages", {**CLAUDE_CODE, "x-claude-code-agent-id": "a"}, counting=True).request_class
        == "count"
    )


@pytest.mark.parametrize(
    ("agent", "client"),
    [
        ("claude-cli/2.1.197 (external, cli)", "claude-code"),
        ("codex_cli_rs/0.171.0 (Linux)", "codex"),
        ("opencode/1.18.33", "opencode"),
        ("Cline/3.0.65", "cline"),
        ("QwenCode/0.15.10 (linux; x64)", "qwen-code"),
        ("Agents/Python 0.24.0", "openai-agents"),
        ("OpenAI/Python 3.57.0", "openai"),
        ("Anthropic/Python 2.14.0", "anthropic"),
        ("tool-eval-bench/3.0.0", "tool-eval-bench"),
        ("curl/8.5.0", "curl"),
        ("something/1", "other"),
        ("", "other"),
    ],
)
def test_the_client_by_its_user_agent(agent, client):
    assert signals_of({}, headers={"user-agent": agent}).client == client
