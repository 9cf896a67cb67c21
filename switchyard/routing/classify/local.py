"""The classifier with a transformers model of its own, in a worker process beside the gateway.

The process is begun when somebody asks, answers with a deadline, and is begun anew, ever later, when it dies or hangs;
meanwhile the classifier abstains. What runs in the process is `worker.py`; nothing here imports transformers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import msgspec

from switchyard.routing.classify.base import scored
from switchyard.routing.classify.model import DEFAULT_PROMPT
from switchyard.routing.classify.stats import Abstention, AskStats
from switchyard.routing.classify.task import describe_task, plain_task
from switchyard.routing.decision import Outcome
from switchyard.routing.signals import Signals

NAME = "local"
MOST_WAITING = 8  # questions that the process has not answered; it works on one at a time
START_LIMIT_S = 300.0  # loading a few GB from a slow disk takes minutes
STUCK_S = 30.0  # a question that old means that the process hangs
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
STOP_LIMIT_S = 2.0
LINE_BYTES = 64 * 1024
log = logging.getLogger("switchyard.classify")

Kind = Literal["sequence", "causal"]


def why_not(model: str) -> str | None:
    """What keeps a `local` classifier from working here, as a line with what to do; None when nothing does.

    Looks at what is installed and at the files, and loads neither.
    """
    missing = [name for name in ("transformers", "torch") if find_spec(name) is None]
    if missing:
        return f"a local classifier needs {' and '.join(missing)}, not installed here: pip install 'switchyard-gateway[local]'"
    if not (Path(model) / "config.json").is_file():
        return f"{model} is no folder with a transformers model (config.json, weights, tokenizer)"
    return None


def worker_command(model: str, kind: Kind, label: str | None, most_tokens: int) -> list[str]:
    """The command that runs `worker.py` with this model."""
    command = [sys.executable, "-m", "switchyard.routing.classify.worker", "--model", model, "--kind", kind]
    return [*command, *(["--label", label] if label else []), "--max-tokens", str(most_tokens)]


class NoAnswer(Exception):
    """The process gives no score for this question now; the message says why, `reason` is for metrics."""

    def __init__(self, message: str, reason: Abstention) -> None:
        super().__init__(message)
        self.reason = reason


class Worker:
    """A process that answers questions line by line. Never more than one at a time; begun by the first question.

    Args:
        command: what to run.
        clock: this machine's monotonic clock, which the process reads too.
        first_pause_s: before it is begun anew; doubled each time, up to `LONGEST_PAUSE_S`, until it answers.
        stuck_s: age of an unanswered question at which the process is ended.
        start_limit_s: how long it may load.
    """

    def __init__(
        self,
        command: Sequence[str],
        clock: Callable[[], float] = time.monotonic,
        first_pause_s: float = FIRST_PAUSE_S,
        stuck_s: float = STUCK_S,
        start_limit_s: float = START_LIMIT_S,
    ) -> None:
        self._command = list(command)
        self._clock = clock
        self._first_pause_s = first_pause_s
        self._stuck_s = stuck_s
        self._start_limit_s = start_limit_s
        self._pause_s = first_pause_s
        self._start_at_s = 0.0
        self._problem = ""
        self._life: asyncio.Task[None] | None = None
        self._process: Process | None = None
        self._ready = False
        self._next_id = 0
        self._asked: dict[int, tuple[float, asyncio.Future[float]]] = {}  # until the process has answered, late or not
        self.starts = 0

    @property
    def ready(self) -> bool:
        """Whether it takes questions."""
        return self._ready

    def begin(self) -> None:
        """Start the process, if it does not run and its pause is over. Returns at once."""
        if self._life is None and self._clock() >= self._start_at_s:
            self._life = asyncio.get_running_loop().create_task(self._live(), name="local classifier")

    async def ask(self, text: str, deadline_s: float) -> float:
        """The score of a text.

        Raises:
            NoAnswer: it is not up, has enough to do, doesn't answer in time, or can't.
        """
        self.begin()
        if not self._ready or self._process is None or self._process.stdin is None:
            raise NoAnswer(self._problem or "the model is being loaded", "worker")
        now_s = self._clock()
        if self._asked and now_s - next(iter(self._asked.values()))[0] > self._stuck_s:
            self._process.kill()  # the end of its output does the rest
            raise NoAnswer(f"the process has not answered for {self._stuck_s:g} s and is begun anew", "worker")
        if len(self._asked) >= MOST_WAITING:
            raise NoAnswer("busy: the model has enough to do", "busy")
        self._next_id += 1
        answer: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._asked[self._next_id] = (now_s, answer)
        line = msgspec.json.encode({"id": self._next_id, "text": text, "by": now_s + deadline_s})
        self._process.stdin.write(line + b"\n")  # few and short: the pipe or our memory takes them, nobody waits
        try:
            async with asyncio.timeout(deadline_s):
                return await answer
        except TimeoutError:
            raise NoAnswer(f"no answer within {deadline_s * 1000:g} ms", "late") from None

    async def stop(self) -> None:
        """End the process; it may be begun again."""
        if self._life is not None:
            self._life.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._life

    async def _live(self) -> None:
        """From the start of the process to its end."""
        process: Process | None = None
        try:
            self.starts += 1
            process = await asyncio.create_subprocess_exec(
                *self._command, stdin=PIPE, stdout=PIPE, limit=LINE_BYTES, start_new_session=True
            )
            self._process = process
            assert process.stdout is not None
            async with asyncio.timeout(self._start_limit_s):
                first = _message(await process.stdout.readline())
            if "ready" not in first:
                self._problem = f"the model can't be used: {first.get('failed', 'its process ended while loading')}"
                if "failed" in first:
                    self._pause_s = LONGEST_PAUSE_S  # its files are as they are: loading them every second helps nobody
                return
            self._ready, self._problem = True, ""
            log.info("local classifier: %s", first["ready"])
            while line := await process.stdout.readline():
                self._take(_message(line))
            self._problem = "the model's process ended"
        except TimeoutError:
            self._problem = f"the model was not loaded within {self._start_limit_s:g} s"
        except (OSError, ValueError) as error:  # no such program; a line without end
            self._problem = f"the model's process can't be used: {error}"
        finally:
            self._ready, self._process = False, None
            if process is not None:
                status = await _end(process)
                self._problem += f" (exit status {status})" if status and self._problem else ""
            self._give_up()

    def _take(self, message: dict[str, Any]) -> None:
        """An answer of the process; one that nobody waits for any more is only crossed off."""
        _, answer = self._asked.pop(message.get("id", 0), (0.0, None))
        if answer is None or answer.done():
            return
        p = message.get("p")
        if isinstance(p, int | float) and 0 <= p <= 1:
            self._pause_s = self._first_pause_s
            answer.set_result(float(p))
        elif message.get("late"):
            answer.set_exception(NoAnswer("the model got to it too late", "late"))
        else:
            answer.set_exception(NoAnswer(f"the model can't score it: {message.get('error', 'no number')}"[:200], "unreadable"))

    def _give_up(self) -> None:
        """The process is gone: tell all who wait, and when it may be begun anew."""
        self._life = None
        self._start_at_s = self._clock() + self._pause_s
        self._pause_s = min(LONGEST_PAUSE_S, 2 * self._pause_s)
        if self._problem:
            log.warning("local classifier: %s; it is begun anew by the next request in %g s", self._problem, self._pause_s / 2)
        for _, answer in self._asked.values():
            if not answer.done():
                answer.set_exception(NoAnswer(self._problem or "the model's process was ended", "worker"))
        self._asked.clear()


class LocalClassifier:
    """Scores with a worker's model.

    Args:
        worker: answers.
        kind: sequence gets the human's text, causal a question about it.
        deadline_ms: longest wait.
        max_input_tokens: length to which the text is cut.
        bias: added to the logit of the score, as calibration found it.
        scale: the logit is multiplied by it before.
    """

    def __init__(
        self, worker: Worker, kind: Kind, deadline_ms: int, max_input_tokens: int, bias: float = 0.0, scale: float = 1.0
    ) -> None:
        self.worker = worker
        self._kind = kind
        self._deadline_ms = deadline_ms
        self._max_input_tokens = max_input_tokens
        self._bias = bias
        self._scale = scale
        self.stats = AskStats()

    async def score(self, signals: Signals) -> Outcome:
        """One question to the worker."""
        if not signals.last_human_text:
            self.stats.abstained["no_text"] += 1
            return Outcome(NAME, why="no text by a human to look at")
        if self._kind == "causal":
            text = DEFAULT_PROMPT.replace("{task}", describe_task(signals, self._max_input_tokens))
        else:
            text = plain_task(signals, self._max_input_tokens)
        self.stats.asked += 1
        began_s = time.monotonic()
        try:
            p = await self.worker.ask(text, self._deadline_ms / 1000)
        except NoAnswer as none:
            self.stats.abstained[none.reason] += 1
            return Outcome(NAME, why=str(none), failed=True)
        self.stats.note_answer(time.monotonic() - began_s)
        return scored(NAME, p, self._bias, self._scale, "a model of the gateway's own")

    def start(self) -> None:
        """Load the model now, so that the first requests find it there."""
        self.worker.begin()

    async def stop(self) -> None:
        """End the worker."""
        await self.worker.stop()


def _message(line: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return {}
    return found if isinstance(found, dict) else {}


async def _end(process: Process) -> int | None:
    """Make sure that the process is gone; its exit status, None when it had to be ended here."""
    if process.stdin is not None:
        process.stdin.close()  # a worker ends with its input
    try:
        async with asyncio.timeout(STOP_LIMIT_S):
            return await process.wait()
    except TimeoutError:
        return None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
