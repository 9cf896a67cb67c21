"""From a YAML file to its model, or to all of its problems with file, line, key and a hint.

The loader is strict: a file means exactly what it says or is refused. It works on YAML's node tree, so that every
value keeps its line, and reads plain scalars by its own few rules instead of YAML 1.1's many. A `Form` says what kind
of file is read: a policy here, others beside their models.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from switchyard.config.policy import Policy
from switchyard.config.references import Finding, find_dangling, nearest
from switchyard.config.references import Path as KeyPath
from switchyard.config.vocabulary import SIGNALS

MAX_BYTES = 1_000_000
MAX_NODES = 20_000  # aliases included: nine levels of nine aliases each would be 400 million
MAX_DEPTH = 32

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_PLAIN_TAGS = frozenset({"str", "int", "float", "bool", "null", "map", "seq", "timestamp", "merge", "value"})
_VARIABLE = re.compile(r"\$\{([^}:]*)(?::-([^}]*))?\}")
_QUOTED = {"'", '"', "|", ">"}
_INT = re.compile(r"-?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"-?(0|[1-9][0-9]*)\.[0-9]+")
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
        return Problem(self.file, *_nearest_place(self.places, path), _dotted(path), message, hint)


@dataclass(frozen=True)
class Secrets:
    """The values behind a policy's `*_env` keys. Never logged, never part of a policy."""

    api_keys: tuple[str, ...] = ()
    admin_key: str | None = None
    pool_keys: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Secrets({len(self.api_keys)} API keys, {len(self.pool_keys)} pool keys)"


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
    document = _Document(file, environment, form)
    data = document.read(raw)
    value: Model | None = None
    if not document.problems or isinstance(data, dict):
        try:
            value = form.model.model_validate(data)
        except ValidationError as error:
            document.add_validation(error)
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


_REPLICAS = replace(_POLICY, top="names of pools, each with its replicas,", start="write the replicas of each pool into it")


def read_strictly(raw: bytes, file: str) -> tuple[dict[str, Any], Mapping[KeyPath, tuple[int, int]], list[Problem]]:
    """Another file of the same YAML: its data, the line and column of every key, and what is wrong with it."""
    document = _Document(file, os.environ, _REPLICAS)
    data = document.read(raw)
    return data if isinstance(data, dict) else {}, document.places, document.sorted_problems()


def required_variables(raw: bytes) -> tuple[str, ...]:
    """The variables that values of a file take from the environment as `${NAME}`, without a default."""
    document = _Document("", {}, _POLICY)
    document.read(raw)
    return tuple(dict.fromkeys(document.required))


def read_secrets(policy: Policy, file: str, environment: Mapping[str, str] = os.environ) -> Secrets:
    """Fetch the keys that a policy names.

    Raises:
        PolicyError: for every variable that is unset or empty.
    """
    problems: list[Problem] = []

    def value(key: str, variable: str) -> str:
        found = environment.get(variable, "").strip()
        if not found:
            state = "empty" if variable in environment else "not set"
            message = f"the environment variable {variable} is {state}"
            problems.append(Problem(file, 1, 1, key, message, f"export {variable}=..., or leave the key out"))
        elif not found.strip(" ,"):
            problems.append(Problem(file, 1, 1, key, f"{variable} holds commas and no key", "separate keys with single commas"))
        elif not found.isascii() or not found.isprintable():
            problems.append(Problem(file, 1, 1, key, f"{variable} holds characters that no header can carry", "use ASCII"))
        return found

    server = policy.server
    keys = value("server.api_keys_env", server.api_keys_env) if server.api_keys_env else ""
    admin = value("server.admin_key_env", server.admin_key_env) if server.admin_key_env else None
    pools = {n: value(f"pools.{n}.api_key_env", p.api_key_env) for n, p in policy.pools.items() if p.api_key_env}
    api_keys = tuple(k.strip() for k in keys.split(",") if k.strip())
    unknown = [name for name in server.limits.keys if not 1 <= int(name.removeprefix("key-")) <= len(api_keys)]
    if unknown and not problems:
        there = f"{server.api_keys_env} holds {len(api_keys)} keys" if server.api_keys_env else "server.api_keys_env is not set"
        message = f"there is no {unknown[0]}: {there}"
        problems.append(Problem(file, 1, 1, "server.limits.keys", message, "key-1 is the first key, key-2 the second"))
    if problems:
        raise PolicyError(problems)
    return Secrets(api_keys, admin, pools)


class _Document:
    """One file being read: its data, the place of every key, and what is wrong."""

    def __init__(self, file: str, environment: Mapping[str, str], form: Form[Any]) -> None:
        self.file = file
        self._environment = environment
        self._form = form
        self.places: dict[KeyPath, tuple[int, int]] = {(): (1, 1)}
        self.problems: list[Problem] = []
        self.required: list[str] = []
        self._nodes = 0

    def read(self, raw: bytes) -> Any:
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
            self.add((), "the file is empty", self._form.start)
            return None
        if not isinstance(node, yaml.MappingNode):
            self._mark((), node)
            self.add((), f"a mapping is expected at the top, with {self._form.top}")
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
            self.problems.append(Problem(self.file, line, column, "", f"not readable as YAML: {problem}"))

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
                self.problems.append(Problem(self.file, line, column, _dotted(here), f"the key {key} is given twice", hint))
                continue
            self._mark(here, key_node)
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
        if _INT.fullmatch(text) and len(text) < 19:
            return int(text)
        return float(text) if _FLOAT.fullmatch(text) else text

    def _substituted(self, text: str, path: KeyPath) -> str:
        """Put in the environment's values; done after parsing, so that no value can change the file's structure."""

        def value(match: re.Match[str]) -> str:
            name, default = match[1], match[2]
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                self.add(path, f"${{{name}}} is no variable", "write ${NAME} or ${NAME:-default}")
                return ""
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
        self.problems.append(Problem(self.file, *_nearest_place(self.places, path), _dotted(path), message, hint))

    def add_validation(self, error: ValidationError) -> None:
        """Problems of the models, with their place in the file; the alternatives of a choice become one problem."""
        refused = {p.key for p in self.problems}
        grouped: dict[KeyPath, list[ErrorDetails]] = {}
        for detail in error.errors(include_url=False):
            place = self._place(detail["loc"], detail["type"] in {"missing", "extra_forbidden"})
            grouped.setdefault(place, []).append(detail)
        for path, details in grouped.items():
            inner = any(other[: len(path)] == path and other != path for other in grouped)
            if _dotted(path) in refused or (inner and details[0]["type"] == "too_short"):
                continue  # an entry that was refused already is not missed, too
            if details[0]["type"] == "condition" and any(key.startswith(f"{_dotted(path)}.") for key in refused):
                continue  # what can't be read can't be compared
            message, hint = _explain(path, details, self._form.model)
            self.add(path, message, hint)

    def _place(self, location: tuple[str | int, ...], ends_with_key: bool) -> KeyPath:
        """The part of a pydantic location that is a path in the file: without names of types."""
        path: KeyPath = ()
        for i, step in enumerate(location):
            last = i == len(location) - 1
            if (*path, step) in self.places or (last and (ends_with_key or not _is_type_name(step))):
                path = (*path, step)
        return path

    def sorted_problems(self) -> list[Problem]:
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


def _nearest_place(places: Mapping[KeyPath, tuple[int, int]], path: KeyPath) -> tuple[int, int]:
    return next((places[path[:n]] for n in range(len(path), -1, -1) if path[:n] in places), (1, 1))


def _dotted(path: KeyPath) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


_TYPE_NAMES = re.compile(r"\[key\]|int|float|str|bool|Test|embedded|model|local|value|values|test|list|source|constrained-\w+")


def _is_type_name(step: str | int) -> bool:
    """Whether this step of a pydantic location names an alternative, and no key."""
    return isinstance(step, str) and ("[" in step or "(" in step or _TYPE_NAMES.fullmatch(step) is not None)


_EXPECTED = {
    "bool_type": "true or false", "int_type": "a whole number", "float_type": "a number", "string_type": "a text",
    "tuple_type": "a list", "dict_type": "a block of keys", "model_type": "a block of keys", "finite_number": "a finite number",
    "int_from_float": "a whole number", "model_attributes_type": "a block of keys",
}  # fmt: skip


def _explain(path: KeyPath, details: list[ErrorDetails], form: type[BaseModel]) -> tuple[str, str]:
    """One message and a hint for all that pydantic says about one place."""
    first = details[0]
    kind, context = first["type"], first.get("ctx", {})
    name = str(path[-1]) if path else ""
    if kind == "extra_forbidden":
        return f"unknown key {name}", nearest(name, _known_keys(path, form))
    if kind == "missing":
        return f"the key {name} is missing", ""
    if kind == "signal":
        return f"there is no signal {name}", nearest(name, [*SIGNALS, "header.NAME"])
    if kind == "too_short":
        return "at least 1 entry is expected", ""
    if kind == "union_tag_invalid":
        return f"type {context['tag']} is not known", f"one of {context['expected_tags']}"
    if kind == "union_tag_not_found":
        return "the key type is missing", "embedded, model or local"
    expected = list(dict.fromkeys(_expected(d) for d in details))
    given = first["input"]
    shown = "" if isinstance(given, dict | list | tuple) else f", not {_plain(given)}"
    if len(details) == 1 and kind not in _EXPECTED and kind not in {"literal_error"}:
        message = first["msg"].replace("Input should be", "must be").replace("should have", "must have")
        return message[:1].lower() + message[1:] + (shown if kind.startswith(("greater", "less")) else ""), ""
    hint = ""
    if isinstance(given, str) and re.fullmatch(r"\d+(\.\d+)?\s*(ms|s|m|h|MB|mb|GB)", given):
        hint = "the unit is in the key: write the number alone"
    elif isinstance(given, str) and (_INT.fullmatch(given) or _FLOAT.fullmatch(given)):
        hint = "leave the quotes out"
    elif isinstance(given, str):
        hint = nearest(given, [w for d in details for w in re.findall(r"'([^']+)'", str(d.get("ctx", {}).get("expected", "")))])
        hint = hint if hint.startswith("did") else ""
    return f"{' or '.join(expected)} is expected{shown}", hint


def _expected(detail: ErrorDetails) -> str:
    if detail["type"] == "literal_error":
        return str(detail.get("ctx", {}).get("expected", "")).replace("'", "")
    return _EXPECTED.get(detail["type"], detail["msg"][:1].lower() + detail["msg"][1:])


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "nothing" if value is None else str(value)


def _known_keys(path: KeyPath, form: type[BaseModel]) -> list[str]:
    """Keys that the block at the parent of this path may have."""
    model: type[BaseModel] | None = form
    for step in path[:-1]:
        field_of_step = _fields(model).get(str(step))
        if field_of_step is not None:  # else an index, or a name inside pools and routes
            model = _find_model(field_of_step.annotation)
    return list(_fields(model))


def _fields(model: type[BaseModel] | None) -> dict[str, FieldInfo]:
    """The fields of a block by the key they have in the file."""
    return {} if model is None else {f.alias or n: f for n, f in model.model_fields.items()}


def _find_model(annotation: Any) -> type[BaseModel] | None:
    """The block inside an annotation like `dict[str, Pool]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in getattr(annotation, "__args__", ()):
        if (found := _find_model(inner)) is not None:
            return found
    return None
