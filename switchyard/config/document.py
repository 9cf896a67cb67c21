"""A YAML file read strictly: its plain data, the place of every key, and everything in it that surprises.

It works on YAML's node tree, so that every value keeps its line, and reads plain scalars by its own few rules instead of
YAML 1.1's many.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from switchyard.config.problem import KeyPath, Problem, dotted, nearest_place

MAX_BYTES = 1_000_000
MAX_NODES = 20_000  # aliases included: nine levels of nine aliases each would be 400 million
MAX_DEPTH = 32

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_PLAIN_TAGS = frozenset({"str", "int", "float", "bool", "null", "map", "seq", "timestamp", "merge", "value"})
_VARIABLE = re.compile(r"\$\{([^}]*)\}?")
_PARTS = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-((?:(?!\$\{).)*))?\}", re.DOTALL)
_BRACES = (
    'inside { } and [ ] a variable needs quotes, like "${NAME}"; for a number or true and false, write the block over several '
    "lines without them"
)
_QUOTED = {"'", '"', "|", ">"}
INT = re.compile(r"-?(0|[1-9][0-9]*)")
FLOAT = re.compile(r"-?(0|[1-9][0-9]*)\.[0-9]+")
_SURPRISES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"y|Y|yes|Yes|YES|n|N|no|No|NO|on|On|ON|off|Off|OFF|True|TRUE|False|FALSE"),
     "YAML reads {v} as a truth value: write true or false, or quote it"),
    (re.compile(r"[-+]?[0-9]+(:[0-5]?[0-9])+(\.[0-9]*)?"), "YAML reads {v} as a number to base 60: quote it, or give seconds"),
    (re.compile(r"[-+]?0[0-9]+"), "YAML reads {v} as an octal number: drop the leading zero, or quote it"),
    (re.compile(r"[-+]?0[xob][0-9a-fA-F_]+"), "write {v} as a decimal number, or quote it"),
    (re.compile(r"[-+]?[0-9][0-9_]*_[0-9_]*(\.[0-9_]*)?"), "YAML drops the _ in {v}: write the number without, or quote it"),
    (re.compile(r"\d{4}-\d\d?-\d\d?([Tt ].*)?"), "YAML reads {v} as a date: quote it"),
    (re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"), "{v} is no usable number: leave the key out for the default"),
    (re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+|[-+]?[0-9]+\.|[-+]?\.[0-9]+|\+[0-9.]+"),
     "write {v} as a plain number like 0.5 or 1000, or quote it"),
    (re.compile(r"Null|NULL"), "write null, or quote {v}"),
    (re.compile(r"=|<<"), "{v} has a special meaning in YAML: quote it"),
)  # fmt: skip


class Document:
    """One file being read: its data, the place of every key, and what is wrong.

    Args:
        file: its name in problems.
        environment: where `${NAME}` in a value is looked up.
        top: the keys that are expected at the top, in words.
        start: what to do about an empty file.

    Attributes:
        places: line and column of every key and value.
        problems: in the order in which they were found.
        required: variables that are asked for without a default.
    """

    def __init__(self, file: str, environment: Mapping[str, str], top: str, start: str) -> None:
        self.file = file
        self._environment = environment
        self._top = top
        self._start = start
        self.places: dict[KeyPath, tuple[int, int]] = {(): (1, 1)}
        self.problems: list[Problem] = []
        self.required: list[str] = []
        self._nodes = 0

    def read(self, raw: bytes) -> Any:
        """The data of a file; None when there is none, and `problems` says why."""
        if len(raw) > MAX_BYTES:
            self.add((), f"the file has {len(raw)} bytes, at most {MAX_BYTES} are read", "is this the right file?")
            return None
        try:
            text = raw.decode("utf-8-sig")
            node = yaml.compose(text, Loader=_LOADER)
        except UnicodeDecodeError as error:
            self.add((), f"not UTF-8 at byte {error.start}", "save the file as UTF-8")
            return None
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
            self._add_yaml_error(text, line, column, str(error.problem or error.context))
            return None
        except (yaml.YAMLError, RecursionError) as error:
            self.add((), f"not readable as YAML: {str(error).splitlines()[0]}")
            return None
        if node is None:
            self.add((), "the file is empty", self._start)
            return None
        if not isinstance(node, yaml.MappingNode):
            self._mark((), node)
            self.add((), f"a mapping is expected at the top, with {self._top}")
            return None
        try:
            return self._convert(node, ())
        except _TooMuch as error:
            self.add((), str(error), "write aliases out")
            return None

    def _add_yaml_error(self, text: str, line: int, column: int, problem: str) -> None:
        source = text.splitlines()[line - 1] if line <= len(text.splitlines()) else ""
        indent = source[: len(source) - len(source.lstrip())]
        if "\t" in indent:
            self.problems.append(Problem(self.file, line, column, "", "a tab in the indentation", "indent with spaces"))
        else:
            hint = _BRACES if "${" in source else ""
            self.problems.append(Problem(self.file, line, column, "", f"not readable as YAML: {problem}", hint))

    def _mark(self, path: KeyPath, node: Any) -> None:
        self.places[path] = (node.start_mark.line + 1, node.start_mark.column + 1)

    def _convert(self, node: Any, path: KeyPath) -> Any:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise _TooMuch(f"the file has more than {MAX_NODES} values once its aliases are followed")
        if len(path) > MAX_DEPTH:
            raise _TooMuch(f"the file is nested more than {MAX_DEPTH} levels deep")
        self.places.setdefault(path, (node.start_mark.line + 1, node.start_mark.column + 1))
        if node.tag.removeprefix("tag:yaml.org,2002:") not in _PLAIN_TAGS:
            self.add(path, f"the tag {node.tag} is not allowed", "plain values only")
            return None
        if isinstance(node, yaml.MappingNode):
            return self._convert_mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._convert(child, (*path, i)) for i, child in enumerate(node.value)]
        return self._scalar(node, path)

    def _convert_mapping(self, node: Any, path: KeyPath) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is None:
                self._mark((*path, "?"), key_node)
                self.add((*path, "?"), "a key must be a word")
                continue
            here = (*path, key)
            if key in found:
                line, column = key_node.start_mark.line + 1, key_node.start_mark.column + 1
                hint = f"first on line {self.places[here][0]}"
                self.problems.append(Problem(self.file, line, column, dotted(here), f"the key {key} is given twice", hint))
                continue
            self._mark(here, key_node)
            if "${" in key:
                self.add(here, f"the key {key} has a variable in it", "variables stand in values")
            if key_node.style not in _QUOTED and (surprise := _surprise(key)):
                self.add(here, surprise)
            found[key] = self._convert(value_node, here)
        return found

    def _scalar(self, node: Any, path: KeyPath) -> Any:
        text: str = node.value
        if "${" in text:
            text = self._substituted(text, path)
        if node.style in _QUOTED:  # a text, whatever it looks like
            return text
        if text in {"", "null", "~"}:
            return None
        if text in {"true", "false"}:
            return text == "true"
        if surprise := _surprise(text):
            self.add(path, surprise)
            return _Refused(text)
        if INT.fullmatch(text) and len(text) < 19:
            return int(text)
        return float(text) if FLOAT.fullmatch(text) else text

    def _substituted(self, text: str, path: KeyPath) -> str:
        """Put in the environment's values; done after parsing, so that no value can change the file's structure."""

        def value(match: re.Match[str]) -> str:
            parts = _PARTS.fullmatch(match[0])
            if parts is None:
                self.add(path, f"{match[0]} is no variable", "write ${NAME} or ${NAME:-default}")
                return ""
            name, default = parts[1], parts[2]
            if default is None:
                self.required.append(name)
            found = self._environment.get(name)
            if not found and default is not None:
                return default
            if found is None:
                self.add(
                    path, f"the environment variable {name} is not set", f"export {name}=..., or write ${{{name}:-default}}"
                )
            return found or ""

        return _VARIABLE.sub(value, text)

    def add(self, path: KeyPath, message: str, hint: str = "") -> None:
        """Note a problem at a key."""
        self.problems.append(Problem(self.file, *nearest_place(self.places, path), dotted(path), message, hint))

    def sorted_problems(self) -> list[Problem]:
        """Each problem once, in the order of the file."""
        return sorted(dict.fromkeys(self.problems), key=lambda p: (p.line, p.column))


class _TooMuch(Exception):
    """The file is larger than any that people write."""


class _Refused(str):
    """A scalar that was already reported; keeps its text so that no second problem hides it."""


def _surprise(text: str) -> str | None:
    for pattern, message in _SURPRISES:
        if pattern.fullmatch(text):
            return message.format(v=text)
    return None
