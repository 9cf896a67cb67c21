"""Which calls pass for which expected ones."""

from __future__ import annotations

from typing import Any

import pytest

from switchyard.evals.function_calls import FunctionCalls, read_calls
from switchyard.evals.match import mismatch


def call(**arguments: Any) -> list[tuple[str, Any]]:
    return [("book", arguments)]


def expected(**parameters: list[Any]) -> list[dict[str, dict[str, list[Any]]]]:
    return [{"book": parameters}]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (call(city="New York"), expected(city=["new york"])),
        (call(city="St. Gallen"), expected(city=["St Gallen"])),
        (call(n=3), expected(n=[3.0])),
        (call(n=3.0), expected(n=[3])),
        (call(flag=True), expected(flag=[True])),
        (call(), expected(unit=["celsius", ""])),
        (call(unit="celsius"), expected(unit=["celsius", ""])),
        (call(days=["Mon", "tue"]), expected(days=[["mon", "tue"]])),
        (call(slot={"start": "10:00"}), expected(slot=[{"start": ["10:00"], "note": [""]}])),
        (call(lines=[{"n": 1}, {"n": 2}]), expected(lines=[[{"n": 1}, {"n": 2}]])),
        (call(x=None), expected(x=[None])),
        ([], []),
    ],
)
def test_they_match(given: list[tuple[str, Any]], wanted: Any) -> None:
    assert mismatch(given, wanted) == ""


@pytest.mark.parametrize(
    ("given", "wanted", "why"),
    [
        (call(city="Newark"), expected(city=["New York"]), "right would be"),
        (call(), expected(city=["Bern"]), "city is missing"),
        (call(city="Bern", extra=1), expected(city=["Bern"]), "extra was not asked for"),
        (call(n="3"), expected(n=[3]), "n is"),
        (call(n=True), expected(n=[1]), "n is"),
        (call(flag="true"), expected(flag=[True]), "flag is"),
        (call(days=["tue", "mon"]), expected(days=[["mon", "tue"]]), "days is"),
        (call(days=["mon"]), expected(days=[["mon", "tue"]]), "days is"),
        (call(slot={"start": "10:00", "x": 1}), expected(slot=[{"start": ["10:00"]}]), "slot is"),
        (call(slot={}), expected(slot=[{"start": ["10:00"]}]), "slot is"),
        ([("cancel", {})], expected(), "not book"),
        ([("book", '{"city": ')], expected(city=["Bern"]), "no JSON object"),
        ([], expected(), "made no call"),
        (call(), [], "no function fits"),
        (call() * 2, expected(), "made 2 calls"),
    ],
)
def test_they_do_not(given: list[tuple[str, Any]], wanted: Any, why: str) -> None:
    assert why in mismatch(given, wanted)


def test_parallel_calls_in_any_order() -> None:
    wanted = [{"book": {"city": ["Bern", "Basel"]}}, {"book": {"city": ["Bern"]}}]
    assert mismatch([("book", {"city": "Bern"}), ("book", {"city": "Basel"})], wanted) == "", "the first must take the second"
    assert mismatch([("book", {"city": "Basel"}), ("book", {"city": "Bern"})], wanted) == ""
    assert mismatch([("book", {"city": "Basel"}), ("book", {"city": "Basel"})], wanted) == "two calls fit the same expected one"


def test_reading_calls() -> None:
    made = [
        {"function": {"name": "a", "arguments": '{"x": 1}'}}, {"function": {"name": "b", "arguments": '{"x":'}},
        {"function": {"name": "c", "arguments": None}}, {"function": {"name": "d", "arguments": {"y": 2}}}, {"odd": 1},
    ]  # fmt: skip
    assert read_calls({"tool_calls": made}) == [("a", {"x": 1}), ("b", '{"x":'), ("c", {}), ("d", {"y": 2})]
    assert read_calls({"content": "no"}) == read_calls({"tool_calls": None}) == []


def test_every_shipped_case_can_be_passed_and_failed() -> None:
    suite = FunctionCalls()
    assert len(suite.cases) >= 200
    for case in suite.cases:
        right = suite.right_answer(case.id)
        wanted = suite._questions[case.id].expected
        assert mismatch(right, wanted) == "", case.id
        assert mismatch([*right, ("nothing_like_it", {})], wanted), case.id
        assert mismatch([], wanted) or not wanted, case.id
