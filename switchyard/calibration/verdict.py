"""A verdict, written into the policy that it is about: `switchyard eval` and `switchyard calibrate` call this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from switchyard.config.edit import CannotEdit, Value, set_value
from switchyard.config.load import parse_policy
from switchyard.config.problem import PolicyError
from switchyard.evals.verdict import Word
from switchyard.routing.classify.scorer import digest_weights
from switchyard.routing.fingerprint import fingerprint


@dataclass(frozen=True, slots=True)
class Found:
    """What a verdict says.

    Attributes:
        by: the command that found it.
        suite: what was tried.
        cases: how many cases were compared.
        margin: in percentage points.
        interval: 90 % interval of routed minus big, in percentage points.
        word: the verdict.
        on: its day.
    """

    by: Literal["eval", "calibrate"]
    suite: str
    cases: int
    margin: float
    interval: tuple[float, float]
    word: Word
    on: date


def with_verdict(text: str, file: str, route: str, found: Found) -> str:
    """The policy's text with the verdict in its route; no other byte is changed.

    Args:
        text: the policy that the verdict is about.
        file: its name, for messages.
        route: name of the route.
        found: the verdict.

    Raises:
        CannotEdit: the route can't be changed alone, or there is none of this name.
        PolicyError: the text is no good policy.
    """
    policy = parse_policy(text.encode(), file)
    if route not in policy.routes:
        raise CannotEdit(f"there is no route {route}")
    covered = fingerprint(policy, policy.routes[route], digest_weights)
    block: Mapping[str, Value] = {
        "by": found.by, "suite": found.suite.replace("${", "$ {"), "date": found.on.isoformat(), "cases": found.cases,
        "margin": round(found.margin, 2), "interval": [round(end, 2) for end in found.interval], "verdict": found.word,
        "hash": {"pools": covered.pools, "classifier": covered.classifier, "choosing": covered.choosing},
    }  # fmt: skip
    edited = set_value(text, ("routes", route, "evaluated"), block)
    try:
        parse_policy(edited.encode(), file)
    except PolicyError as error:
        raise CannotEdit(f"the changed file would not be a good policy: {error}") from None
    return edited


def write_eval_verdict(path: Path, report: Mapping[str, Any]) -> None:
    """Write an eval's verdict into the policy that it ran.

    Args:
        path: the policy file.
        report: what `evals.summary.summarise` gives.

    Raises:
        CannotEdit: the file was changed since the run began, or nothing was compared.
        PolicyError: it is no good policy any more.
        OSError: it can't be read or written.
    """
    run, compared = report["run"], report["comparison"]
    raw = path.read_bytes()
    if sha256(raw).hexdigest() != run["policy_hash"]:
        raise CannotEdit("the file was changed since the run began, so the verdict is not about it")
    if compared is None or not report["complete"]:
        raise CannotEdit("the run compared nothing, or isn't complete")
    low, high = compared["interval_points"]
    verdict = report["verdict"]
    found = Found(
        "eval", f"{run['suite']} {run['version']}".strip(), compared["cases"], verdict["margin_points"], (low, high),
        verdict["word"], date.fromisoformat(run["started"][:10]),
    )  # fmt: skip
    replace_file(path, with_verdict(raw.decode(), str(path), run["names"]["route"], found).encode())


def replace_file(path: Path, content: bytes) -> None:
    """Put new content in a file's place: the whole new one or the old one, whenever this ends. Links and permissions stay.

    Raises:
        OSError: it can't be written.
    """
    target = path.resolve()
    partial = target.with_name(f".{target.name}.part")
    partial.write_bytes(content)
    if target.exists():
        partial.chmod(target.stat().st_mode)
    partial.replace(target)
