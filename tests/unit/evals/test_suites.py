"""Suites: which cases, which errors for bad files, which grades."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from switchyard.evals.function_calls import FunctionCalls
from switchyard.evals.grade import make_grader
from switchyard.evals.prompts import Prompts
from switchyard.evals.suite import BadSuite, Case, check_ids, select
from switchyard.evals.suites import load_suite

ROOT = Path(__file__).parents[3]


def ids(suite: Any, wanted: str) -> list[str]:
    return [case.id for case in select(suite, wanted)]


def test_tool_use_runs_92_of_its_97_cases() -> None:
    suite = load_suite("tool-use")
    assert suite.version == "tool-eval-bench 3.0.0"
    assert ids(suite, "") == [f"TC-{n:02}" for n in range(1, 93)]
    assert len(ids(suite, "all")) == 97
    assert ids(suite, "TC-90..TC-94,TC-0[12]") == ["TC-01", "TC-02", "TC-90", "TC-91", "TC-92", "TC-93", "TC-94"]
    with pytest.raises(BadSuite, match="no case 'TC-99'; its ids go from TC-01 to TC-97"):
        select(suite, "TC-99")
    with pytest.raises(BadSuite, match="takes no file"):
        load_suite("tool-use:x")


def test_unknown_suites() -> None:
    with pytest.raises(BadSuite, match="there is no suite 'bfcl'; there are tool-use"):
        load_suite("bfcl")
    with pytest.raises(BadSuite, match=r"prompts:FILE\.jsonl"):
        load_suite("prompts")


@pytest.mark.parametrize("bad", ["", "a b", "x" * 65, "ä", "a#b"])
def test_ids_that_cannot_travel_in_a_header(bad: str) -> None:
    with pytest.raises(BadSuite, match="is not 1 to 64"):
        check_ids([Case(bad, "c")], "f")


@pytest.mark.parametrize("odd", ["\u2028", "\u2029", "\x85"])
def test_what_python_takes_for_ends_of_lines_is_text_in_json(tmp_path: Path, odd: str) -> None:
    text = json.dumps({"id": "a", "prompt": f"x{odd}y", "grader": {"type": "exact", "answer": "z"}}, ensure_ascii=False)
    bfcl(tmp_path, "x.json", [json.dumps(QUESTION | {"note": odd}, ensure_ascii=False)], [ANSWER])
    assert len(FunctionCalls(tmp_path).cases) == 1
    file = tmp_path / "prompts.jsonl"
    file.write_text(text, "utf-8")
    assert [case.id for case in Prompts(file).cases] == ["a"]


def test_a_suite_that_is_no_utf_8(tmp_path: Path) -> None:
    bfcl(tmp_path, "x.json", [], [])
    (tmp_path / "x.json").write_bytes(b"\xff\n")
    with pytest.raises(BadSuite, match="no UTF-8"):
        FunctionCalls(tmp_path)
    with pytest.raises(BadSuite, match="no UTF-8"):
        Prompts(tmp_path / "x.json")


def test_ids_twice_and_none() -> None:
    with pytest.raises(BadSuite, match="two cases"):
        check_ids([Case("a", "c")] * 2, "f")
    with pytest.raises(BadSuite, match="no cases"):
        check_ids([], "f")


# ---- function calls ----


def bfcl(folder: Path, name: str, questions: list[Any], answers: list[Any] | None) -> Path:
    (folder / "possible_answer").mkdir(exist_ok=True)
    (folder / name).write_text("\n".join(q if isinstance(q, str) else json.dumps(q) for q in questions))
    if answers is not None:
        (folder / "possible_answer" / name).write_text("\n".join(map(json.dumps, answers)))
    return folder


FUNCTION = {
    "name": "math.hypot",
    "description": "Long side.",
    "parameters": {
        "type": "dict",
        "properties": {
            "a": {"type": "float"}, "b": {"type": "tuple", "items": {"type": "any"}},
            "c": {"type": "dict", "properties": {"type": {"type": "String"}}},
        },
        "required": ["a"],
    },
}  # fmt: skip
QUESTION = {"id": "simple_python_7", "question": [[{"role": "user", "content": "Hypot?"}]], "function": FUNCTION}
ANSWER = {"id": "simple_python_7", "ground_truth": [{"math.hypot": {"a": [1.5], "b": [""]}}]}


def test_bfcl_files(tmp_path: Path) -> None:
    suite = FunctionCalls(bfcl(tmp_path, "BFCL_v4_simple_python.json", [QUESTION], [ANSWER]))
    assert suite.cases == [Case("simple_python_7", "simple_python")]
    (tool,) = suite._questions["simple_python_7"].tools
    assert tool["function"]["name"] == "math_hypot", "tools can't have dots in their names"
    parameters = tool["function"]["parameters"]
    assert parameters["type"] == "object"
    assert parameters["properties"]["a"] == {"type": "number"}
    assert parameters["properties"]["b"] == {"type": "array", "items": {}}
    assert parameters["properties"]["c"]["properties"] == {"type": {"type": "string"}}, "a parameter may be called type"
    assert suite.right_answer("simple_python_7") == [("math_hypot", {"a": 1.5})]
    assert suite.version != FunctionCalls().version


@pytest.mark.parametrize(
    ("questions", "answers", "why"),
    [
        (["{"], [], "x.json:1: no JSON"),
        (["[]"], [], "object with an id"),
        (['{"id": "a", "question": [[]], "function": {"default": NaN}}'], [], "NaN is no JSON"),
        ([{"id": "a"}], [], "not a BFCL case"),
        ([QUESTION | {"question": [[], []]}], [ANSWER], "2 turns"),
        ([QUESTION], [], "has no answer for simple_python_7"),
        ([QUESTION], None, "has no answers"),
        ([QUESTION], [ANSWER | {"ground_truth": [{"other": {}}]}], "calls other, which it isn't given"),
        ([QUESTION, QUESTION], [ANSWER], "two cases"),
    ],
)
def test_bad_bfcl_files(tmp_path: Path, questions: list[Any], answers: list[Any] | None, why: str) -> None:
    with pytest.raises(BadSuite, match=why.replace("(", r"\(")):
        FunctionCalls(bfcl(tmp_path, "x.json", questions, answers))


def test_no_answers_are_right_only_for_irrelevance(tmp_path: Path) -> None:
    suite = FunctionCalls(bfcl(tmp_path, "irrelevance.json", [QUESTION | {"id": "irrelevance_0"}], None))
    assert suite.right_answer("irrelevance_0") == []


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadSuite, match="there is no"):
        FunctionCalls(tmp_path / "nothing")


# ---- prompts ----


def prompts(folder: Path, *lines: Any) -> Prompts:
    file = folder / "p.jsonl"
    file.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return Prompts(file)


GOOD = {"id": "a", "prompt": "Two and two?", "grader": {"type": "exact", "answer": "4"}}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "p.jsonl:1: no JSON"),
        ("[]", "an object is expected"),
        (GOOD | {"promt": 1}, "unknown keys promt; there are body"),
        (GOOD | {"id": 3}, "id is missing"),
        (GOOD | {"messages": []}, "exactly one of prompt and messages"),
        ({"id": "a", "grader": {}, "messages": "hello"}, "messages is no list of objects"),
        ({"id": "a", "grader": {}, "messages": []}, "messages is no list of objects"),
        (GOOD | {"prompt": 4}, "prompt and system are texts"),
        (GOOD | {"body": [1]}, "body is an object"),
        (GOOD | {"body": {"stream": True}}, "without messages, model, stream"),
        ('{"id": "a", "prompt": "x", "grader": {}, "body": {"temperature": NaN}}', "NaN is no JSON"),
        ({"id": "a", "prompt": "x"}, "grader is missing"),
        (GOOD | {"grader": {"type": "vibes"}}, "no grader of type 'vibes'; there are exact"),
        (GOOD | {"grader": {"type": "exact"}}, "can't be made"),
        (GOOD | {"grader": {"type": "regex", "pattern": "("}}, "can't be made"),
        (GOOD | {"grader": {"type": "json_schema", "schema": {"type": "objekt"}}}, "can't be made"),
        (GOOD | {"grader": {"type": "python", "callable": "gone.py:check"}}, "there is no"),
        (GOOD | {"grader": {"type": "python", "callable": "json:nothing"}}, "has no function 'nothing'"),
        (GOOD | {"grader": {"type": "python", "callable": "nobody_has_this:f"}}, "can't be made: ModuleNotFoundError"),
    ],
)
def test_bad_prompts(tmp_path: Path, line: Any, why: str) -> None:
    with pytest.raises(BadSuite, match=why.replace(".", r"\.")):
        prompts(tmp_path, line)


def test_a_grader_s_file_that_can_t_be_read_in(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def check(answer, line) return")
    with pytest.raises(BadSuite, match="python grader can't be made: SyntaxError"):
        prompts(tmp_path, GOOD | {"grader": {"type": "python", "callable": "broken.py:check"}})


def test_good_prompts(tmp_path: Path) -> None:
    suite = prompts(tmp_path, GOOD, "", GOOD | {"id": "b", "category": "sums"})
    assert suite.cases == [Case("a", "prompts"), Case("b", "sums")]


def test_the_example_can_be_read() -> None:
    assert len(Prompts(ROOT / "evals" / "prompts" / "example.jsonl").cases) >= 6


@pytest.mark.parametrize(
    ("spec", "good", "bad"),
    [
        ({"type": "exact", "answer": ["Paris", "paris, france"]}, ["paris", " Paris. "], ["Parisian", ""]),
        ({"type": "exact", "answer": "pH", "case": True}, ["pH"], ["ph"]),
        ({"type": "regex", "pattern": r"\b42\b"}, ["it is 42!"], ["421", ""]),
        ({"type": "regex", "pattern": "sorry", "absent": True}, ["fine"], ["I am sorry"]),
        (
            {"type": "json_schema", "schema": {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}},
            ['{"n": 1}', '```json\n{"n": 1}\n```'], ['{"n": 1.5}', "{}", "n is 1"],
        ),
    ],
)  # fmt: skip
def test_graders(spec: dict[str, Any], good: list[str], bad: list[str]) -> None:
    grade = make_grader(spec, "x:1", Path())
    assert [grade(text, {}).state for text in good] == ["pass"] * len(good)
    assert [grade(text, {}).state for text in bad] == ["fail"] * len(bad)


def test_python_graders(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def check(answer, line):\n"
        "    return {'yes': True, 'no': False, 'half': 0.5, 'hm': None, 'odd': 7}[answer] if answer != 'bang' else 1 / 0\n"
    )
    grade = make_grader({"type": "python", "callable": "mine.py:check"}, "x:1", tmp_path)
    states = {text: grade(text, {}).state for text in ("yes", "no", "half", "hm", "odd", "bang")}
    assert states == {
        "yes": "pass", "no": "fail", "half": "partial", "hm": "unscored", "odd": "unscored", "bang": "unscored"
    }  # fmt: skip
    assert grade("half", {}).score == 0.5
    assert "ZeroDivisionError" in grade("bang", {}).detail
