"""Keys are set in files of any style, and everything else in them stays as it is."""

from __future__ import annotations

import difflib

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from switchyard.config.edit import NotEditable, set_keys

FLOW = """\
# the machines
nodes:   # two of them
  - {name: s1, mgmt: 10.0.0.1}   # left rack
  - {name: s2, mgmt: 10.0.0.2, state: cordoned}
pools: {}
"""
BLOCK = """\
nodes:
  - name: s1            # left rack
    mgmt: 10.0.0.1      # its address

  # the second
  - name: s2
    state: active
    mgmt: 10.0.0.2
"""
LENT = {"state": "lent", "owner": "anna", "until": "2026-12-01T18:00:00+01:00"}
BACK = dict.fromkeys(("state", "owner", "until"))


def changed(before: str, after: str) -> list[str]:
    return [line for line in difflib.ndiff(before.splitlines(), after.splitlines()) if line[0] in "+-"]


def test_flow_style() -> None:
    text = set_keys(FLOW, ("nodes", 0), LENT)
    assert changed(FLOW, text) == [
        "-   - {name: s1, mgmt: 10.0.0.1}   # left rack",
        '+   - {name: s1, mgmt: 10.0.0.1, state: lent, owner: anna, until: "2026-12-01T18:00:00+01:00"}   # left rack',
    ]
    assert set_keys(text, ("nodes", 0), BACK) == FLOW


def test_block_style() -> None:
    text = set_keys(BLOCK, ("nodes", 0), LENT)
    assert changed(BLOCK, text) == [
        "+     state: lent", "+     owner: anna", '+     until: "2026-12-01T18:00:00+01:00"',
    ]  # fmt: skip
    assert set_keys(text, ("nodes", 0), BACK) == BLOCK


def test_a_value_that_is_there_is_exchanged() -> None:
    assert "state: lent}" in set_keys(FLOW, ("nodes", 1), {"state": "lent"})
    assert "    state: lent\n    mgmt" in set_keys(BLOCK, ("nodes", 1), {"state": "lent"})
    assert "state" not in set_keys(BLOCK, ("nodes", 1), {"state": None})


def test_first_key_and_only_key_are_taken_out() -> None:
    assert set_keys("a: {x: y, z: w}\n", ("a",), {"x": None}) == "a: {z: w}\n"
    assert set_keys("a: {x: y}\n", ("a",), {"x": None}) == "a: {}\n"
    assert yaml.safe_load(set_keys("- x: y\n  z: w\n", (0,), {"x": None})) == [{"z": "w"}]


def test_odd_styles_are_refused() -> None:
    with pytest.raises(NotEditable, match="by hand: state: lent"):
        set_keys(
            "nodes:\n  - &one\n    name: s1\n    note: |\n      two\n      lines\n  - *one\n", ("nodes", 0), {"state": "lent"}
        )


words = st.text("abc: #'\"{}[],-", max_size=8)
entries = st.dictionaries(st.sampled_from(["name", "mgmt", "state", "owner"]), words, min_size=1)


@given(
    st.lists(entries, min_size=1, max_size=3),
    st.booleans(),
    st.dictionaries(st.sampled_from(["state", "owner"]), st.none() | words),
)
def test_what_is_meant_is_what_is_there(nodes: list[dict[str, str]], flow: bool, values: dict[str, str | None]) -> None:
    source = yaml.safe_dump({"nodes": nodes, "after": 1}, default_flow_style=flow, sort_keys=False, width=1000)
    try:
        text = set_keys(source, ("nodes", len(nodes) - 1), values)
    except NotEditable:
        return
    expected = {**nodes[-1], **{k: v for k, v in values.items() if v is not None}}
    for key, value in values.items():
        if value is None:
            expected.pop(key, None)
    assert yaml.safe_load(text) == {"nodes": [*nodes[:-1], expected], "after": 1}
