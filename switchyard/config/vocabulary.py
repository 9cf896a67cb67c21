"""The words a policy may use for facts about a request: the signals, with type and meaning.

The catalogue stands here, below everything, so that the loader can refuse a misspelt signal by line. How each fact is
read from a request is `routing/signals.py`; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["bool", "int", "float", "text"]

REQUEST_CLASSES = ("main", "title", "compaction", "subagent", "count")
PROTOCOLS = ("chat", "responses", "messages", "completions", "embeddings", "rerank", "score", "tokenize")


CAPABILITIES = ("images", "audio", "structured_output", "tools")
"""What a pool may or may not take; each is also the name of the signal that says whether a request has it."""


@dataclass(frozen=True)
class SignalSpec:
    """Name, type and meaning of one signal."""

    kind: Kind
    meaning: str
    values: tuple[str, ...] = ()  # all that it can be, where that is known


SIGNALS: Mapping[str, SignalSpec] = {
    "prompt_tokens": SignalSpec("int", "Estimated length of the prompt in tokens, tools included, images left out."),
    "max_output_tokens": SignalSpec("int", "Output tokens that the client asks for at most; 0 when it does not say."),
    "turns": SignalSpec("int", "Messages by a human in the conversation."),
    "tools": SignalSpec("int", "Tools offered to the model."),
    "tool_calls_in_history": SignalSpec("int", "Tool calls that the model has made so far."),
    "tool_errors_in_a_row": SignalSpec("int", "Tool results at the end of the conversation that report an error."),
    "repeated_call": SignalSpec("int", "How often the latest tool call was made in a row with the same arguments."),
    "tool_loop": SignalSpec("bool", "The last message is a tool's result: the model is in the middle of its work."),
    "images": SignalSpec("bool", "The conversation contains an image."),
    "audio": SignalSpec("bool", "The conversation contains audio, or audio is wanted as output."),
    "structured_output": SignalSpec("bool", "The answer must follow a JSON Schema, a grammar or be JSON."),
    "reasoning_effort": SignalSpec("text", "Effort the client asks for: none, minimal, low, medium, high, ...; or empty."),
    "code_share": SignalSpec("float", "Share (0..1) of the human's last text that looks like code."),
    "language": SignalSpec("text", "Script of the human's last text: latin, cyrillic, han, ...; empty when there is none."),
    "request_class": SignalSpec(
        "text", "What the agent wants it for: main, title, compaction, subagent or count.", REQUEST_CLASSES
    ),
    "client": SignalSpec("text", "Who calls: claude-code, codex, opencode, cline, qwen-code, aider, openai, ...; or other."),
    "protocol": SignalSpec("text", "Endpoint family: chat, responses, messages, completions, embeddings, ...", PROTOCOLS),
    "stream": SignalSpec("bool", "The client wants a stream."),
    "api_key_name": SignalSpec("text", "Which of the gateway's keys was used: key-1, key-2, ...; empty without keys."),
    "hour": SignalSpec("int", "Hour of the day (0..23) at the gateway, local time."),
}

HEADER_PREFIX = "header."
"""`header.x-team` is the value of that request header; empty when it is not there."""
