"""A run's folder: what was asked for, every finished trial, the raw logs. Written so that a killed run loses nothing.

run.json says what is run: suite, arms, names, margin, versions. cases.jsonl has one line for each finished trial: arm, case,
state, score, and the gateway's decision record of each of its requests. raw/ARM/CASE.TRIAL.json.gz holds requests and answers
and what the grader said. The reports beside them are made from the first two and never read.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import msgspec

from switchyard.evals.verdict import State

FORMAT = 2
"""Of run.json and cases.jsonl; a run of another format is neither resumed nor read."""


class BadFolder(Exception):
    """The folder can't be used as asked; the message says what to do."""


class Finished(msgspec.Struct, frozen=True):
    """A finished trial: one line of cases.jsonl.

    Attributes:
        arm: arm, case and trial together are unique in the file.
        case: id of the case in its suite.
        category: of the case.
        trial: from 1.
        label: what its requests carried in `x-switchyard-case`: run, arm, case, trial and a random part.
        model: the name that was asked for: a route or a pool.
        state: one of the states above.
        score: share of the points, 0 to 1.
        detail: why, in a sentence.
        began_s: seconds of the epoch.
        wall_s: from the first request to the grade, in seconds.
        decisions: the gateway's decision record of each request, in order.
        lost_requests: requests that the gateway turned away before it had anything to record.
    """

    arm: str
    case: str
    category: str
    trial: int
    label: str
    model: str
    state: State
    score: float
    detail: str
    began_s: float
    wall_s: float
    decisions: list[dict[str, Any]]
    lost_requests: int = 0

    @property
    def key(self) -> tuple[str, str, int]:
        """What makes it one of its run."""
        return self.arm, self.case, self.trial

    def share(self, pool: str) -> float:
        """The share of its requests that a pool answered; 0 when none was recorded."""
        answered = [d.get("pool") for d in self.decisions]
        return answered.count(pool) / len(answered) if answered else 0.0


@dataclass
class Folder:
    """An open run. A context manager: inside, no other process writes to it. A folder that stays empty goes again.

    Args:
        path: of the folder.
    """

    path: Path
    finished: list[Finished] = field(default_factory=list)

    def __enter__(self) -> Folder:
        self._made = [p for p in (self.path, *self.path.parents) if not p.exists()]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock: TextIO = (self.path / ".lock").open("w")
        except OSError as error:
            raise BadFolder(f"can't write to {self.path}: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise BadFolder(f"another eval is writing to {self.path}") from None
        return self

    def __exit__(self, *_: object) -> None:
        if self._made and [p.name for p in self.path.iterdir()] == [".lock"]:
            (self.path / ".lock").unlink()
            with contextlib.suppress(OSError):  # another run has come into a folder above it
                for made in self._made:
                    made.rmdir()
        self._lock.close()

    @property
    def has_run(self) -> bool:
        """Whether a run was begun here."""
        return (self.path / "run.json").exists()

    def begin(self, run: dict[str, Any]) -> None:
        """Write down what will be run, and start anew."""
        (self.path / "cases.jsonl").write_bytes(b"")
        _write(self.path / "run.json", json.dumps({"format": FORMAT, **run}, indent=2).encode() + b"\n")

    def resume(self) -> dict[str, Any]:
        """Read what was run so far; a line that was cut off by the end of its process is taken out.

        Raises:
            BadFolder: there is no run, or it can't be read.
        """
        run = read_run(self.path)
        file = self.path / "cases.jsonl"
        whole = file.read_bytes()
        complete = whole[: whole.rfind(b"\n") + 1]
        if complete != whole:
            _write(file, complete)
        self.finished = read_finished(self.path)
        return run

    def take_back(self) -> None:
        """What was run can be no result: nothing goes on with it, and the next run takes its place."""
        (self.path / "run.json").replace(self.path / "run.taken-back.json")

    def keep(self, trial: Finished, raw: dict[str, Any]) -> None:
        """Keep a finished trial for good: first its raw log, then its line.

        A lone surrogate, which JSON may hold and UTF-8 may not, becomes a question mark: no answer of a model ends a run.
        """
        line = json.dumps(msgspec.to_builtins(trial), ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
        name = f"{trial.case.replace('/', '%2F')}.{trial.trial}.json.gz"
        file = self.path / "raw" / trial.arm / name
        file.parent.mkdir(parents=True, exist_ok=True)
        _write(file, gzip.compress(json.dumps(raw, default=str).encode(), compresslevel=5, mtime=0))
        with (self.path / "cases.jsonl").open("ab") as lines:
            lines.write(line + b"\n")
            lines.flush()
            os.fsync(lines.fileno())
        self.finished.append(msgspec.json.decode(line, type=Finished))

    def write(self, name: str, text: str) -> Path:
        """Write a report."""
        _write(self.path / name, text.encode("utf-8", "replace"))
        return self.path / name


def _write(file: Path, content: bytes) -> None:
    """All of it or nothing, whenever the process ends."""
    partial = file.with_name(file.name + ".part")
    partial.write_bytes(content)
    partial.replace(file)


def read_run(path: Path) -> dict[str, Any]:
    """What a folder's run was.

    Raises:
        BadFolder: there is none, or it can't be read.
    """
    try:
        run = json.loads((path / "run.json").read_bytes())
    except OSError:
        raise BadFolder(f"{path} holds no run (run.json is missing)") from None
    except ValueError as error:
        raise BadFolder(f"{path}/run.json can't be read: {error}") from None
    if not isinstance(run, dict) or run.get("format") != FORMAT:
        raise BadFolder(f"{path} was written by another version of `switchyard eval`: begin another run, with --out")
    return run


def read_finished(path: Path) -> list[Finished]:
    """The finished trials of a folder's run.

    Raises:
        BadFolder: a line is none.
    """
    found: list[Finished] = []
    decoder = msgspec.json.Decoder(Finished)
    for number, line in enumerate((path / "cases.jsonl").read_bytes().splitlines(), 1):
        try:
            found.append(decoder.decode(line))
        except msgspec.MsgspecError as error:
            raise BadFolder(f"{path}/cases.jsonl:{number}: {error}") from None
    return found
