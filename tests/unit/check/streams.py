"""Made-up streams of the three protocols, in the shapes that vLLM and llama.cpp give them, with any tool calls in them."""

import json
import random
from dataclasses import dataclass, field, replace

import msgspec
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

SCHEMAS = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"type": "string", "minLength": 2}, "unit": {"enum": ["c", "f"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "write_file": {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}},
            "mode": {"type": ["integer", "null"], "minimum": 0},
        },
        "required": ["path", "lines"],
        "$defs": {"line": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}},
    },
    "list_files": {"type": "object", "properties": {"depth": {"type": "integer"}}},
    "anything": None,
}
GOOD = [
    ("get_weather", '{"city":"Paris"}'),
    ("get_weather", '{\n  "city": "Kraków [DONE]",\n  "unit": "c"\n}'),
    ("write_file", '{"path":"a\\n\\u2028\\"}","lines":[{"text":"{"},{"text":"\\ud83d\\ude00","n":1}],"mode":null}'),
    ("write_file", '{"lines":[],"path":"","mode":420}'),
    ("list_files", "{}"),
    ("list_files", '{"depth":3.0}'),
    ("anything", '{"x":[1,{"y":null}]} '),
]
EMPTY = ("list_files", "")


def tools_of(protocol: str) -> list[dict]:
    described = [{"name": name, **({} if s is None else {"parameters": s})} for name, s in SCHEMAS.items()]
    if protocol == "chat":
        return [{"type": "function", "function": one} for one in described]
    if protocol == "responses":
        return [{"type": "function", "strict": False, **one} for one in described]
    return [{("input_schema" if k == "parameters" else k): v for k, v in one.items()} for one in described]


def fields_of(**fields) -> dict[str, msgspec.Raw]:
    return {name: msgspec.Raw(json.dumps(value).encode()) for name, value in fields.items()}


def is_good(name: str, arguments: str) -> bool:
    """Whether a call may be shown: the same question, answered by other means."""
    if name not in SCHEMAS:
        return False
    try:
        value = json.loads(arguments or "{}", parse_constant=lambda _: 1 / 0)
    except (ValueError, ZeroDivisionError):
        return False
    return isinstance(value, dict) and Draft202012Validator(SCHEMAS[name] or {}).is_valid(value)


@st.composite
def mutated(draw) -> tuple[str, str]:
    """A good call, and one thing that a small model gets wrong in it; now and then it stays good."""
    name, arguments = draw(st.sampled_from(GOOD))
    value = json.loads(arguments)
    match draw(st.sampled_from(["name", "cut", "drop", "type", "extra", "text", "nothing"])):
        case "name":
            return draw(st.sampled_from(["get_wether", "", "functions.get_weather", "<|tool|>", "Get_Weather"])), arguments
        case "cut":
            return name, arguments.strip()[: draw(st.integers(1, len(arguments.strip()) - 1))]
        case "drop" if value:
            value.pop(draw(st.sampled_from(sorted(value))))
        case "type" if value:
            value[draw(st.sampled_from(sorted(value)))] = draw(st.sampled_from([1, "x", None, [], {}, True, -1.5]))
        case "extra":
            value[draw(st.sampled_from(["town", "unit", "x"]))] = draw(st.sampled_from(["c", 1]))
        case "text":
            odd = ["[]", "null", '"{}"', "{", "}", "{}}", "{'city':'Paris'}", '{"city":NaN}', "```json\n{}\n```", "{},", "None"]
            return name, draw(st.sampled_from(odd))
        case "nothing":
            return name, ""
    return name, json.dumps(value)


@dataclass(frozen=True)
class Piece:
    """A run of text or reasoning, or a call."""

    kind: str
    text: str = ""
    name: str = ""

    @property
    def good(self) -> bool:
        return is_good(self.name, self.text)


TEXTS = st.sampled_from(["Let me look.", "\n", "data: [DONE]\n\n", 'Kraków \u2028\u0085 {"tool_calls": [', "a\r\nb"])
SAID = st.builds(Piece, st.sampled_from(["text", "reasoning"]), TEXTS)
GOOD_CALLS = st.sampled_from(GOOD).map(lambda c: Piece("call", c[1], c[0]))
ANY_CALLS = st.one_of(GOOD_CALLS, mutated().map(lambda c: Piece("call", c[1], c[0])))


@dataclass(frozen=True)
class Style:
    """How an engine writes its stream."""

    seed: int = 0
    name: str = "a"
    end: str = "\n"
    comments: bool = False
    usage: bool = True
    done: bool = True
    llama: bool = False  # no numbers and places; ends of all items at the very end
    ids_again: object = "absent"  # in later deltas of a chat call: absent, None, "", or the same again
    finish_with_last: bool = False
    named: bool = False  # finish_reason is stop, as vLLM says for a forced function
    last_line: bool = True  # the last event has its empty line
    input_tokens: int = 100
    output_tokens: int = 20
    finish: str | None = None  # other than what the calls suggest


STYLES = st.builds(
    Style,
    seed=st.integers(0, 1 << 30),
    end=st.sampled_from(["\n", "\n", "\r\n", "\r"]),
    comments=st.booleans(),
    usage=st.booleans(),
    done=st.booleans(),
    llama=st.booleans(),
    ids_again=st.sampled_from(["absent", None, "", "same"]),
    finish_with_last=st.booleans(),
    named=st.booleans(),
    last_line=st.booleans(),
)


@dataclass
class Stream:
    """Events in order.

    Attributes:
        events: their bytes.
        due: for each event, how many events must be out once it came, if all calls before are good.
    """

    style: Style
    events: list[bytes] = field(default_factory=list)
    due: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.style.seed)
        self._open_since: int | None = None

    def add(self, message: dict | str, *, opens: bool = False, closes: bool = False) -> None:
        text = message if isinstance(message, str) else json.dumps(message, ensure_ascii=self.random.random() < 0.5)
        name = f"event: {message['type']}\n" if isinstance(message, dict) and "type" in message else ""
        self._put(f"{name}data: {text}\n\n", opens, closes)
        if self.style.comments and self.random.random() < 0.3:
            self._put(": ping\n\n", False, False)

    def _put(self, text: str, opens: bool, closes: bool) -> None:
        if closes:
            self._open_since = None
        if opens:
            self._open_since = len(self.events)
        self.events.append(text.replace("\n", self.style.end).encode())
        self.due.append(len(self.events) if self._open_since is None else self._open_since)

    def pieces(self, text: str) -> list[str]:
        """A text as an engine's deltas; some of them may be empty."""
        left, found = text, []
        while left:
            size = self.random.choice([0, 1, 2, 3, 5, 8, 100])
            found.append(left[:size])
            left = left[size:]
        return found

    def finished(self) -> "Stream":
        if not self.style.last_line:
            self.events[-1] = self.events[-1][: -len(self.style.end)]
        return self

    @property
    def raw(self) -> bytes:
        return b"".join(self.events)


def make(protocol: str, pieces: list[Piece], style: Style) -> Stream:
    return MAKERS[protocol](pieces, style).finished()


def chat(pieces: list[Piece], style: Style) -> Stream:
    stream = Stream(style)
    calls = [p for p in pieces if p.kind == "call"]
    head = {
        "id": f"chatcmpl-{style.name}",
        "object": "chat.completion.chunk",
        "created": 1796035017,
        "model": f"model-{style.name}",
    }

    def chunk(delta: dict, finish: str | None = None, **how) -> None:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, "token_ids": None}
        stream.add({**head, "choices": [choice]}, **how)

    chunk({"role": "assistant", "content": None if style.llama else ""})
    finish = style.finish or ("tool_calls" if calls and not style.named else "stop")
    index = 0
    for place, piece in enumerate(pieces):
        last = place == len(pieces) - 1 and style.finish_with_last
        if piece.kind != "call":
            name = "content" if piece.kind == "text" else "reasoning"
            for part in stream.pieces(piece.text):
                chunk({name: part}, closes=bool(part))
            continue
        call_id = f"call-{style.name}-{index}"
        parts = stream.pieces(piece.text)
        first = {"index": index, "id": call_id, "type": "function", "function": {"name": piece.name, "arguments": ""}}
        if style.llama and parts:
            first["function"]["arguments"] = parts.pop(0)
        elif style.seed % 2:
            del first["function"]["arguments"]
        deltas = [first]
        for part in parts:
            delta = {"index": index, "function": {"arguments": part}}
            if style.ids_again == "same":
                delta |= {"id": call_id, "function": {"arguments": part, "name": piece.name}}
            elif style.ids_again != "absent":
                delta |= {"id": style.ids_again, "function": {"arguments": part, "name": style.ids_again}}
            deltas.append(delta)
        for i, delta in enumerate(deltas):
            ends = last and i == len(deltas) - 1
            chunk({"content": None, "tool_calls": [delta]}, finish if ends else None, opens=i == 0 and not ends, closes=ends)
        index += 1
    if not (style.finish_with_last and pieces and pieces[-1].kind == "call"):
        chunk({}, finish, closes=True)
    if style.usage:
        usage = {"prompt_tokens": style.input_tokens, "completion_tokens": style.output_tokens}
        usage["total_tokens"] = sum(usage.values())
        stream.add({**head, "choices": [], "usage": {**usage, "prompt_tokens_details": {"cached_tokens": 3}}})
    if style.done:
        stream.add("[DONE]")
    return stream


def messages(pieces: list[Piece], style: Style) -> Stream:
    stream = Stream(style)
    usage = {"input_tokens": style.input_tokens, "output_tokens": 0}
    message = {"id": f"msg-{style.name}", "type": "message", "role": "assistant", "content": [], "model": f"model-{style.name}"}
    stream.add({"type": "message_start", "message": {**message, "stop_reason": None, "usage": usage}})
    stops = []
    calls = 0
    for index, piece in enumerate(pieces):
        is_call = piece.kind == "call"
        if is_call:
            block = {"type": "tool_use", "id": f"toolu-{style.name}-{calls}", "name": piece.name, "input": {}}
            calls += 1
        else:
            kind, word = ("text", "text") if piece.kind == "text" else ("thinking", "thinking")
            block = {"type": kind, word: ""}
        start = {"type": "content_block_start", "index": index, "content_block": block}
        stream.add(start, opens=is_call and not (style.llama and calls > 1))
        if is_call and style.seed % 3 == 0:
            stream.add(
                {"type": "content_block_delta", "index": index, "delta": {"type": "input_json_delta", "partial_json": ""}}
            )
        for part in stream.pieces(piece.text):
            delta = {"type": "input_json_delta", "partial_json": part}
            if not is_call:
                delta = {"type": f"{kind}_delta", word: part}
            stream.add({"type": "content_block_delta", "index": index, "delta": delta})
        stop = {"type": "content_block_stop", "index": index}
        if style.llama:
            stops.append(stop)
        else:
            stream.add(stop, closes=is_call)
    for i, stop in enumerate(stops):
        stream.add(stop, closes=i == len(stops) - 1)
    reason = style.finish or ("tool_use" if calls else "end_turn")
    told = {"output_tokens": style.output_tokens} if style.llama else {**usage, "output_tokens": style.output_tokens}
    stream.add({"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": told}, closes=True)
    stream.add({"type": "message_stop"})
    return stream


def responses(pieces: list[Piece], style: Style) -> Stream:
    stream = Stream(style)
    number = 0

    def add(kind: str, place: int | None = None, **rest) -> None:
        nonlocal number
        how = {name: rest.pop(name) for name in ("opens", "closes") if name in rest}
        message = {"type": kind, **rest}
        if not style.llama:
            message["sequence_number"] = number
            if place is not None:
                message["output_index"] = place
        number += 1
        stream.add(message, **how)

    response = {"id": f"resp_{style.name}", "object": "response", "status": "in_progress"}
    if not style.llama:
        response |= {"created_at": 1796035017, "model": f"model-{style.name}", "output": [], "usage": None}
    add("response.created", response=response)
    add("response.in_progress", response=response)
    output, late, calls = [], [], 0
    for place, piece in enumerate(pieces):
        parts = stream.pieces(piece.text)
        if piece.kind == "call":
            item_id, call_id = f"fc_{style.name}_{place}", f"call_{style.name}_{place}"
            item = {"type": "function_call", "call_id": call_id, "name": piece.name, "arguments": "", "status": "in_progress"}
            if style.llama:
                item["call_id"] = item_id
            else:
                item["id"] = item_id
            add("response.output_item.added", place, item=item, opens=not (style.llama and calls))
            calls += 1
            for part in parts:
                add("response.function_call_arguments.delta", place, item_id=item_id, delta=part)
            whole = {**item, "arguments": piece.text, "status": "completed"}
            output.append(whole)
            if style.llama:
                late.append([("response.output_item.done", {"item": whole})])
            else:
                add("response.function_call_arguments.done", place, item_id=item_id, arguments=piece.text, name=piece.name)
                add("response.output_item.done", place, item=whole, closes=True)
            continue
        item_id = f"msg_{style.name}_{place}"
        if piece.kind == "text":
            item = {"type": "message", "id": item_id, "role": "assistant", "content": [], "status": "in_progress"}
            stem, bare = "output_text", {"type": "output_text", "annotations": [], "text": ""}
        else:
            item = {"type": "reasoning", "id": item_id, "summary": [], "content": [], "status": "in_progress"}
            stem, bare = "reasoning_text", {"type": "reasoning_text", "text": ""}
        at = {"item_id": item_id} if style.llama else {"item_id": item_id, "content_index": 0}
        add("response.output_item.added", place, item=item)
        part_stem = "content_part" if piece.kind == "text" else "reasoning_part"
        add(f"response.{part_stem}.added", place, **at, part=bare)
        for part in parts:
            add(f"response.{stem}.delta", place, **at, delta=part)
        whole = {**item, "content": [{**bare, "text": piece.text}], "status": "completed"}
        output.append(whole)
        ends = [
            (f"response.{stem}.done", {**at, "text": piece.text}),
            (f"response.{part_stem}.done", {**at, "part": {**bare, "text": piece.text}}),
            ("response.output_item.done", {"item": whole}),
        ]
        if style.llama:
            late.append(ends)
        else:
            for kind, rest in ends:
                add(kind, place, **rest)
    for i, ends in enumerate(late):
        for kind, rest in ends:
            add(kind, None, **rest, closes=i == len(late) - 1)
    usage = {"input_tokens": style.input_tokens, "output_tokens": style.output_tokens}
    usage |= {"total_tokens": sum(usage.values()), "output_tokens_details": {"reasoning_tokens": 1, "per_turn": []}}
    end = {**response, "created_at": 1796035018, "model": f"model-{style.name}", "status": "completed", "output": output}
    add("response.completed", response={**end, "usage": usage}, closes=True)
    return stream


MAKERS = {"chat": chat, "messages": messages, "responses": responses}


def second_style(style: Style) -> Style:
    return replace(style, name="b", input_tokens=1000, output_tokens=300)
