"""Changing single values of a policy's text: every other byte stays."""

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from switchyard.config.edit import CannotEdit, set_value
from switchyard.config.load import parse_policy
from switchyard.config.problem import PolicyError

SHIPPED = sorted((Path(__file__).parents[3] / "policies").glob("*.yaml"))
TEXT = """\
# a policy
version: 1
pools:
  small: {model: s, replicas: [http://127.0.0.1:8001]}   # small
  big:   {model: b, replicas: [http://127.0.0.1:8002]}

routes:
  auto:
    classify:
      - type: embedded    # in process

      # the judge
      - {type: model, pool: small}
    choose:
      - p_at_least: 0.62  # a threshold
        use: small
      - {use: big}        # the rest
    # trailing words

  # about other
  other: {classify: [{type: embedded}], choose: [{p_at_least: 0.5, use: small}, {use: big}]}
"""
AUTO = ("routes", "auto")


def changed_lines(before: str, after: str) -> list[str]:
    kept = before.splitlines()
    return [line for line in after.splitlines() if line not in kept]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.name)
def test_a_threshold_of_a_shipped_policy(path):
    before = path.read_text()
    for name, route in (yaml.safe_load(before).get("routes") or {}).items():
        for i, step in enumerate(route.get("choose", ())):
            if "p_at_least" in step:
                after = set_value(before, ("routes", name, "choose", i, "p_at_least"), 0.1234)
                at = after.index("0.1234")
                assert len(re.findall(r"0\.1234", after)) == 1
                old = str(step["p_at_least"])
                assert after[:at] + old + after[at + 6 :] == before
                assert parse_policy(after.encode()).routes[name].choose[i].p_at_least == 0.1234


def test_keys_are_replaced_and_added_in_every_style():
    after = set_value(TEXT, (*AUTO, "choose", 0, "p_at_least"), 0.7)
    assert changed_lines(TEXT, after) == ["      - p_at_least: 0.7  # a threshold"]
    after = set_value(TEXT, (*AUTO, "classify", 0, "scale"), 0.9)
    assert "      - type: embedded    # in process\n        scale: 0.9\n\n      # the judge\n" in after
    after = set_value(TEXT, (*AUTO, "classify", 1, "bias"), -0.25)
    assert changed_lines(TEXT, after) == ["      - {type: model, pool: small, bias: -0.25}"]
    after = set_value(TEXT, ("routes", "other", "classify", 0, "weights"), "my head.json")
    assert "{classify: [{type: embedded, weights: my head.json}], choose" in after


def test_a_block_is_added_behind_the_last_entry_and_then_replaced():
    block = {"suite": "a: b", "cases": 92, "interval": [-1.5, 2.0], "hash": {"pools": "12e4"}}
    after = set_value(TEXT, (*AUTO, "evaluated"), block)
    lines = after.splitlines()
    at = lines.index("    evaluated:")
    assert lines[at - 1] == "      - {use: big}        # the rest"
    assert lines[at + 1 : at + 5] == [
        '      suite: "a: b"', "      cases: 92", "      interval: [-1.5, 2.0]", '      hash: {pools: "12e4"}',
    ]  # fmt: skip
    assert "\n".join(lines[:at] + lines[at + 5 :]) + "\n" == TEXT
    again = set_value(after, (*AUTO, "evaluated"), block | {"cases": 93})
    assert changed_lines(after, again) == ["      cases: 93"]
    assert "evaluated: {suite: " in set_value(TEXT, ("routes", "other", "evaluated"), block)


def test_line_ends_and_a_missing_last_one_stay():
    windows = TEXT.replace("\n", "\r\n")
    assert set_value(windows, (*AUTO, "choose", 0, "p_at_least"), 0.7) == windows.replace("0.62", "0.7")
    added = set_value(windows, (*AUTO, "classify", 0, "scale"), 0.9)
    assert added.replace("        scale: 0.9\r\n", "") == windows
    assert set_value("a:\n  b: 1", ("a", "c"), 2) == "a:\n  b: 1\n  c: 2\n"


@given(st.floats(0, 1), st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=20))
def test_any_number_and_any_comment_in_any_script(number, comment):
    text = TEXT.replace("# a policy", f"# {comment}").replace("# a threshold", f"# {comment}")
    try:
        parse_policy(text.encode())
    except PolicyError:  # characters that YAML takes for the end of a line
        return
    after = set_value(text, (*AUTO, "choose", 0, "p_at_least"), number)
    head, tail = text.split("0.62")
    assert after.startswith(head)
    assert after.endswith(tail)
    assert parse_policy(after.encode()).routes["auto"].choose[0].p_at_least == number  # scores lie close together near 0 and 1


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=20))
def test_any_text_comes_back_as_it_was(value):
    after = set_value("a: {b: 1}\nc: 2\n", ("a", "d"), value)
    assert yaml.safe_load(after) == {"a": {"b": 1, "d": value}, "c": 2}


@pytest.mark.parametrize(
    ("text", "path", "why"),
    [
        ("a: &x {b: 1}\nc: *x\n", ("c", "b"), "can't be changed alone"),
        ("a: {b: ${B:-1}}\n".replace("${B:-1}", '"${B:-1}"'), ("a", "b"), "comes from the environment"),
        ("a: {b: 1}\n", ("x", "b"), "there is no x"),
        ("a: [1]\n", ("a", 3, "b"), r"there is no a\[3\]"),
        ("a: 1\n", ("a", "b"), "no block of keys"),
        ("a: {}\n", ("a", "b"), "empty block"),
    ],
)
def test_what_cannot_be_changed_alone_is_said(text, path, why):
    with pytest.raises(CannotEdit, match=why):
        set_value(text, path, 2)
