"""From a YAML file to its model, or to all of its problems with file, line, key and a hint.

The loader is strict: a file means exactly what it says or is refused. `document.py` reads the YAML, `refusal.py` words what
the model refuses. A `Form` says what kind of file is read: a policy here, others beside their models.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from switchyard.config.document import Document
from switchyard.config.policy import Policy
from switchyard.config.problem import FileError, KeyPath, PolicyError, Problem, dotted, nearest_place
from switchyard.config.references import Finding, find_dangling
from switchyard.config.refusal import add_refusals

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Form(Generic[Model]):
    """A kind of file: its model, and the words for it.

    Attributes:
        model: What a good file becomes.
        find_across: From the plain data, what is wrong across blocks.
        error: Raised with the problems.
        top: The keys that are expected at the top, in words.
        start: What to do about an empty file.
    """

    model: type[Model]
    find_across: Callable[[dict[str, Any]], Iterable[Finding]]
    error: type[FileError]
    top: str
    start: str


@dataclass(frozen=True)
class Loaded(Generic[Model]):
    """A good file: its model, and where everything stands, for those who find more to say about it."""

    value: Model
    file: str
    places: Mapping[KeyPath, tuple[int, int]]

    def problem(self, path: KeyPath, message: str, hint: str = "") -> Problem:
        """A problem at a key; its place is that of the nearest block that is in the file."""
        return Problem(self.file, *nearest_place(self.places, path), dotted(path), message, hint)


def load_policy(path: str | Path) -> Policy:
    """Read and check a file.

    Raises:
        PolicyError: with all problems that were found.
        OSError: when the file can't be read.
    """
    raw = Path(path).read_bytes()
    return parse_policy(raw, str(path))


def parse_policy(raw: bytes, file: str = "policy.yaml", environment: Mapping[str, str] = os.environ) -> Policy:
    """Check the bytes of a file; see `load_policy`. `${NAME}` and `${NAME:-default}` in values come from `environment`."""
    return parse(raw, file, _POLICY, environment).value


def parse(raw: bytes, file: str, form: Form[Model], environment: Mapping[str, str] = os.environ) -> Loaded[Model]:
    """Check the bytes of a file of any form.

    Raises:
        FileError: the form's own, with all problems that were found.
    """
    document = Document(file, environment, form.top, form.start)
    data = document.read(raw)
    value: Model | None = None
    if not document.problems or isinstance(data, dict):
        try:
            value = form.model.model_validate(data)
        except ValidationError as error:
            add_refusals(document, error, form.model)
        if isinstance(data, dict):
            for path, message, hint in form.find_across(data):
                document.add(path, message, hint)
    if document.problems or value is None:
        raise form.error(document.sorted_problems())
    return Loaded(value, file, document.places)


_POLICY = Form(
    model=Policy,
    find_across=find_dangling,
    error=PolicyError,
    top="version, pools and routes",
    start="start from `switchyard init URL` or an example in policies/",
)


def read_strictly(raw: bytes, file: str) -> tuple[dict[str, Any], Mapping[KeyPath, tuple[int, int]], list[Problem]]:
    """Another file of the same YAML: its data, the line and column of every key, and what is wrong with it."""
    document = Document(file, os.environ, "names of pools, each with its replicas,", "write the replicas of each pool into it")
    data = document.read(raw)
    return data if isinstance(data, dict) else {}, document.places, document.sorted_problems()


def required_variables(raw: bytes) -> tuple[str, ...]:
    """The variables that values of a file take from the environment as `${NAME}`, without a default."""
    document = Document("", {}, _POLICY.top, _POLICY.start)
    document.read(raw)
    return tuple(dict.fromkeys(document.required))
