"""Facts about a request that are read without any model: the signals of `config/vocabulary.py`.

Each is computed when somebody asks for it, once. A rule, the classifiers and the record ask by name. No I/O here; time
comes in from outside.
"""

from __future__ import annotations

from typing import Any

import msgspec

from switchyard.config.vocabulary import HEADER_PREFIX, SIGNALS
from switchyard.routing.agents import COMPACTION, TITLE, TITLING_CLIENTS, client_of
from switchyard.routing.harness import BILLING, BILLING_PART, SEEN_TEXT_CHARACTERS, clean
from switchyard.routing.lazy import lazy
from switchyard.routing.looks import CODE_CHARACTERS, SCRIPT_CHARACTERS, looks_like_code, script_of
from switchyard.routing.media import MEDIA_KINDS, MEDIA_TOKENS, find_media
from switchyard.routing.request import NULL, Item, Part, RequestView, content_parts, is_list, text_of
from switchyard.routing.tool_history import CALL_TYPES, RESULT_TYPES, chat_calls, is_error

BYTES_PER_TOKEN = 4
"""English text and code, over common BPE vocabularies: 3 to 5 bytes. An estimate, and called so wherever it shows."""
LONG_BYTES = 256 * 1024
_TOOL_RESULT = b'"tool_result"'

EFFORT_CHARACTERS = 32  # of what a client calls its effort: it stands in records

PROMPT_FIELDS = frozenset(
    ["messages", "system", "tools", "input", "instructions", "prompt", "query", "documents", "text_1", "text_2"]
)
_FORMS = frozenset(["structured_outputs", "guided_json", "guided_regex", "grammar"])
_FORM_FIELDS = _FORMS | {"response_format", "output_format", "text", "output_config"}
_EFFORT_FIELDS = frozenset(["reasoning_effort", "reasoning", "output_config", "thinking"])
_SUBAGENT_HEADERS = frozenset(["x-claude-code-agent-id", "x-openai-subagent", "x-parent-session-id"])


class Signals:
    """The signals of one request, by name as attributes or with `get`.

    Args:
        view: the request.
        hour: hour of the day, 0..23.

    Attributes:
        counted: prompt tokens by the tokenizers of some pools, where somebody has counted.
    """

    def __init__(self, view: RequestView, hour: int = 0) -> None:
        self.view = view
        self.hour = hour
        self.counted: dict[str, int] = {}
        self._parts_read: dict[int, list[Part]] = {}

    def get(self, name: str) -> Any:
        """A signal's value by the name it has in a policy, `header.NAME` included."""
        if name.startswith(HEADER_PREFIX):
            return self.view.headers.get(name.removeprefix(HEADER_PREFIX).lower(), "")
        return getattr(self, name)

    def known(self) -> dict[str, Any]:
        """The signals that were asked for so far: for records, without further work."""
        known = self.__dict__
        return {name: known[name] for name in SIGNALS if name in known}

    # ---- size ----

    @lazy
    def prompt_tokens(self) -> int:
        """Bytes of all that becomes prompt, over `BYTES_PER_TOKEN`; an image or sound counts `MEDIA_TOKENS`."""
        _, count, media_bytes = self._media
        return max(0, self.view.body.size(PROMPT_FIELDS) - media_bytes) // BYTES_PER_TOKEN + MEDIA_TOKENS * count

    def prompt_tokens_for(self, pool: str) -> int:
        """As the pool's tokenizer counted them; the estimate where it didn't."""
        return self.counted.get(pool, self.prompt_tokens)

    @lazy
    def max_output_tokens(self) -> int:
        """The larger of the names that the protocols have for it."""
        number = self.view.number
        names = ("max_tokens", "max_completion_tokens", "max_output_tokens")
        return max([number(name) or 0 for name in names])

    # ---- conversation ----

    @lazy
    def turns(self) -> int:
        """Human messages."""
        return sum(self._human)

    @lazy
    def _human(self) -> list[bool]:
        """For each item, whether a human wrote it."""
        return [self._is_human(item) for item in self.view.items]

    def _is_human(self, item: Item) -> bool:
        if item.role != "user":
            return False
        if not _may_have(item.content, _TOOL_RESULT):
            # A message that is all harness (Codex's environment, say) is not a human's.
            return b"<" not in bytes(memoryview(item.content)[:256]) or any(
                p.type in MEDIA_KINDS or clean(p.text) for p in self._parts(item)
            )
        return any(p.type != "tool_result" and clean(p.text) for p in self._parts(item))

    def _parts(self, item: Item) -> list[Part]:
        """The parts of an item's content, read once: with images in them that takes milliseconds."""
        parts = self._parts_read.get(id(item))
        if parts is None:
            parts = self._parts_read[id(item)] = content_parts(item.content)
        return parts

    def _has_result(self, item: Item) -> bool:
        return _may_have(item.content, _TOOL_RESULT) and any(p.type == "tool_result" for p in self._parts(item))

    @lazy
    def tools(self) -> int:
        """Tools offered."""
        return len(self.view.tool_names)

    @lazy
    def tool_loop(self) -> bool:
        """Whether the conversation ends with a tool's result (reminders of the harness behind it don't count)."""
        for item, human in zip(reversed(self.view.items), reversed(self._human), strict=True):
            if item.role == "tool" or item.type in RESULT_TYPES:
                return True
            if item.role == "user" and self._has_result(item):
                return True
            if item.role in {"system", "developer"} or (item.role == "user" and not human):
                continue
            return False
        return False

    @lazy
    def tool_calls_in_history(self) -> int:
        """Calls by the model."""
        return len(self._calls)

    @lazy
    def repeated_call(self) -> int:
        """Length of the run of equal calls at the end; 0 without any call."""
        calls = self._calls
        run = 0
        while run < len(calls) and calls[-1 - run] == calls[-1]:
            run += 1
        return run

    @lazy
    def tool_errors_in_a_row(self) -> int:
        """Results at the end of the conversation that are marked as errors or begin like one."""
        count = 0
        for failed in reversed(self._results):
            if not failed:
                break
            count += 1
        return count

    @lazy
    def _calls(self) -> list[tuple[str, str]]:
        calls: list[tuple[str, str]] = []
        for item in self.view.items:
            if item.type in CALL_TYPES:
                calls.append((str(item.name), str(item.arguments)))
            elif item.role == "assistant":
                calls += chat_calls(item)
                if _may_have(item.content, b'"tool_use"'):
                    parts = self._parts(item)
                    calls += [(p.name, bytes(p.input).decode(errors="replace")) for p in parts if p.type == "tool_use"]
        return calls

    @lazy
    def _results(self) -> list[bool]:
        """For each tool result, whether it is an error."""
        results: list[bool] = []
        for item in self.view.items:
            if item.type in RESULT_TYPES:
                results.append(is_error(item.output))
            elif item.role == "tool":
                results.append(is_error(item.content))
            elif item.role == "user" and _may_have(item.content, _TOOL_RESULT):
                parts = [p for p in self._parts(item) if p.type == "tool_result"]
                results += [p.is_error or is_error(p.content) for p in parts]
        return results

    # ---- what it needs ----

    @lazy
    def images(self) -> bool:
        """A part of some message is an image; text that merely looks like one doesn't count."""
        return "image" in self._media[0]

    @lazy
    def audio(self) -> bool:
        """A part of some message is audio, or `modalities` asks for it."""
        wanted = self.view.body.value("modalities") if "modalities" in self.view.body.fields else None
        return (isinstance(wanted, list) and "audio" in wanted) or "audio" in self._media[0]

    @lazy
    def _media(self) -> tuple[set[str], int, int]:
        """Kinds of media in the conversation, how many there are, and their bytes.

        Only lists of parts can hold some, and only lists with a mark are read.
        """
        kinds: set[str] = set()
        count = size = 0
        for item in self.view.items:
            if item.type in MEDIA_KINDS:
                kinds.add(MEDIA_KINDS[item.type])
            for content in (item.content, item.output):
                if content is NULL or not is_list(content):
                    continue
                for kind, length in find_media(content):
                    kinds.add(kind)
                    count += 1
                    size += length
        return kinds, count, size

    @lazy
    def structured_output(self) -> bool:
        """Any of the protocols' ways to force a form on the answer."""
        body = self.view.body
        fields = body.fields
        if _FORM_FIELDS.isdisjoint(fields):
            return False
        if any(n in fields and bytes(fields[n]) != b"null" for n in _FORMS):
            return True
        kinds = {"json_schema", "json_object"}
        if _inner(body.value("response_format"), "type") in kinds or _inner(body.value("output_format"), "type") in kinds:
            return True
        return _inner(body.value("text"), "format", "type") in kinds or (
            _inner(body.value("output_config"), "format", "type") in kinds
        )

    @lazy
    def reasoning_effort(self) -> str:
        """Chat's `reasoning_effort`, Responses' `reasoning.effort`, Messages' `output_config.effort` or thinking on/off."""
        body = self.view.body
        if _EFFORT_FIELDS.isdisjoint(body.fields):
            return ""
        for found in (body.value("reasoning_effort"), _inner(body.value("reasoning"), "effort")):
            if isinstance(found, str):
                return found[:EFFORT_CHARACTERS]
        effort = _inner(body.value("output_config"), "effort")
        if isinstance(effort, str):
            return effort[:EFFORT_CHARACTERS]
        thinking = _inner(body.value("thinking"), "type")
        return {"enabled": "high", "adaptive": "medium", "disabled": "none"}.get(str(thinking), "")

    # ---- the human's ask ----

    @lazy
    def last_human_text(self) -> str:
        """What the human said last, without the harness's additions; the beginning of a long text. Not for policies."""
        view = self.view
        if view.protocol == "responses" and (plain := view.body.text("input")) is not None:
            return clean(plain)
        if view.protocol in {"completions", "embeddings"}:
            found = view.body.value("prompt" if view.protocol == "completions" else "input")
            first = found[0] if isinstance(found, list) and found else found
            return clean(first) if isinstance(first, str) else ""
        for item, human in zip(reversed(view.items), reversed(self._human), strict=True):
            if human and (text := clean(text_of(self._parts(item)))):
                return text
        return ""

    @lazy
    def opening(self) -> bytes:
        """How the conversation begins: system text and first human message as JSON text. Not for policies.

        The same in every turn: a line that changes with each request is left out, and only the beginning of a long
        message counts.
        """
        system = self.view.body.fields.get("system" if self.view.protocol == "messages" else "instructions")
        pieces = [b"" if system is None else BILLING_PART.sub(b"", bytes(system))]
        for item, human in zip(self.view.items, self._human, strict=True):
            if item.role in {"system", "developer"}:
                pieces.append(bytes(item.content))
            elif human:
                pieces.append(bytes(memoryview(item.content)[:SEEN_TEXT_CHARACTERS]))
                break
        if len(pieces) == 1:
            pieces.append(self.last_human_text.encode(errors="replace"))
        return b"\0".join(pieces)

    @lazy
    def system_text(self) -> str:
        """System text of any protocol, without a line that changes with every request. Not for policies."""
        found = self.view.body.fields.get("system" if self.view.protocol == "messages" else "instructions")
        if found is not None:
            return "\n".join(filter(None, (BILLING.sub("", p.text) for p in content_parts(found))))
        first = self.view.items[:1]
        return text_of(self._parts(first[0])) if first and first[0].role in {"system", "developer"} else ""

    @lazy
    def code_share(self) -> float:
        """Share of non-empty lines of the human's last text that look like code."""
        lines = [line for line in map(str.strip, self.last_human_text[:CODE_CHARACTERS].splitlines()) if line]
        return sum(map(looks_like_code, lines)) / len(lines) if lines else 0.0

    @lazy
    def language(self) -> str:
        """The first script found in the human's last text, rarer ones first."""
        return script_of(self.last_human_text[:SCRIPT_CHARACTERS])

    # ---- who asks ----

    @lazy
    def client(self) -> str:
        """From the User-Agent."""
        return client_of(self.view.headers.get("user-agent", ""))

    @lazy
    def request_class(self) -> str:
        """Count and subagent from endpoint and headers; title and compaction from the shape agents give those calls."""
        view = self.view
        headers = view.headers
        if view.counting:
            return "count"
        if not _SUBAGENT_HEADERS.isdisjoint(headers):
            return "subagent"
        if not view.items:
            return "main"
        if (
            self.client in TITLING_CLIENTS
            and self.tools == 0
            and self.turns <= 2  # the ask, and for some clients the text to be titled
            and view.body.size(PROMPT_FIELDS) < 16_000
            and TITLE.search(f"{self.system_text[:2000]}\n{self.last_human_text[:300]}")
        ):
            return "title"
        end = self.last_human_text[-600:]
        if ("conversation" in end or "history" in end) and COMPACTION.search(end):
            return "compaction"
        return "main"

    @lazy
    def protocol(self) -> str:
        """Endpoint family."""
        return self.view.protocol

    @lazy
    def stream(self) -> bool:
        """Whether a stream is wanted."""
        return self.view.stream

    @lazy
    def api_key_name(self) -> str:
        """Which gateway key was used."""
        return self.view.key_name


def _may_have(content: msgspec.Raw, mark: bytes) -> bool:
    """A quick no for most: the content is no list, or a short one without the mark."""
    if not is_list(content):
        return False
    return len(memoryview(content)) > LONG_BYTES or mark in bytes(
        content
    )  # reading the parts of a long one is cheaper than searching it


def _inner(value: Any, *path: str) -> Any:
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value
