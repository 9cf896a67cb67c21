"""What all blocks of a file share: how strict they are, and the types of their plain values."""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict
from pydantic_core import PydanticCustomError

T = TypeVar("T")
Listed = Annotated[tuple[T, ...], Strict(False)]  # YAML has lists; the models are immutable
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _name(value: str) -> str:
    if not _NAME.fullmatch(value) or len(value) > 128:
        raise PydanticCustomError("name", "a name is 1 to 128 letters, digits and . _ - / : and starts with a letter or digit")
    return value


def _variable(value: str) -> str:
    if not _VARIABLE.fullmatch(value):
        raise PydanticCustomError("variable", "the name of an environment variable is expected, not a secret itself")
    return value


def whole(value: Any) -> Any:
    """Literals compare by value: keep 1.0 and true from passing for 1."""
    return value if type(value) is int else str(value)


Name = Annotated[str, AfterValidator(_name)]
Variable = Annotated[str, AfterValidator(_variable)]


class Block(BaseModel):
    """What all blocks share: immutable, no unknown keys, no silent conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)
