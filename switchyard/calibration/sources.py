"""Where graded requests come from: labelled prompts, an eval's run, or a decision log joined with outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from switchyard.calibration.fit import Logistic
from switchyard.calibration.labels import Graded
from switchyard.errors import GatewayError
from switchyard.evals.folder import BadFolder, Finished, read_finished, read_run
from switchyard.routing.classify.base import Classifier, ask_in_turn
from switchyard.routing.recorded import BadRecord, Recorded, read_line
from switchyard.routing.request import Body, RequestView
from switchyard.routing.signals import Signals

Line = TypeVar("Line", bound=msgspec.Struct)
Calibrations = Mapping[str, Logistic]
DECIDED_BY_SCORE = frozenset({"score", "share", "pressure"})


class BadSource(Exception):
    """A file that can't be used as asked; the message names the place and says what to do."""


class Labelled(msgspec.Struct, frozen=True):
    """A line of labelled prompts: a text, or a whole request body with its protocol."""

    small_ok: bool
    big_ok: bool
    prompt: str | None = None
    request: dict[str, Any] | None = None
    protocol: Literal["chat", "responses", "messages"] = "chat"


class Judged(msgspec.Struct, frozen=True):
    """A line of outcomes: which request of a decision log, and how good both answers were."""

    small_ok: bool
    big_ok: bool
    id: str = ""
    case: str = ""


# What to do about a line that can't be read: most often it is another kind of file.
EXPECTED: Mapping[type[msgspec.Struct], str] = {
    Labelled: 'a labelled prompt is expected, like {"prompt": "...", "small_ok": true, "big_ok": false}; '
    "for a decision log, --outcomes names the file with its outcomes",
    Judged: 'an outcome is expected, like {"id": "req-...", "small_ok": true, "big_ok": false}',
}


# ---- labelled prompts ----


def read_prompts(path: Path, classifiers: Sequence[Classifier]) -> list[Graded]:
    """Labelled prompts, scored by classifiers that run in this process.

    Raises:
        BadSource: a line is none.
        OSError: the file can't be read.
    """
    return asyncio.run(_score_all(path, classifiers))


async def _score_all(path: Path, classifiers: Sequence[Classifier]) -> list[Graded]:
    rows = []
    for number, labelled in _read_lines(path, Labelled):
        signals = _signals(f"{path}:{number}", labelled)
        last = (await ask_in_turn(classifiers, signals))[-1:]
        p, by = (last[0].p, last[0].by) if last and last[0].p is not None else (None, "")
        rows.append(Graded(f"line {number}", labelled.small_ok, labelled.big_ok, p, by, signals.last_human_text))
    return rows


def _signals(place: str, labelled: Labelled) -> Signals:
    body = labelled.request
    if (labelled.prompt is None) == (body is None):
        raise BadSource(f"{place}: give either prompt, a text, or request, a whole body")
    if body is None:
        body = {"model": "", "messages": [{"role": "user", "content": labelled.prompt}]}
    try:
        signals = Signals(RequestView(labelled.protocol, Body(msgspec.json.encode(body)), {}))
        _ = signals.last_human_text
    except GatewayError as error:
        raise BadSource(f"{place}: the request can't be read: {error.message}") from None
    return signals


# ---- an eval's run ----


def read_eval(path: Path, route: str, current: Calibrations) -> tuple[str, list[Graded]]:
    """The cases of an eval that ran big, small and routed; the scores are those of the routed arm. Gives its suite as well.

    With several trials a model is good when it passed more than half of them. Cases that were broken by the infrastructure,
    or could not be graded, are left out: they say nothing about a model.

    Args:
        path: the run's folder.
        route: whose scores are wanted.
        current: what the policy carries now, by classifier: the scores are given on its scale, whatever the run's was.

    Raises:
        BadSource: it is no such run.
    """
    try:
        run, finished = read_run(path), read_finished(path)
    except (BadFolder, OSError) as error:
        raise BadSource(str(error)) from None
    if (tried := run["names"]["route"]) != route:
        raise BadSource(f"{path}: the run was about the route {tried}, not {route}")
    arms: dict[str, dict[str, list[Finished]]] = {}
    for trial in finished:
        arms.setdefault(trial.arm, {}).setdefault(trial.case, []).append(trial)
    missing = [arm for arm in ("big", "small", "routed") if arm not in arms]
    if missing:
        raise BadSource(f"{path}: the run has no arm {' and '.join(missing)}; calibrating needs big, small and routed")
    rows = []
    for case, routed in arms["routed"].items():
        small, big = (_passed(arms[arm].get(case, ())) for arm in ("small", "big"))
        if small is not None and big is not None:
            records = [d for trial in sorted(routed, key=lambda t: t.trial) for d in trial.decisions]
            p, by = next(filter(None, (_score(d.get("decision") or {}, current) for d in records)), (None, ""))
            rows.append(Graded(case, small, big, p, by))
    return f"{run['suite']} {run.get('version', '')}".strip(), rows


def _passed(trials: Sequence[Finished]) -> bool | None:
    graded = [t.state == "pass" for t in trials if t.state not in {"error", "unscored"}]
    return sum(graded) * 2 > len(graded) if graded else None


def _score(decision: Mapping[str, Any], current: Calibrations) -> tuple[float, str] | None:
    """The score that settled a request, on the scale of the policy as it is now, and who gave it."""
    p, raw_p, by = decision.get("p"), decision.get("raw_p"), str(decision.get("classifier", ""))
    if decision.get("kind") not in DECIDED_BY_SCORE or p is None:
        return None
    return (current[by](raw_p) if raw_p is not None and by in current else float(p)), by


# ---- recorded decisions ----


def read_log(log: Path, outcomes: Path, route: str, current: Calibrations) -> tuple[list[Graded], int]:
    """A route's recorded decisions with outcomes; joined by the request's id, or by its `x-switchyard-case`.

    Of several requests with one case the first that a score decided counts. For the arguments see `read_eval`.

    Returns:
        The rows, and how many outcomes found no record.

    Raises:
        BadSource: a line is none.
        OSError: a file can't be read.
    """
    wanted: dict[tuple[str, str], Judged] = {}
    for number, judged in _read_lines(outcomes, Judged):
        if bool(judged.id) == bool(judged.case):
            raise BadSource(f"{outcomes}:{number}: give either id, a request's, or case, its x-switchyard-case")
        wanted[("id", judged.id) if judged.id else ("case", judged.case)] = judged
    found: dict[tuple[str, str], Graded] = {}
    for record in _records(log):
        if record.route != route:
            continue
        for key in (("id", record.id), ("case", record.case)):
            if key in wanted and (key not in found or found[key].p is None):
                p, by = _score(msgspec.structs.asdict(record.decision), current) or (None, "")
                judged = wanted[key]
                found[key] = Graded(key[1], judged.small_ok, judged.big_ok, p, by, record.prompt or None)
    return list(found.values()), len(wanted) - len(found)


def _records(path: Path) -> Iterator[Recorded]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    yield read_line(line)
                except BadRecord as error:
                    raise BadSource(f"{path}:{number}: no decision record: {error}") from None


def _read_lines(path: Path, kind: type[Line]) -> Iterator[tuple[int, Line]]:
    decoder: Callable[[bytes], Line] = msgspec.json.Decoder(kind).decode
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    yield number, decoder(line)
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                    raise BadSource(f"{path}:{number}: {error}; {EXPECTED[kind]}") from None
