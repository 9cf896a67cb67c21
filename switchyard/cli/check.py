"""Say everything that is wrong with a policy, with file, line, key and a hint - or that it is good.

  switchyard check policy.yaml
  switchyard check policy.yaml --json

Warnings (a key's variable that is not set here, a threshold that is never reached) don't change the exit code: 0 for
a good policy, 1 for one with errors.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from switchyard.cli.main import COULD_NOT_RUN, GOOD, NOT_GOOD, CommandFailed
from switchyard.config.classifier import EmbeddedClassifier, LocalClassifier
from switchyard.config.load import load_policy
from switchyard.config.policy import Policy
from switchyard.config.problem import PolicyError, Problem
from switchyard.config.route import Threshold
from switchyard.config.secrets import read_secrets
from switchyard.config.sources import BadSource, file_path, read_replica_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("policy", metavar="FILE", help="policy file")
    parser.add_argument("--json", action="store_true", help="problems and warnings as JSON")


def run(given: argparse.Namespace) -> int:
    """Check a file."""
    problems: list[dict[str, object]] = []
    warnings: list[str] = []
    try:
        policy = load_policy(given.policy)
        if broken := list(find_broken_weights(policy, given.policy)):
            raise PolicyError(broken)
        warnings = list(find_warnings(policy, given.policy, os.environ))
    except PolicyError as error:
        problems = [vars(p) for p in error.problems]
        text = str(error)
    except OSError as error:
        raise CommandFailed(f"can't read {given.policy}: {error.strerror}", COULD_NOT_RUN) from None
    if given.json:
        print(json.dumps({"good": not problems, "problems": problems, "warnings": warnings}, indent=2))
    else:
        if problems:
            print(text)
            if any(p["key"] == "nodes" for p in problems):
                print(f"this looks like a cluster file: `switchyard cluster check {given.policy}` reads those", file=sys.stderr)
        for warning in warnings:
            print(f"{given.policy}: warning: {warning}")
        if not problems:
            print(f"{given.policy} is good: {_summary(policy)}")
    return NOT_GOOD if problems else GOOD


def _summary(policy: Policy) -> str:
    replicas = sum(len(p.listed) for p in policy.pools.values())
    counts = (("route", len(policy.routes)), ("pool", len(policy.pools)), ("replica", replicas))
    return ", ".join(f"{count} {name}{'' if count == 1 else 's'}" for name, count in counts)


def find_broken_weights(policy: Policy, file: str) -> Iterator[Problem]:
    """Embedded heads that can't be used: without its weights a gateway doesn't start."""
    from switchyard.routing.classify.scorer import BadWeights, load_scorer

    for name, route in policy.routes.items():
        for i, block in enumerate(route.classify):
            if isinstance(block, EmbeddedClassifier):
                try:
                    load_scorer(block.weights)
                except BadWeights as error:
                    yield Problem(file, 1, 1, f"routes.{name}.classify[{i}].weights", str(error))


def find_warnings(policy: Policy, file: str, environment: Mapping[str, str]) -> Iterator[str]:
    """What is no error, but may not do what its author thinks."""
    from switchyard.routing.classify.local import why_not
    from switchyard.routing.classify.scorer import digest_weights
    from switchyard.routing.fingerprint import differing, fingerprint
    from switchyard.routing.tokens import why_no_tokenizer

    try:
        read_secrets(policy, file, environment)
    except PolicyError as error:
        for problem in error.problems:
            yield f"{problem.key}: {problem.message} here; `serve` will refuse to start without it"
    for name, pool in policy.pools.items():
        if pool.tokenizer is not None and (reason := why_no_tokenizer(pool.tokenizer)):
            yield f"pools.{name}.tokenizer: {reason}; `serve` will refuse to start"
    for name, route in policy.routes.items():
        for block in route.classify:
            if isinstance(block, LocalClassifier) and (reason := why_not(block.model)):
                yield f"routes.{name}.classify: {reason}; `serve` will refuse to start"
        if route.evaluated is not None:
            was, changed = route.evaluated, differing(route.evaluated.hash, fingerprint(policy, route, digest_weights))
            if changed:
                yield (
                    f"routes.{name}.evaluated: {' and '.join(changed)} changed since the verdict {was.verdict} of {was.date} "
                    f"({was.suite}): it says nothing about this policy; run `switchyard eval` again"
                )
    if not policy.routes:
        yield "there are no routes: clients can only ask for pools by name"
    for name, pool in policy.pools.items():
        if pool.source is not None and pool.source.startswith("file://"):
            path = file_path(pool.source, Path(file).parent)
            try:
                read_replica_file(path.read_bytes(), str(path), name)
            except OSError as error:
                yield f"pools.{name}.replicas: {path} can't be read ({error.strerror}): no replica until it can"
            except BadSource as error:
                yield f"pools.{name}.replicas: {error}"
        wanted = 32_000  # what coding agents ask for
        if isinstance(pool.context, int) and pool.context < 2 * wanted and pool.max_output_tokens == "pass":
            yield (
                f"pools.{name}: agents ask for {wanted} output tokens, which leaves little of {pool.context}: "
                "consider max_output_tokens: clamp"
            )
    for name, route in policy.routes.items():
        if route.check.tool_calls == "escalate" and len(route.choose) < 2:
            yield f"routes.{name}.check.tool_calls: escalate needs a larger pool in choose to go to; calls pass unchecked"
        if route.shadow is not None and len(route.choose) < 2:
            yield f"routes.{name}.shadow: there is no larger pool in choose to compare with; nothing is asked"
        if route.share is not None and route.share.pool not in {step.use for step in route.choose}:
            yield f"routes.{name}.share: pool {route.share.pool} is not in choose: no scored decision can go there"
        if (route.share is not None or route.pressure is not None) and not route.classify:
            yield f"routes.{name}: share and pressure need scores, and classify is empty"
        if route.use is None and route.choose and not route.classify and any(t.p_at_least for t in route.choose):
            yield f"routes.{name}: choose has thresholds, but classify is empty: every request goes to {route.default_pool}"
        yield from _unreachable(name, route.choose)


def _unreachable(name: str, steps: tuple[Threshold, ...]) -> Iterator[str]:
    lowest = 2.0
    for i, step in enumerate(steps):
        if step.p_at_least is None:
            if i < len(steps) - 1:
                yield f"routes.{name}.choose[{i}] always holds: the entries after it are never reached"
            return
        if step.p_at_least >= lowest:
            yield f"routes.{name}.choose[{i}]: p_at_least {step.p_at_least} is not below the one before it: it is never reached"
        lowest = min(lowest, step.p_at_least)
