"""Bytes grown from good inputs by cutting, doubling and putting in what matters; see targets.py for what must hold."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .kept import KEPT, Kept
from .seeds import CHOICES, SEEDS
from .targets import TARGETS

EXAMPLES = 400
SHAPES = [
    b"%b",
    b'[{"role":"user","content":%b}]',
    b'[{"role":"user","content":[{"content":%b}]}]',
    b'[{"role":"assistant","tool_calls":%b}]',
    b'[{"type":"function_call_output","output":[%b]}]',
]


def grown(name: str) -> st.SearchStrategy[bytes]:
    """Inputs of a target."""
    seeds, tokens = SEEDS[name]
    edit = st.tuples(
        st.sampled_from(["put", "cut", "replace", "double", "byte"]), st.integers(0, 4095), st.sampled_from(tokens)
    )
    made = st.builds(_edited, st.sampled_from(seeds), st.lists(edit, max_size=6))
    front = st.binary(min_size=CHOICES[name], max_size=CHOICES[name])
    return st.builds(bytes.__add__, front, made | st.binary(max_size=200))


def _edited(seed: bytes, edits: list[tuple[str, int, bytes]]) -> bytes:
    data = seed
    for kind, place, token in edits:
        at = place % (len(data) + 1)
        length = 1 + place % 17
        match kind:
            case "put":
                data = data[:at] + token + data[at:]
            case "cut":
                data = data[:at] + data[at + length :]
            case "replace":
                data = data[:at] + token + data[at + len(token) :]
            case "double":
                data = data[:at] + data[at : at + 4 * length] + data[at:]
            case _:
                data = data[:at] + bytes([place % 256]) + data[at + 1 :]
    return data


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_holds_for_any_bytes(name: str) -> None:
    @settings(max_examples=EXAMPLES)
    @given(grown(name))
    def hold(data: bytes) -> None:
        TARGETS[name](data)

    hold()


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_holds_for_good_inputs(name: str) -> None:
    for seed in SEEDS[name][0]:
        for flags in range(64):
            TARGETS[name](bytes([flags, *[flags * 5 % 251] * (CHOICES[name] - 1)]) + seed)


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: kept.name)
def test_holds_for_what_once_failed(kept: Kept) -> None:
    TARGETS[kept.target](kept.data)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("key", [b'"messages"', b'"\\ud800":0,"input"', b'"metadata"', b'"tools"'])
def test_holds_at_any_depth(key: bytes, shape: bytes) -> None:
    """Where the decoder's limit lies depends on who calls it: nothing but a refusal comes of it anywhere."""
    protocol = b"\x03" if b"input" in key else b"\x00"  # responses or chat
    for depth in (*range(950, 1006), 5000):
        TARGETS["body"](protocol + b"\x00{" + key + b":" + shape % (b"[" * depth + b"]" * depth) + b"}")
