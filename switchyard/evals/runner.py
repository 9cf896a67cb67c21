"""Runs cases under arms: arm after arm, several cases at a time; each finished trial is joined with its decisions and kept.

Arms run one after the other, so that each has latencies and a throughput of its own. A trial that was under way when the run
was ended is tried again when it is resumed, under a new label; one that was finished is not.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from switchyard.evals.arms import AGAIN, BIG, RANDOM, ROUTED, SMALL, Names, draw_big
from switchyard.evals.conversation import Conversation, Kept, Refused
from switchyard.evals.folder import Finished, Folder
from switchyard.evals.gateway import CouldNotRun, Gateway
from switchyard.evals.suite import Case, Graded, Suite

WITHOUT_RECORD = {"body_too_large", "head_too_large", "method_not_allowed", "request_timeout", "too_many_connections"}
"""Codes of refusals that the gateway makes before it has a request to record."""


class Progress(Protocol):
    """Is told how far the run is."""

    def note(self, trial: Finished, done: int, total: int) -> None:
        """A trial has finished."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run.

    Attributes:
        run_id: short, part of every label.
        arms: in the order in which they run.
        trials: of each case under each arm.
        seed: of the random arm's draw.
        concurrency: cases under way at the same time.
        timeout_s: longest silence of an answer.
        settings: fields for every request, like temperature.
    """

    run_id: str
    suite: Suite
    cases: Sequence[Case]
    arms: Sequence[str]
    names: Names
    trials: int
    seed: int
    concurrency: int
    timeout_s: float
    settings: Mapping[str, Any]

    @property
    def total(self) -> int:
        """Trials in all."""
        return len(self.arms) * len(self.cases) * self.trials


class Runner:
    """One run.

    Args:
        plan: what to run.
        gateway: where to ask.
        folder: where trials are kept; those that it has are not run again.
        progress: is told of each finished trial.
    """

    def __init__(self, plan: Plan, gateway: Gateway, folder: Folder, progress: Progress) -> None:
        self._plan, self._gateway, self._folder, self._progress = plan, gateway, folder, progress
        self._keeping = asyncio.Lock()

    async def run(self) -> None:
        """Run what is missing.

        Raises:
            CouldNotRun: the gateway is gone, or records can't be joined; what is finished stays.
        """
        names = self._plan.names
        asked = {BIG: names.big, AGAIN: names.big, SMALL: names.small, ROUTED: names.route, RANDOM: names.small}
        await self._gateway.check_models({asked[arm] for arm in self._plan.arms}, f"{self._plan.run_id}/check")
        for arm in self._plan.arms:
            models = self._models(arm)
            done = {trial.key for trial in self._folder.finished}
            units = iter([u for u in self._units() if (arm, u[0].id, u[1]) not in done])
            try:
                async with asyncio.TaskGroup() as workers:
                    for _ in range(self._plan.concurrency):
                        workers.create_task(self._work(arm, models, units))
            except ExceptionGroup as group:  # one is enough to end a run, and to tell why
                raise group.exceptions[0] from None

    def _units(self) -> Iterator[tuple[Case, int]]:
        for trial in range(1, self._plan.trials + 1):
            for case in self._plan.cases:
                yield case, trial

    def _models(self, arm: str) -> Mapping[tuple[str, int], str]:
        """The name that each unit of an arm asks for."""
        names = self._plan.names
        units = [(case.id, trial) for case, trial in self._units()]
        if arm == RANDOM:
            routed = [t for t in self._folder.finished if t.arm == ROUTED]
            shares = [(f"{t.trial} {t.case}", t.share(names.big)) for t in routed]
            drawn = draw_big(shares, self._plan.seed)
            return {(c, t): names.big if f"{t} {c}" in drawn else names.small for c, t in units}
        model = {BIG: names.big, AGAIN: names.big, SMALL: names.small, ROUTED: names.route}[arm]
        return dict.fromkeys(units, model)

    async def _work(self, arm: str, models: Mapping[tuple[str, int], str], units: Iterator[tuple[Case, int]]) -> None:
        for case, trial in units:
            label = f"{self._plan.run_id}/{arm}/{case.id}/{trial}-{secrets.token_hex(2)}"
            await self._try(arm, case, trial, models[case.id, trial], label)

    async def _try(self, arm: str, case: Case, trial: int, model: str, label: str) -> None:
        plan, gateway = self._plan, self._gateway
        conversation = Conversation(
            gateway.url, model, label, gateway.api_key, gateway.transport, plan.timeout_s, dict(plan.settings)
        )
        began_s, clock_s = time.time(), time.monotonic()
        try:
            graded = await plan.suite.attempt(case, conversation)
        except Refused as refused:
            graded = Graded("error", 0.0, str(refused))
        wall_s = time.monotonic() - clock_s
        kept = conversation.kept
        errors = {k.headers.get("x-switchyard-error") for k in kept}
        if "invalid_api_key" in errors:
            raise CouldNotRun(f"{gateway.url} wants an API key: name its variable with --api-key-env")
        if "draining" in errors:
            raise CouldNotRun(f"the gateway at {gateway.url} is shutting down")
        if any(k.unreachable for k in kept) and not await gateway.alive():
            raise CouldNotRun(f"the gateway at {gateway.url} is gone: {next(k.trouble for k in kept if k.unreachable)}")
        decisions = await gateway.decisions(label, [k.id for k in kept if _has_record(k)])
        finished = Finished(
            arm=arm, case=case.id, category=case.category, trial=trial, label=label, model=model, state=graded.state,
            score=graded.score, detail=graded.detail[:1000], began_s=began_s, wall_s=wall_s, decisions=decisions,
            lost_requests=len(kept) - len(decisions),
        )  # fmt: skip
        raw = {"label": label, "grade": graded.more, "requests": [k.as_dict() for k in kept]}
        async with self._keeping:
            await asyncio.to_thread(self._folder.keep, finished, raw)
        self._progress.note(finished, len(self._folder.finished), plan.total)


def _has_record(kept: Kept) -> bool:
    """Whether the gateway must have a record: it does of every request whose head and body it took."""
    return not kept.unreachable and kept.headers.get("x-switchyard-error") not in WITHOUT_RECORD
