"""Say everything that is wrong with a cluster file, with file, line, key and a hint, and how memory adds up.

  switchyard cluster check deploy/cluster.yaml
  switchyard cluster check deploy/cluster.yaml --json

What is looked at: memory on every GPU with the KV cache, KV heads against ranks, what the cabling carries, ports, images,
flags of the engines, placements, leases, and whether the gateway's policy knows the pools.

Warnings don't change the exit code: 0 for a good cluster, 1 for one with errors.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from switchyard.cli.cluster.files import add_file, now, read_file, read_named_policy
from switchyard.cli.main import GOOD, NOT_GOOD

if TYPE_CHECKING:
    from switchyard.cluster.check import Report
    from switchyard.cluster.spec import Cluster
    from switchyard.config.load import Loaded
    from switchyard.config.problem import Problem


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_file(parser)
    parser.add_argument("--json", action="store_true", help="problems, warnings and verdicts as JSON")


def run(given: argparse.Namespace) -> int:
    """Check a file."""
    from switchyard.cluster.check import check
    from switchyard.cluster.spec import ClusterError, parse_cluster

    path: str = given.cluster
    try:
        loaded = parse_cluster(read_file(path), path)
    except ClusterError as error:
        _show(given, error.problems, [], None)
        if any(p.key == "routes" for p in error.problems):
            print(f"this looks like a policy: `switchyard check {path}` reads those", file=sys.stderr)
        return NOT_GOOD
    _, policy = read_named_policy(path, loaded.value)
    report = check(loaded.value, now(), policy)
    problems = _placed(loaded, report, "error")
    _show(given, problems, _placed(loaded, report, "warning"), report)
    return NOT_GOOD if problems else GOOD


def _placed(loaded: Loaded[Cluster], report: Report, severity: str) -> list[Problem]:
    found = [loaded.problem(f.path, f.message, f.hint) for f in report.findings if f.severity == severity]
    return sorted(found, key=lambda p: (p.line, p.column))


def _show(given: argparse.Namespace, problems: list[Problem], warnings: list[Problem], report: Report | None) -> None:
    verdicts = report.verdicts if report is not None else ()
    if given.json:
        document = {
            "good": not problems,
            "problems": [vars(p) for p in problems],
            "warnings": [vars(p) for p in warnings],
            "memory": [
                {
                    "pool": v.pool,
                    "nodes": list(v.nodes),
                    "fits": v.fits,
                    "kv_gib": round(v.kv_gib, 2),
                    "kv_tokens": v.kv_tokens,
                    "words": v.words,
                }
                for v in verdicts
            ],
        }
        print(json.dumps(document, indent=2))
        return
    for problem in problems:
        print(problem)
    for warning in warnings:
        print(f"{warning.file}:{warning.line}:{warning.column}: warning: {str(warning).partition(': ')[2]}")
    for verdict in verdicts:
        print(f"{verdict.words}  [{', '.join(verdict.nodes)}]")
    if not problems:
        print(f"{given.cluster} is good")
