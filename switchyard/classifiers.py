"""The classifiers of the policy in force, and the models that this process reads from files for them and for pools.

Reading takes a while and is done before a policy is replaced; what is equal in the next policy is kept, with its memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from switchyard.config.classifier import Classifier as ClassifierBlock
from switchyard.config.classifier import EmbeddedClassifier, LocalClassifier, ModelClassifier
from switchyard.config.policy import Policy
from switchyard.config.problem import PolicyError, Problem
from switchyard.routing.classify.base import Classifier
from switchyard.routing.classify.embedded import EmbeddedClassifier as Embedded
from switchyard.routing.classify.flight import Flight
from switchyard.routing.classify.local import LocalClassifier as Local
from switchyard.routing.classify.local import Worker, worker_command
from switchyard.routing.classify.model import Ask, ModelJudge, Remember, SharedReadings, has_score
from switchyard.routing.classify.scorer import BadWeights, Scorer, load_scorer
from switchyard.routing.tokens import FileCount, load_tokenizer, why_no_tokenizer

Scorers = Mapping[str | None, Scorer]
"""Weights made ready, by file; None for those that come with the package."""


def load_scorers(policy: Policy, file: str, known: Scorers) -> Scorers:
    """Read the weights that a policy names, and make them ready; those that are known and unchanged stay as they are.

    Raises:
        PolicyError: some can't be used.
    """
    problems: list[Problem] = []
    found: dict[str | None, Scorer] = {}
    for name, route in policy.routes.items():
        for i, block in enumerate(route.classify):
            if isinstance(block, EmbeddedClassifier) and block.weights not in found:
                try:
                    found[block.weights] = load_scorer(block.weights, known.get(block.weights))
                except BadWeights as error:
                    problems.append(Problem(file, 1, 1, f"routes.{name}.classify[{i}].weights", str(error)))
    if problems:
        raise PolicyError(problems)
    return found


def load_tokenizers(policy: Policy, file: str, known: Mapping[str, FileCount]) -> dict[str, FileCount]:
    """Read the tokenizers that a policy names, by file; those that are known and unchanged stay as they are.

    Raises:
        PolicyError: some can't be used.
    """
    problems: list[Problem] = []
    found: dict[str, FileCount] = {}
    for name, pool in policy.pools.items():
        path = pool.tokenizer
        if path is None or path in found:
            continue
        try:
            if reason := why_no_tokenizer(path):
                raise ValueError(reason)
            found[path] = load_tokenizer(path, known.get(path))
        except ValueError as error:
            problems.append(Problem(file, 1, 1, f"pools.{name}.tokenizer", str(error)))
    if problems:
        raise PolicyError(problems)
    return found


class Classifiers:
    """One classifier for each different block: routes with equal blocks share cache, limit and process, and so does a reload.

    Args:
        ask: reaches a pool, for those that ask a model.
        remember: where judgements are shared with other gateways; None: nowhere.

    Attributes:
        scorers: of the policy in force.
    """

    def __init__(self, ask: Ask, remember: Remember | None) -> None:
        self._ask = ask
        self._remember = remember
        self._made: dict[ClassifierBlock, Classifier] = {}
        self._warm = False
        self._stopping: set[asyncio.Task[None]] = set()
        self.scorers: Scorers = {}

    @property
    def made(self) -> Mapping[ClassifierBlock, Classifier]:
        """All of the policy in force, by their blocks."""
        return self._made

    def follow(self, policy: Policy, scorers: Scorers) -> dict[str, list[Classifier]]:
        """Those of a new policy, by route; what it does not want any more is stopped."""
        self.scorers = scorers
        wanted = dict.fromkeys(block for route in policy.routes.values() for block in route.classify)
        old, self._made = self._made, {block: self._kept(block) or self._make(block) for block in wanted}
        gone = [made for block, made in old.items() if block not in self._made and isinstance(made, Local)]
        if gone:  # their model's memory is wanted; requests that they are asked about go on to the next classifier
            task = asyncio.create_task(_stop_all(gone), name="classifiers that are gone")
            self._stopping.add(task)
            task.add_done_callback(self._stopping.discard)
        if self._warm:
            self.warm_up()
        return {name: [self._made[block] for block in route.classify] for name, route in policy.routes.items()}

    def warm_up(self) -> None:
        """Local models load in their processes, now and after every reload, so that the first question need not wait."""
        self._warm = True
        for classifier in self._made.values():
            if isinstance(classifier, Local):
                classifier.start()

    async def stop(self) -> None:
        """End the processes of local models."""
        await _stop_all([made for made in self._made.values() if isinstance(made, Local)])
        await asyncio.gather(*self._stopping)

    def _kept(self, block: ClassifierBlock) -> Classifier | None:
        """What was made for an equal block, unless its weights were learned anew since."""
        made = self._made.get(block)
        if isinstance(block, EmbeddedClassifier) and isinstance(made, Embedded):
            return made if made.scorer is self.scorers[block.weights] else None
        return made

    def _make(self, block: ClassifierBlock) -> Classifier:
        if isinstance(block, ModelClassifier):
            shared = None
            if self._remember is not None and block.cache_size:
                shared = SharedReadings(self._remember.recall, self._remember.keep, block.cache_ttl_s)
            flight = Flight(has_score, block.concurrency, block.cache_size, block.cache_ttl_s, elsewhere=shared)
            return ModelJudge(block, self._ask, flight, block.bias, block.scale)
        if isinstance(block, LocalClassifier):
            command = worker_command(block.model, block.kind, block.label, block.max_input_tokens)
            return Local(Worker(command), block.kind, block.deadline_ms, block.max_input_tokens, block.bias, block.scale)
        return Embedded(self.scorers[block.weights], block.bias, block.scale)


async def _stop_all(classifiers: Sequence[Local]) -> None:
    await asyncio.gather(*(classifier.stop() for classifier in classifiers))
