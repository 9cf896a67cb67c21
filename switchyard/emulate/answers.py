"""What an emulated engine says, in vLLM's shapes of each protocol: whole, or as the events of a stream. Pure.

The text is made of words of three letters and a space: a token of four bytes each, as the gateway estimates tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

Json = dict[str, Any]
WORDS = ("the", "fox", "ran", "and", "saw", "how", "far", "one", "can", "see", "now", "its", "den", "lay", "low", "too")
BYTES_A_TOKEN = 4
ENDPOINTS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
}
"""Paths that make tokens, and the protocol of each."""


def words(begin: int, end: int) -> str:
    """Tokens `begin` to `end` of every answer."""
    return "".join(WORDS[i % len(WORDS)] + " " for i in range(begin, end))


class Answer:
    """An answer in the making.

    Args:
        protocol: chat, completions, responses or messages.
        id_: of the answer.
        model: as the engine names it.
        prompt_tokens: tokens of the prompt.
        include_usage: whether a chat or completions stream ends with a usage event.
    """

    def __init__(self, protocol: str, id_: str, model: str, prompt_tokens: int, include_usage: bool) -> None:
        self._make: _Shape = _SHAPES[protocol](id_, model)
        self._prompt_tokens = prompt_tokens
        self._include_usage = include_usage
        self.cached_tokens = 0

    def whole(self, tokens: int, cut: bool) -> bytes:
        """The answer without a stream; `cut` when it ended at the token limit."""
        return msgspec.json.encode(self._make.whole(words(0, tokens), self._usage(tokens), cut))

    def begin(self) -> bytes:
        """The events before the first token."""
        return self._make.begin(self._usage(0))

    def tokens(self, begin: int, end: int) -> bytes:
        """One event for each of the tokens `begin` to `end`."""
        return b"".join(self._make.delta(words(i, i + 1)) for i in range(begin, end))

    def end(self, tokens: int, cut: bool) -> bytes:
        """The events after the last token."""
        return self._make.end(words(0, tokens), self._usage(tokens), cut, self._include_usage)

    def _usage(self, tokens: int) -> tuple[int, int, int]:
        return self._prompt_tokens, tokens, self.cached_tokens


Usage = tuple[int, int, int]
"""Tokens of the prompt, of the answer, and of the prompt's part that was cached."""


class _Shape:
    """One protocol's way to say it."""

    def __init__(self, id_: str, model: str) -> None:
        self._id = id_
        self._model = model

    def whole(self, text: str, usage: Usage, cut: bool) -> Json:
        raise NotImplementedError

    def begin(self, usage: Usage) -> bytes:
        raise NotImplementedError

    def delta(self, text: str) -> bytes:
        raise NotImplementedError

    def end(self, text: str, usage: Usage, cut: bool, include_usage: bool) -> bytes:
        raise NotImplementedError


class _Chat(_Shape):
    def __init__(self, id_: str, model: str) -> None:
        super().__init__(f"chatcmpl-{id_}", model)
        self._common = {"id": self._id, "object": "chat.completion.chunk", "created": 1, "model": model}
        before, after = _event(self._part({"content": "\0"})).split(b'"\\u0000"')
        self._before, self._after = before + b'"', b'"' + after

    def _part(self, delta: Json, finish: str | None = None) -> Json:
        return {**self._common, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]}

    def whole(self, text: str, usage: Usage, cut: bool) -> Json:
        message: Json = {"role": "assistant", "content": text, "reasoning": None, "tool_calls": []}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(cut)}
        return {**self._common, "object": "chat.completion", "choices": [choice], "usage": _openai_usage(usage)}

    def begin(self, usage: Usage) -> bytes:
        return _event(self._part({"role": "assistant", "content": ""}))

    def delta(self, text: str) -> bytes:
        return self._before + text.encode() + self._after

    def end(self, text: str, usage: Usage, cut: bool, include_usage: bool) -> bytes:
        last = _event({**self._common, "choices": [], "usage": _openai_usage(usage)}) if include_usage else b""
        return _event(self._part({}, _finish(cut))) + last + b"data: [DONE]\n\n"


class _Completions(_Shape):
    def __init__(self, id_: str, model: str) -> None:
        super().__init__(f"cmpl-{id_}", model)
        self._common = {"id": self._id, "object": "text_completion", "created": 1, "model": model}

    def _part(self, text: str, finish: str | None = None) -> Json:
        return {**self._common, "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": finish}]}

    def whole(self, text: str, usage: Usage, cut: bool) -> Json:
        return {**self._part(text, _finish(cut)), "usage": _openai_usage(usage)}

    def begin(self, usage: Usage) -> bytes:
        return b""

    def delta(self, text: str) -> bytes:
        return _event(self._part(text))

    def end(self, text: str, usage: Usage, cut: bool, include_usage: bool) -> bytes:
        last = _event({**self._common, "choices": [], "usage": _openai_usage(usage)}) if include_usage else b""
        return _event(self._part("", _finish(cut))) + last + b"data: [DONE]\n\n"


class _Responses(_Shape):
    def __init__(self, id_: str, model: str) -> None:
        super().__init__(f"resp_{id_}", model)
        self._item = {"type": "message", "id": f"msg_{id_}", "role": "assistant", "status": "completed"}
        self._place = {"item_id": self._item["id"], "output_index": 0, "content_index": 0}
        self._sequence = 0

    def _numbered(self, *events: Json) -> bytes:
        out = b""
        for event in events:
            out += _named({**event, "sequence_number": self._sequence})
            self._sequence += 1
        return out

    def _part(self, text: str) -> Json:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def whole(self, text: str, usage: Usage, cut: bool) -> Json:
        return {
            "id": self._id, "object": "response", "created_at": 1, "model": self._model,
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": [{**self._item, "content": [self._part(text)]}],
            "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "error": None,
            "usage": {
                "input_tokens": usage[0], "output_tokens": usage[1], "total_tokens": usage[0] + usage[1],
                "input_tokens_details": {"cached_tokens": usage[2]}, "output_tokens_details": {"reasoning_tokens": 0},
            },
        }  # fmt: skip

    def begin(self, usage: Usage) -> bytes:
        begun = {**self.whole("", usage, False), "status": "in_progress", "output": [], "usage": None}
        return self._numbered(
            {"type": "response.created", "response": begun},
            {"type": "response.in_progress", "response": begun},
            {"type": "response.output_item.added", "output_index": 0,
             "item": {**self._item, "status": "in_progress", "content": []}},
            {"type": "response.content_part.added", **self._place, "part": self._part("")},
        )  # fmt: skip

    def delta(self, text: str) -> bytes:
        return self._numbered({"type": "response.output_text.delta", **self._place, "delta": text, "logprobs": []})

    def end(self, text: str, usage: Usage, cut: bool, include_usage: bool) -> bytes:
        kind = "response.incomplete" if cut else "response.completed"
        return self._numbered(
            {"type": "response.output_text.done", **self._place, "text": text, "logprobs": []},
            {"type": "response.content_part.done", **self._place, "part": self._part(text)},
            {"type": "response.output_item.done", "output_index": 0, "item": {**self._item, "content": [self._part(text)]}},
            {"type": kind, "response": self.whole(text, usage, cut)},
        )


class _Messages(_Shape):
    def __init__(self, id_: str, model: str) -> None:
        super().__init__(f"msg_{id_}", model)

    def whole(self, text: str, usage: Usage, cut: bool) -> Json:
        return {
            "id": self._id, "type": "message", "role": "assistant", "model": self._model,
            "content": [{"type": "text", "text": text}],
            "stop_reason": "max_tokens" if cut else "end_turn", "stop_sequence": None, "usage": _anthropic_usage(usage),
        }  # fmt: skip

    def begin(self, usage: Usage) -> bytes:
        message: Json = {**self.whole("", usage, False), "content": [], "stop_reason": None}
        block = {"type": "text", "text": ""}
        return _named({"type": "message_start", "message": message}) + _named(
            {"type": "content_block_start", "index": 0, "content_block": block}
        )

    def delta(self, text: str) -> bytes:
        return _named({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}})

    def end(self, text: str, usage: Usage, cut: bool, include_usage: bool) -> bytes:
        delta = {"stop_reason": "max_tokens" if cut else "end_turn", "stop_sequence": None}
        return (
            _named({"type": "content_block_stop", "index": 0})
            + _named({"type": "message_delta", "delta": delta, "usage": _anthropic_usage(usage)})
            + _named({"type": "message_stop"})
        )


_SHAPES: dict[str, Callable[[str, str], _Shape]] = {
    "chat": _Chat, "completions": _Completions, "responses": _Responses, "messages": _Messages,
}  # fmt: skip


def _finish(cut: bool) -> str:
    return "length" if cut else "stop"


def _openai_usage(usage: Usage) -> Json:
    prompt, answer, cached = usage
    return {
        "prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer,
        "prompt_tokens_details": {"cached_tokens": cached},
    }  # fmt: skip


def _anthropic_usage(usage: Usage) -> Json:
    return {"input_tokens": usage[0], "output_tokens": usage[1]}  # vLLM 0.32 tells nothing of its cache here


def _event(content: Json) -> bytes:
    return b"data: " + msgspec.json.encode(content) + b"\n\n"


def _named(content: Json) -> bytes:
    return b"event: " + str(content["type"]).encode() + b"\ndata: " + msgspec.json.encode(content) + b"\n\n"
