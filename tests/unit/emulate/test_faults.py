"""Faults as they are written on a command line."""

import pytest

from switchyard.emulate.faults import KINDS, Fault, make_fault, parse_fault


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("qwen-2=kill", ("qwen-2", 0.0, Fault("kill"))),
        ("qwen-2=kill@600+120", ("qwen-2", 600.0, Fault("kill", 120.0))),
        ("a=slow:3@1.5", ("a", 1.5, Fault("slow", 0.0, 3.0))),
        ("a=hang+5", ("a", 0.0, Fault("hang", 5.0))),
    ],
)
def test_readable(text, expected):
    assert parse_fault(text) == expected


@pytest.mark.parametrize(
    "text", ["", "qwen", "qwen=", "qwen=explode", "=kill", "a=slow:0", "a=kill@x", "a=slow:1.2.3", "a=kill+5@3"]
)
def test_unreadable_says_what_is_expected(text):
    with pytest.raises(ValueError, match="expected REPLICA=KIND"):
        parse_fault(text)


def test_kinds_are_named():
    with pytest.raises(ValueError, match=", ".join(KINDS)):
        make_fault("explode")
    with pytest.raises(ValueError, match="negative"):
        make_fault("kill", -1)
