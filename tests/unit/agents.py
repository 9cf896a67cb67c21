"""Synthetic request bodies of the shape that agents send (their own prompts are not ours)."""

import json
from typing import Any

SESSION = "4f1c2d3e-0000-4000-8000-000000000001"
CLAUDE_CODE = {"user-agent": "claude-cli/2.1.197 (external, cli)", "x-claude-code-session-id": SESSION}
CODEX = {"user-agent": "codex_cli_rs/0.171.0 (Linux)", "session-id": SESSION, "thread-id": SESSION}
OPENCODE = {"user-agent": "opencode/1.18.33", "x-session-id": SESSION, "x-session-affinity": SESSION}
REMINDER = "<system-reminder>\nThe files of the project changed. Don't mention this.\n</system-reminder>"


def claude_code(
    *later: dict[str, Any], nonce: str = "aaaaa", ask: str = "fix the failing test", **fields: Any
) -> dict[str, Any]:
    """A main call on /v1/messages; `later` are the messages after the first."""
    billing = f"x-anthropic-billing-header: cc_version=2.1.197; cc_entrypoint=cli; cch={nonce};"
    user_id = json.dumps({"device_id": "d" * 64, "account_uuid": "", "session_id": SESSION})
    first = [{"type": "text", "text": REMINDER}, {"type": "text", "text": ask, "cache_control": {"type": "ephemeral"}}]
    return {
        "model": "claude-opus-4-5", "max_tokens": 32000, "stream": True,
        "system": [{"type": "text", "text": billing}, {"type": "text", "text": "You are a coding agent. " * 40}],
        "messages": [{"role": "user", "content": first}, *later],
        "tools": [{"name": n, "description": "does " * 20, "input_schema": {}} for n in ("Bash", "Read", "Edit")],
        "metadata": {"user_id": user_id}, "thinking": {"type": "adaptive"}, "context_management": {"edits": []}, **fields,
    }  # fmt: skip


def claude_call(name: str, id_: str = "toolu_1", **input_: Any) -> dict[str, Any]:
    thought = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
    return {"role": "assistant", "content": [thought, {"type": "tool_use", "id": id_, "name": name, "input": input_}]}


def claude_result(text: str, id_: str = "toolu_1", reminder: bool = False, **fields: Any) -> dict[str, Any]:
    result = {"type": "tool_result", "tool_use_id": id_, "content": text, **fields}
    return {"role": "user", "content": [result, {"type": "text", "text": REMINDER}] if reminder else [result]}


def claude_title() -> dict[str, Any]:
    """The tool-less call for a title that goes with each prompt, to the small alias."""
    form = {"type": "json_schema", "schema": {"type": "object", "properties": {"title": {"type": "string"}}}}
    return {
        "model": "claude-haiku-4-5", "max_tokens": 512, "stream": True, "output_config": {"format": form},
        "system": [{"type": "text", "text": "Write a short title for what the user wants to do in this session."}],
        "messages": [{"role": "user", "content": "refactor the scheduler and prove that it has no deadlock"}],
    }  # fmt: skip


def codex(*later: dict[str, Any], ask: str = "fix the failing test") -> dict[str, Any]:
    """A main call on /v1/responses; `later` are the input items after the human's ask."""
    context = "<environment_context>\n  <cwd>/work</cwd>\n</environment_context>"
    tools = [
        {"type": "function", "name": "shell", "parameters": {"type": "object"}},
        {"type": "namespace", "name": "mcp__docs", "tools": []},
        {"type": "web_search"},
        {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}},
    ]
    return {
        "model": "gpt-5-codex", "instructions": "You are a coding agent. " * 40, "stream": True, "store": False,
        "input": [
            codex_message("developer", "Sandbox: read only."), codex_message("user", context), codex_message("user", ask),
            *later,
        ],
        "tools": tools, "reasoning": {"effort": "medium", "summary": "auto"}, "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": SESSION, "client_metadata": {"session_id": SESSION}, "parallel_tool_calls": False,
    }  # fmt: skip


def codex_message(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def codex_call(name: str, arguments: str, output: str | None = None) -> list[dict[str, Any]]:
    """A thought, a call and, if given, its output."""
    thought = {"type": "reasoning", "summary": [], "encrypted_content": "Z0FBQQ=="}
    items = [thought, {"type": "function_call", "name": name, "arguments": arguments, "call_id": "c1", "status": "completed"}]
    return items if output is None else [*items, {"type": "function_call_output", "call_id": "c1", "output": output}]


def opencode(*later: dict[str, Any], ask: str = "fix the failing test") -> dict[str, Any]:
    """A main call on chat completions."""
    return {
        "model": "auto", "max_tokens": 32000, "stream": True, "stream_options": {"include_usage": True},
        "messages": [{"role": "system", "content": "You are a coding agent. " * 40}, {"role": "user", "content": ask}, *later],
        "tools": [{"type": "function", "function": {"name": n, "parameters": {}}} for n in ("bash", "read", "edit")],
    }  # fmt: skip


def opencode_title() -> dict[str, Any]:
    system = {"role": "system", "content": "You are a title generator. Give the thread a title of a few words."}
    return {"model": "auto", "max_tokens": 32000, "messages": [system, {"role": "user", "content": "fix the failing test"}]}


def chat_call(name: str, arguments: str = "{}", id_: str = "c1", text: str | None = None) -> dict[str, Any]:
    call = {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": text, "tool_calls": [call]}


def chat_result(text: Any, id_: str = "c1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id_, "content": text}
