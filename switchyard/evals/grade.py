"""Graders for the suite `prompts`: from the text of an answer to a grade.

A grader that can't judge (no JSON Schema package, a callable that raises) leaves the trial unscored: that says nothing about
the model.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from switchyard.evals.suite import BadSuite, Graded
from switchyard.evals.verdict import State

Grader = Callable[[str, Mapping[str, Any]], Graded]
"""Takes the answer's text and the case's line."""


def make_grader(spec: Mapping[str, Any], where: str, folder: Path) -> Grader:
    """The grader that a line of a suite names.

    Args:
        spec: {"type": exact | regex | json_schema | python, ...}.
        where: file and line, for messages.
        folder: of the suite; Python files are found from there.

    Raises:
        BadSuite: there is no such grader, or it lacks something.
    """
    makers: dict[str, Callable[[Mapping[str, Any], Path], Grader]] = {
        "exact": _exact, "regex": _regex, "json_schema": _json_schema, "python": _python,
    }  # fmt: skip
    kind = str(spec.get("type"))
    if kind not in makers:
        raise BadSuite(f"{where}: there is no grader of type {kind!r}; there are {', '.join(makers)}")
    try:
        return makers[kind](spec, folder)
    except BadSuite:
        raise
    except Exception as error:  # noqa: BLE001 (a user's module may raise anything when it is read in)
        raise BadSuite(f"{where}: the {kind} grader can't be made: {type(error).__name__}: {error}") from None


def _passed(good: bool, why: str) -> Graded:
    return Graded("pass", 1.0, "as expected") if good else Graded("fail", 0.0, why)


def _exact(spec: Mapping[str, Any], folder: Path) -> Grader:
    """`answer`: a text or several; compared without outer spaces, and without case unless `case` is true."""
    given = spec["answer"]
    strict = bool(spec.get("case", False))
    right = {_trim(str(a), strict) for a in (given if isinstance(given, list) else [given])}
    return lambda answer, _: _passed(_trim(answer, strict) in right, f"answered {answer.strip()[:80]!r}")


def _trim(text: str, strict: bool) -> str:
    text = text.strip().rstrip(".")
    return text if strict else text.casefold()


def _regex(spec: Mapping[str, Any], folder: Path) -> Grader:
    """`pattern`: must be found in the answer; `absent`: true turns that round."""
    pattern, absent = re.compile(spec["pattern"], re.DOTALL), bool(spec.get("absent", False))
    word = "has" if absent else "lacks"
    return lambda answer, _: _passed((pattern.search(answer) is None) == absent, f"the answer {word} {pattern.pattern!r}")


def _json_schema(spec: Mapping[str, Any], folder: Path) -> Grader:
    """`schema`: the answer must be JSON (a fence around it is fine) and fit."""
    if importlib.util.find_spec("jsonschema") is None:
        raise BadSuite("JSON Schema graders need the package jsonschema: pip install 'switchyard-gateway[eval]'")
    import jsonschema

    kind = jsonschema.validators.validator_for(spec["schema"], default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(spec["schema"])
    except jsonschema.SchemaError as error:
        raise ValueError(error.message) from None
    validator = kind(spec["schema"])

    def grade(answer: str, _: Mapping[str, Any]) -> Graded:
        fenced = re.fullmatch(r"\s*```(?:json)?\s*(.*?)\s*```\s*", answer, re.DOTALL)
        try:
            value = json.loads(fenced[1] if fenced else answer)
        except ValueError as error:
            return Graded("fail", 0.0, f"the answer is no JSON: {error}")
        problem = next(validator.iter_errors(value), None)
        return _passed(problem is None, problem.message[:200] if problem else "")

    return grade


def _python(spec: Mapping[str, Any], folder: Path) -> Grader:
    """`callable`: "file.py:function" beside the suite, or "module:function"; called with the answer and the case's line.

    It returns true or false, a share of the points between 0 and 1, or None for "can't say".
    """
    source, _, name = str(spec["callable"]).partition(":")
    function = getattr(_load(source, folder), name, None)
    if not callable(function):
        raise ValueError(f"{source} has no function {name!r}")

    def grade(answer: str, line: Mapping[str, Any]) -> Graded:
        try:
            said = function(answer, line)
            score = None if said is None else float(said)
        except Exception as error:  # noqa: BLE001 (a user's code: whatever it raises says nothing about the model)
            return Graded("unscored", 0.0, f"{spec['callable']} raised {type(error).__name__}: {error}")
        if score is None or not 0 <= score <= 1:
            return Graded("unscored", 0.0, f"{spec['callable']} returned {said!r}")
        state: State = "pass" if score == 1 else "partial" if score else "fail"
        return Graded(state, score, f"{spec['callable']} gave {score:g}")

    return grade


def _load(source: str, folder: Path) -> Any:
    if not source.endswith(".py"):
        return importlib.import_module(source)
    spec = importlib.util.spec_from_file_location(f"switchyard_grader_{abs(hash(source))}", folder / source)
    if spec is None or spec.loader is None or not (folder / source).exists():
        raise ValueError(f"there is no {folder / source}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
