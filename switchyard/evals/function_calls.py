"""The suite `function-calls`: one user turn, some functions, and the calls that would be right. BFCL-format files.

A folder holds question files (`NAME.json` or `.jsonl`, one JSON object a line: id, question, function) and, in
`possible_answer/`, files of the same names with id and ground_truth. Files with "irrelevance" in their names have no answers:
there no call is right. The functions become tools; the answer's calls are compared by `match`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from switchyard.evals.conversation import Conversation
from switchyard.evals.match import Expected, mismatch
from switchyard.evals.suite import BadSuite, Case, Graded, check_ids, refuse_constant

OWN = Path(__file__).with_name("function-calls")
"""The shipped cases."""

_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None}


@dataclass(frozen=True, slots=True)
class Question:
    """One case: messages, tools, and the calls that are right."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    expected: list[Expected]


class FunctionCalls:
    """Single-turn function calling.

    Args:
        path: folder, or one question file in such a folder; left out: the shipped cases.

    Raises:
        BadSuite: there are no cases, or one is not well-formed.
    """

    def __init__(self, path: Path | None = None) -> None:
        source = path or OWN
        if not source.exists():
            raise BadSuite(f"there is no {source}")
        files = sorted(p for p in source.glob("*.json*") if p.is_file()) if source.is_dir() else [source]
        self.name = "function-calls" if path is None else f"function-calls:{path}"
        self._questions: dict[str, Question] = {}
        cases: list[Case] = []
        digest = hashlib.sha256()
        for file in files:
            answers = file.parent / "possible_answer" / file.name
            for part in (file, *([answers] if answers.exists() else [])):
                digest.update(part.read_bytes() if part.exists() else b"")
            for case, question in _read(file, answers):
                cases.append(case)
                self._questions[case.id] = question
        check_ids(cases, str(source))
        self.version = digest.hexdigest()[:16]
        self.cases: Sequence[Case] = cases
        self.default: Sequence[Case] = cases

    async def attempt(self, case: Case, conversation: Conversation) -> Graded:
        """Ask once and compare the calls."""
        question = self._questions[case.id]
        message = await conversation.chat({"messages": question.messages, "tools": question.tools})
        calls = read_calls(message)
        why = mismatch(calls, question.expected)
        return Graded("fail" if why else "pass", 0.0 if why else 1.0, why or "as expected", {"calls": calls})

    def right_answer(self, case_id: str) -> list[tuple[str, dict[str, Any]]]:
        """Calls that pass: the first acceptable value of each parameter that may not be left out."""
        return [
            (name, {k: v[0] for k, v in parameters.items() if "" not in v})
            for call in self._questions[case_id].expected
            for name, parameters in call.items()
        ]

    def messages(self, case_id: str) -> list[dict[str, Any]]:
        """What a case asks."""
        return self._questions[case_id].messages


def read_calls(message: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Names and parsed arguments of an answer's tool calls; arguments that don't parse stay texts."""
    calls: list[tuple[str, Any]] = []
    for call in message.get("tool_calls") or ():
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            continue
        arguments = function.get("arguments")
        with contextlib.suppress(ValueError):
            arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        calls.append((str(function.get("name")), {} if arguments in (None, "") else arguments))
    return calls


# ---- reading ----


def _read(file: Path, answers: Path) -> Iterator[tuple[Case, Question]]:
    if not answers.exists() and "irrelevance" not in file.name:
        raise BadSuite(f"{file} has no answers: {answers} is missing")
    truth = {str(line["id"]): line.get("ground_truth") for _, line in _lines(answers)} if answers.exists() else {}
    for number, line in _lines(file):
        where = f"{file}:{number}"
        try:
            id_, turns, functions = str(line["id"]), line["question"], line["function"]
            if isinstance(turns[0], list):
                if len(turns) > 1:
                    raise BadSuite(f"{where}: {id_} has {len(turns)} turns; only single-turn cases can be run")
                turns = turns[0]
            tools = [_tool(f) for f in (functions if isinstance(functions, list) else [functions])]
            if answers.exists() and id_ not in truth:
                raise BadSuite(f"{where}: {answers} has no answer for {id_}")
            expected = [_expected(call) for call in truth.get(id_) or []]
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise BadSuite(f"{where}: not a BFCL case ({type(error).__name__}: {error})") from None
        known = {tool["function"]["name"] for tool in tools}
        for call in expected:
            if not call.keys() <= known:
                raise BadSuite(f"{where}: the answer of {id_} calls {', '.join(call.keys() - known)}, which it isn't given")
        category = str(line.get("category") or re.sub(r"[_-]?\d[\d-]*$", "", id_) or file.stem)
        yield Case(id_, category), Question(turns, tools, expected)


def _lines(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise BadSuite(f"can't read {file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise BadSuite(f"{file} is no UTF-8: {error}") from None
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line, parse_constant=refuse_constant)
        except ValueError as error:
            raise BadSuite(f"{file}:{number}: no JSON: {error}") from None
        if not isinstance(value, dict) or "id" not in value:
            raise BadSuite(f"{file}:{number}: an object with an id is expected")
        yield number, value


def _expected(call: Mapping[str, Any]) -> Expected:
    ((name, parameters),) = call.items()
    return {_name(name): {key: values if isinstance(values, list) else [values] for key, values in parameters.items()}}


def _tool(function: Mapping[str, Any]) -> dict[str, Any]:
    """A function as a tool; names have no dots there, and types are those of JSON Schema."""
    described = {"name": _name(function["name"]), "description": function.get("description", "")}
    return {"type": "function", "function": {**described, "parameters": _schema(function["parameters"])}}


def _name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)


def _schema(part: Mapping[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for key, value in part.items():
        if key == "type" and isinstance(value, str):
            kind = _TYPES.get(value.lower(), value.lower())
            if kind is not None:
                schema["type"] = kind
        elif key == "properties":
            schema[key] = {name: _schema(inner) for name, inner in value.items()}
        elif key == "items" and isinstance(value, Mapping):
            schema[key] = _schema(value)
        else:
            schema[key] = value
    return schema
