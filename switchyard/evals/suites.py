"""The suites by name. A new one is one file and one line here; evals/README.md says how."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from switchyard.evals.function_calls import FunctionCalls
from switchyard.evals.prompts import Prompts
from switchyard.evals.suite import BadSuite, Suite
from switchyard.evals.tool_use import ToolUse


def _tool_use(path: Path | None) -> Suite:
    if path is not None:
        raise BadSuite("tool-use takes no file: its cases come with tool-eval-bench")
    return ToolUse()


def _prompts(path: Path | None) -> Suite:
    if path is None:
        raise BadSuite("prompts needs a file: prompts:FILE.jsonl; evals/prompts/example.jsonl shows one")
    return Prompts(path)


SUITES: Mapping[str, Callable[[Path | None], Suite]] = {
    "tool-use": _tool_use,
    "function-calls": FunctionCalls,
    "prompts": _prompts,
}


def load_suite(text: str) -> Suite:
    """The suite that a user names: NAME, or NAME:PATH.

    Raises:
        BadSuite: there is none, or it can't be used.
    """
    name, _, path = text.partition(":")
    if name not in SUITES:
        raise BadSuite(f"there is no suite {name!r}; there are {', '.join(SUITES)}")
    return SUITES[name](Path(path) if path else None)
