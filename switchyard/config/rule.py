"""A route's rules: conditions on signals, and whether a condition makes sense for its signal."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from switchyard.config.block import Block, Listed
from switchyard.config.vocabulary import HEADER_PREFIX, SIGNALS, Kind


def _turns(value: str) -> str:
    if not re.fullmatch(r"[1-9]\d{0,3} turns?", value):
        raise PydanticCustomError("turns", "a number of turns is expected, like 5 turns")
    return value


Scalar = bool | int | Annotated[float, Field(allow_inf_nan=False)] | str


class Test(Block):
    """A comparison for a signal; all that are given must hold."""

    at_least: int | Annotated[float, Field(allow_inf_nan=False)] | None = None
    """The signal is this number or more."""
    at_most: int | Annotated[float, Field(allow_inf_nan=False)] | None = None
    """The signal is this number or less."""
    is_not: Scalar | None = None
    """The signal differs from this value."""
    matches: str | None = None
    """The text of the signal contains a match of this regular expression."""

    @model_validator(mode="after")
    def _says_something(self) -> Test:
        if not self.model_fields_set:
            raise PydanticCustomError("empty", "at least one of at_least, at_most, is_not, matches is expected")
        if self.matches is not None:
            try:
                re.compile(self.matches)
            except re.error as error:
                raise PydanticCustomError("regex", "not a regular expression: {why}", {"why": str(error)}) from None
        return self


def _form(value: Any) -> str:
    return "test" if isinstance(value, dict | Test) else "values" if isinstance(value, list | tuple) else "value"


Condition = Annotated[
    Annotated[Scalar, Tag("value")]
    | Annotated[Annotated[Listed[Scalar], Field(min_length=1)], Tag("values")]
    | Annotated[Test, Tag("test")],
    Discriminator(_form),
]


def _signal(name: str) -> str:
    if name in SIGNALS or (name.startswith(HEADER_PREFIX) and len(name) > len(HEADER_PREFIX)):
        return name
    raise PydanticCustomError("signal", "no signal is called {name}", {"name": name, "known": ", ".join(SIGNALS)})


SignalName = Annotated[str, AfterValidator(_signal)]

_FITS: dict[Kind, tuple[type, ...]] = {"bool": (bool,), "int": (int,), "float": (int, float), "text": (str,)}
_WANTED: dict[Kind, str] = {"bool": "true or false", "int": "a whole number", "float": "a number", "text": "a text"}


def condition_problem(name: str, condition: Any) -> str | None:
    """Say what is wrong with comparing this signal to that value; None when it makes sense."""
    kind: Kind = "text" if name.startswith(HEADER_PREFIX) else SIGNALS[name].kind

    def wrong(value: Any) -> bool:
        return not isinstance(value, _FITS[kind]) or (isinstance(value, bool) and kind != "bool")

    if isinstance(condition, Test):
        if (condition.at_least is not None or condition.at_most is not None) and kind not in {"int", "float"}:
            return f"{name} is {_WANTED[kind]}: at_least and at_most need a number"
        if condition.matches is not None and kind != "text":
            return f"{name} is {_WANTED[kind]}: matches needs a text"
        values: tuple[Any, ...] = () if condition.is_not is None else (condition.is_not,)
    else:
        values = condition if isinstance(condition, tuple) else (condition,)
    known = () if name.startswith(HEADER_PREFIX) else SIGNALS[name].values
    strange = [v for v in values if known and not wrong(v) and v not in known]
    if strange:
        return f"{name} is never {strange[0]}, only {', '.join(known)}"
    bad = [v for v in values if wrong(v)]
    return f"{name} is {_WANTED[kind]}, not {bad[0]!r}" if bad else None


def _conditions(value: dict[str, Any]) -> dict[str, Any]:
    problems = [p for name, condition in value.items() if (p := condition_problem(name, condition))]
    if problems:
        raise PydanticCustomError("condition", "{problems}", {"problems": "; ".join(problems)})
    return value


class Rule(Block):
    """A choice from facts alone. The first rule that matches wins, before any classifier."""

    when: Annotated[dict[SignalName, Condition], Field(min_length=1), AfterValidator(_conditions)]
    """Signals and what they must be; all must hold. A value, a list of values, or {at_least, at_most, is_not, matches}."""
    use: str
    """Pool to use."""
    why: str | None = None
    """Reason shown in headers and records."""
    for_: Annotated[str, AfterValidator(_turns)] | None = Field(None, alias="for")
    """Keep the choice for this many turns of the session, like 5 turns; then back to what the session had."""
