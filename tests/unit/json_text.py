"""Hypothesis strategies for JSON as text, in all the spellings that a client may choose."""

import json
from dataclasses import dataclass
from itertools import cycle

from hypothesis import strategies as st

SPACE = st.sampled_from([b"", b"", b"", b" ", b"\n", b"\t", b"\r\n  "])
NUMBERS = st.sampled_from(
    [
        "0",
        "-0",
        "1.0",
        "-1.50",
        "1e999",
        "1E+5",
        "-2e-7",
        "123456789012345678901234567890",
        "0.1000000000000000055511151231257827",
    ]
) | st.integers().map(str)
NAMES = ["model", "messages", "stream", "max_tokens", "a", "", "x y", "näme", 'q"uote', "back\\slash", "}{][,:"]


def _spell(char: str, how: int) -> str:
    short = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "/": "\\/"}
    if how == 0 and char not in '"\\' and char >= " " and not 0xD800 <= ord(char) < 0xE000:
        return char
    if how == 1 and char in short:
        return short[char]
    return "".join(f"\\u{unit:04x}" for unit in memoryview(char.encode("utf-16-le", "surrogatepass")).cast("H"))


def spelled(text: st.SearchStrategy[str]) -> st.SearchStrategy[bytes]:
    """A text as a JSON string: each character as it is or escaped; lone halves of surrogate pairs are always escaped."""
    ways = st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 2))
    return st.builds(lambda chars, how: ('"' + "".join(map(_spell, chars, cycle(how))) + '"').encode(), text, ways)


CHARACTERS = st.characters() | st.sampled_from('\ud83d\ude00"\\\n/{}[],:')
STRINGS = spelled(st.text(CHARACTERS, max_size=12))
SCALARS = STRINGS | NUMBERS.map(str.encode) | st.sampled_from([b"true", b"false", b"null", b"[]", b"{}", b"{ }", b"[\n]"])
PAIRS = st.tuples(STRINGS, SPACE, SPACE)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(st.tuples(SPACE, inner, SPACE), max_size=3).map(lambda v: b"[" + b",".join(map(b"".join, v)) + b"]")
        | st.lists(st.tuples(PAIRS, inner), max_size=3).map(
            lambda v: b"{" + b",".join(key + left + b":" + right + value for (key, left, right), value in v) + b"}"
        )
    ),
    max_leaves=8,
)


@dataclass(frozen=True)
class Text:
    """A JSON object as bytes, and where its values stand, by the meaning of their keys."""

    raw: bytes
    spans: dict[str, tuple[int, int]]


def meaning(key: bytes) -> str:
    """The name that a spelled key stands for; a lone half of a surrogate pair is shown as U+FFFD."""
    return json.loads(key).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


FIELD = st.tuples(SPACE, spelled(st.sampled_from(NAMES) | st.text(CHARACTERS, max_size=4)), SPACE, SPACE, VALUES, SPACE)
FIELDS = st.lists(FIELD, max_size=6, unique_by=lambda field: meaning(field[1]))


def write(fields: list[tuple[bytes, ...]], before: bytes = b"", after: bytes = b"") -> Text:
    raw, spans = bytearray(before + b"{"), {}
    for i, (space, key, left, right, value, end) in enumerate(fields):
        raw += (b"," if i else b"") + space + key + left + b":" + right
        spans[meaning(key)] = (len(raw), len(raw) + len(value))
        raw += value + end
    return Text(bytes(raw + b"}" + after), spans)


OBJECTS = st.builds(write, FIELDS, SPACE, SPACE)
