"""The books of a soak: do the clients', the engines' and the gateway's own accounts agree?"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import quantiles
from typing import Any

from .engines import Ledger, Storm
from .traffic import Sent

STORM_ENDINGS = frozenset({"event", "cut", "error 502", "error 503", "error 504"})
MARGIN_S = 0.5
"""Around a storm's beginning, bytes are on their way that neither side's account knows."""

OUTCOMES: Mapping[str, frozenset[str]] = {
    "good": frozenset({"ok"}),
    "event": frozenset({"broken"}),
    "cut": frozenset({"broken"}),
    "left": frozenset({"client_left", "ok", "broken", "refused", "engine_error"}),
}
"""What the decision log may say about each ending; errors are told by who made them."""


def judge(sent: Sequence[Sent], ledger: Ledger, storms: Sequence[Storm]) -> Iterator[str]:
    """Requests that ended in a way they may not."""
    yield from ledger.wrong
    for request in sent:
        if not request.ending:
            yield f"{request.id} ({request.scenario}): lost, it never ended"
        elif request.ending not in request.allowed and not (
            request.ending in STORM_ENDINGS and was_in_a_storm(request, ledger, storms)
        ):
            wanted = " or ".join(sorted(request.allowed))
            how = f"{request.ending} {request.code}".strip()
            yield f"{request.id} ({request.scenario}): ended with {how}, not with {wanted}; pool {request.pool}"
        if ledger.begun.get(request.id, 0) > 1 and not was_in_a_storm(request, ledger, storms):
            yield f"{request.id} ({request.scenario}): {ledger.begun[request.id]} engines began an answer"


def was_in_a_storm(request: Sent, ledger: Ledger, storms: Sequence[Storm]) -> bool:
    """Whether a storm has hit it, began while it ran, or had its engines refuse as busy."""
    if request.id in ledger.hit:
        return True
    for storm in storms:
        alone = storm.engine == "narrow" and request.scenario == "burst"  # its pool has no other
        if (alone or storm.what == "busy") and request.began_s < storm.ended_s + MARGIN_S and request.ended_s > storm.began_s:
            return True
        if request.began_s - MARGIN_S < storm.began_s < request.ended_s + MARGIN_S:
            return True
    return False


def compare_with_log(sent: Sequence[Sent], log: Path) -> Iterator[str]:
    """Where the decision log says something else than the clients."""
    lines: dict[str, list[dict[str, Any]]] = {}
    for raw in log.read_bytes().splitlines():
        line = json.loads(raw)
        lines.setdefault(line.get("client_request_id", ""), []).append(line)
    for line in lines.pop("", []):
        yield f"the decision log has {line['id']}, which nobody sent: {line['path']} {line['outcome']}"
    for request in sent:
        found = lines.pop(request.id, [])
        if len(found) not in request.lines:
            yield f"{request.id} ({request.scenario}): {len(found)} lines in the decision log; it ended with {request.ending}"
        for line in found:
            may_be = OUTCOMES.get(request.ending, frozenset({"refused" if request.code else "engine_error"}))
            if line["outcome"] not in may_be:
                yield f"{request.id} ({request.scenario}): {request.ending}, but the decision log says {line['outcome']!r}"
    for id_ in lines:
        yield f"the decision log has {id_}, which nobody sent"


def count_lines(log: Path) -> int:
    return log.read_bytes().count(b"\n")


def look_for_failures(output: str) -> Iterator[str]:
    """Exceptions and errors in what the gateway wrote."""
    for line in output.splitlines():
        if re.search(r"Traceback|\b(ERROR|CRITICAL)\b|Task .* was (never|destroyed)", line):
            yield f"the gateway wrote: {line[:300]}"


def growth(values: Sequence[float]) -> float:
    """What is held between the big requests: the low values (first quartile) of the last quarter over those of the second."""
    quarter = len(values) // 4
    if quarter < 2:
        return 1.0
    return _low(values[-quarter:]) / _low(values[quarter : 2 * quarter])


def _low(values: Sequence[float]) -> float:
    return quantiles(values, n=4)[0]


def table(sent: Sequence[Sent]) -> str:
    """How the requests of each scenario ended."""
    counts: dict[str, Counter[str]] = {}
    for request in sent:
        counts.setdefault(request.scenario, Counter())[request.ending or "lost"] += 1
    rows = [
        f"  {name:<18}{sum(c.values()):>6}   " + ", ".join(f"{n} {k}" for k, n in c.most_common())
        for name, c in sorted(counts.items())
    ]
    return "\n".join(rows)
