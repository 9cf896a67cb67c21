"""Types of values in cluster files. Texts end up in commands, units and manifests: only what is harmless there is taken."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

Gibibytes = Annotated[float, Field(gt=0, le=1_000_000, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Port = Annotated[int, Field(ge=1, le=65535)]
Format = Literal["bf16", "fp8", "nvfp4", "mxfp4"]
NodeState = Literal["active", "cordoned", "lent"]

BYTES_A_PARAMETER: dict[Format, float] = {"bf16": 2.0, "fp8": 1.0, "nvfp4": 0.5625, "mxfp4": 0.531}
"""Scales included; what a checkpoint keeps in a wider format comes on top, so its real size is better."""
VISIBLE_GIB = {128.0: 121.7}
"""What nodes of a nominal size were seen to show (`free`, `nvidia-smi`): a DGX Spark."""
VISIBLE_SHARE = 0.95
"""Of other sizes so much is assumed to be visible, and the size to be decimal."""

TAKEN = frozenset({"gateway", "namespace", "node", "policy", "redis"})
"""Renderers write files of these names beside those that are named after pools."""

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_POOL = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
_ADDRESS = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|[0-9A-Fa-f:]+:[0-9A-Fa-f:.]*")
_INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")
_PATH = re.compile(r"[A-Za-z0-9._/~-][A-Za-z0-9._/@+=,~-]*")
_DIRECTORY = re.compile(r"/[A-Za-z0-9._/@+=,~-]*")
_FLAG = re.compile(r"[a-z][a-z0-9_]*")
_VALUE = re.compile(r"[^\x00-\x1f\x7f]*")


def _pattern(pattern: re.Pattern[str], what: str) -> AfterValidator:
    def fits(value: str) -> str:
        if not pattern.fullmatch(value) or len(value) > 512:
            raise PydanticCustomError("pattern", "{what} is expected", {"what": what})
        return value

    return AfterValidator(fits)


def _not_taken(value: str) -> str:
    if value in TAKEN:
        names = ", ".join(sorted(TAKEN))
        raise PydanticCustomError(
            "taken", "{name} is a name of files that are rendered; so are {names}", {"name": value, "names": names}
        )
    return value


def _moment(value: str) -> str:
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise PydanticCustomError("moment", "a moment with its time zone is expected, like '2026-12-01T18:00:00+01:00'")
    return value


Label = Annotated[str, _pattern(_LABEL, "a name of small letters, digits and -, at most 40,")]
PoolName = Annotated[
    str,
    _pattern(_POOL, "a name of small letters, digits and -, a letter first, at most 40 (it names Services, too),"),
    AfterValidator(_not_taken),
]
Address = Annotated[str, _pattern(_ADDRESS, "an IP address or a host name")]
Interface = Annotated[str, _pattern(_INTERFACE, "the name of an interface, like enp1s0f1np1,")]
Image = Annotated[str, _pattern(_REFERENCE, "an image, like registry/name:tag or name@sha256:...,")]
PathText = Annotated[str, _pattern(_PATH, "a path without spaces and quotes")]
Directory = Annotated[str, _pattern(_DIRECTORY, "a path from the root, like /srv/models, without spaces and quotes,")]
ModelName = Annotated[str, _pattern(_REFERENCE, "the name of a model, like openbmb/MiniCPM5-2B,")]
Resource = Annotated[str, _pattern(_REFERENCE, "the name of a resource, like nvidia.com/gpu,")]
Line = Annotated[str, _pattern(_VALUE, "one line of text")]
Moment = Annotated[str, AfterValidator(_moment)]
FlagName = Annotated[str, _pattern(_FLAG, "the name of a flag with _ for -, like max_model_len,")]
Flag = bool | int | Annotated[float, Field(allow_inf_nan=False)] | Line
