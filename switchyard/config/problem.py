"""What is wrong with a file, and where: one problem, and the errors that carry all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

KeyPath = tuple[str | int, ...]  # keys and indexes from the top of a file


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a file. Lines and columns count from 1."""

    file: str
    line: int
    column: int
    key: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        """`file:line:column: key: message (hint)`, the form that editors jump to."""
        key = f"{self.key}: " if self.key else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{self.file}:{self.line}:{self.column}: {key}{self.message}{hint}"


class FileError(Exception):
    """A file that is not what it should be; `problems` holds everything that was found, in the order of the file."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


class PolicyError(FileError):
    """A file that is no valid policy."""


def nearest_place(places: Mapping[KeyPath, tuple[int, int]], path: KeyPath) -> tuple[int, int]:
    """Line and column of a key, or of the nearest block around it that is in the file."""
    return next((places[path[:n]] for n in range(len(path), -1, -1) if path[:n] in places), (1, 1))


def dotted(path: KeyPath) -> str:
    """A path as people write it, like `routes.auto.rules[0].use`."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")
