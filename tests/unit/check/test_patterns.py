"""Patterns of a schema: run when they are surely quick, left undecided otherwise."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.check.patterns import MAX_WORK, search, work_of


@pytest.mark.parametrize(
    ("pattern", "length"),
    [
        (r"^[a-z0-9_-]{1,64}$", 64), (r"^\d{4}-\d{2}-\d{2}$", 10), (r"^[^@\s]+@[^@\s]+\.[a-z]{2,}$", 20),
        (r"^https?://", 5000), (r"^#[0-9a-fA-F]{6}$", 7), (r"^(red|green|blue)$", 5), (r"^-?\d+(\.\d+)?$", 12),
        ("", 10), ("^$", 0), (r"\.py$", 400), (r"^\S+$", 100_000), (r"^[]a-]+$", 100),
    ],
)  # fmt: skip
def test_usual_ones_are_run(pattern, length):
    assert work_of(pattern, length) is not None


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$", "(a|aa)*$", "(?:a*)*b", "(a{1,9}){1,9}$", r"(a)\1", "(?=a)a", "(?i)a", "(?P<n>a)", "a*a*a*a*b", "(", "[",
        "a**", r"\p{L}", "[](]+)+", "[^](]+)+", "a" * 600, "(a|b)" * 30, "a{0,400}b{0,400}c{0,400}", "^a|b*c*d*e*", "(a+)?+",
        "a{99999999999}",
    ],
)  # fmt: skip
def test_slow_and_strange_ones_are_not(pattern):
    assert work_of(pattern, 200) is None


@pytest.mark.filterwarnings("error")
def test_a_pattern_that_python_warns_about_is_no_error():
    assert work_of("[[a]+", 5) is not None


@given(st.text(r"ab(|)[]*+?{}1,\^$.:", max_size=14), st.text("ab", max_size=30))
def test_nothing_raises_and_what_runs_is_what_python_finds(pattern, text):
    work = work_of(pattern, len(text))
    assert work is None or (work <= MAX_WORK and search(pattern, text) == bool(re.search(pattern, text)))
