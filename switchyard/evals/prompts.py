"""The suite `prompts`: any JSONL of prompts with graders.

A line is {"id", "prompt" or "messages", "grader", and optionally "category", "system", "body"}. `body` holds more fields for
the request, like response_format or max_tokens.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from switchyard.evals.conversation import Conversation
from switchyard.evals.grade import Grader, make_grader
from switchyard.evals.suite import BadSuite, Case, Graded, check_ids, refuse_constant

FIXED = {"model", "messages", "stream"}
"""What `body` can't say: the eval does."""
KEYS = {"id", "prompt", "messages", "grader", "category", "system", "body"}


class Prompts:
    """Prompts from a file.

    Args:
        path: the JSONL.

    Raises:
        BadSuite: it can't be read, or a line is not well-formed.
    """

    def __init__(self, path: Path) -> None:
        try:
            raw = path.read_bytes()
            text = raw.decode()
        except OSError as error:
            raise BadSuite(f"can't read {path}: {error.strerror}") from None
        except UnicodeDecodeError as error:
            raise BadSuite(f"{path} is no UTF-8: {error}") from None
        self.name = f"prompts:{path}"
        self.version = hashlib.sha256(raw).hexdigest()[:16]
        self._lines: dict[str, tuple[dict[str, Any], Grader]] = {}
        cases: list[Case] = []
        for number, written in enumerate(text.split("\n"), 1):
            if written.strip():
                line = _read(written, f"{path}:{number}")
                cases.append(Case(line["id"], str(line.get("category", "prompts"))))
                self._lines[line["id"]] = line, make_grader(line["grader"], f"{path}:{number}", path.parent)
        check_ids(cases, str(path))
        self.cases: Sequence[Case] = cases
        self.default: Sequence[Case] = cases

    async def attempt(self, case: Case, conversation: Conversation) -> Graded:
        """Ask once and grade the text."""
        line, grade = self._lines[case.id]
        messages = line.get("messages") or [{"role": "user", "content": line["prompt"]}]
        if "system" in line:
            messages = [{"role": "system", "content": line["system"]}, *messages]
        message = await conversation.chat({"messages": messages, **line.get("body", {})})
        content = message.get("content")
        if isinstance(content, list):
            content = "".join(str(p.get("text", "")) for p in content if isinstance(p, dict))
        return grade(content or "", line)


def _read(written: str, where: str) -> dict[str, Any]:
    try:
        line = json.loads(written, parse_constant=refuse_constant)
    except ValueError as error:
        raise BadSuite(f"{where}: no JSON: {error}") from None
    if not isinstance(line, dict):
        raise BadSuite(f"{where}: an object is expected")
    if unknown := sorted(line.keys() - KEYS):
        raise BadSuite(f"{where}: unknown keys {', '.join(unknown)}; there are {', '.join(sorted(KEYS))}")
    if not isinstance(line.get("id"), str):
        raise BadSuite(f"{where}: id is missing, or no text")
    if ("prompt" in line) == ("messages" in line):
        raise BadSuite(f"{where}: exactly one of prompt and messages is expected")
    if not isinstance(line.get("grader"), dict):
        raise BadSuite(f"{where}: grader is missing, or no object")
    messages, body = line.get("messages"), line.get("body", {})
    if messages is not None and not (messages and isinstance(messages, list) and all(isinstance(m, dict) for m in messages)):
        raise BadSuite(f"{where}: messages is no list of objects, or an empty one")
    if any(not isinstance(line.get(key, ""), str) for key in ("prompt", "system")):
        raise BadSuite(f"{where}: prompt and system are texts")
    if not isinstance(body, dict) or body.keys() & FIXED:
        raise BadSuite(f"{where}: body is an object of more fields for the request, without {', '.join(sorted(FIXED))}")
    return line
