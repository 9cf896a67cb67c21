"""Reading cluster files, with one clear line when that fails."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from switchyard.cli.main import COULD_NOT_RUN, NOT_GOOD, WRONG_USE, CommandFailed

if TYPE_CHECKING:
    from switchyard.cluster.spec import Cluster
    from switchyard.config.load import Loaded
    from switchyard.config.policy import Policy


def add_file(parser: argparse.ArgumentParser) -> None:
    """Declare the argument that all commands have."""
    parser.add_argument("cluster", metavar="FILE", help="cluster file, like deploy/cluster.yaml")


def read_cluster(path: str) -> Loaded[Cluster]:
    """The cluster in a file; its problems go to stderr, one a line.

    Raises:
        CommandFailed: it can't be read, or is not good.
    """
    from switchyard.cluster.spec import ClusterError, parse_cluster

    try:
        return parse_cluster(read_file(path), path)
    except ClusterError as error:
        print(error, file=sys.stderr)
        count = len(error.problems)
        raise CommandFailed(f"{path} has {count} problem{'s' if count > 1 else ''}", NOT_GOOD) from None


def read_file(path: str) -> bytes:
    """The bytes of a file.

    Raises:
        CommandFailed: it can't be read.
    """
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise CommandFailed(f"can't read {path}: {error.strerror}", COULD_NOT_RUN) from None


def read_named_policy(path: str, cluster: Cluster) -> tuple[str, Policy] | tuple[None, None]:
    """Text and model of the policy that `gateway.policy` names, from the directory of the cluster file.

    Raises:
        CommandFailed: it can't be read, or is not good.
    """
    from switchyard.config.load import parse_policy
    from switchyard.config.problem import PolicyError

    if cluster.gateway.policy is None:
        return None, None
    policy_path = str(Path(path).parent / cluster.gateway.policy)
    try:
        raw = read_file(policy_path)
    except CommandFailed as failed:
        raise CommandFailed(f"{failed} (gateway.policy of {path}, as seen from its directory)", failed.code) from None
    try:
        return raw.decode("utf-8-sig"), parse_policy(raw, policy_path)
    except PolicyError as error:
        print(error, file=sys.stderr)
        raise CommandFailed(f"the policy that {path} names has problems", NOT_GOOD) from None


def known_nodes(cluster: Cluster, names: Iterable[str]) -> list[str]:
    """Names of nodes as a user gave them, each once.

    Raises:
        CommandFailed: the file has no such node.
    """
    given, known = list(dict.fromkeys(names)), [node.name for node in cluster.nodes]
    for name in given:
        if name not in known:
            raise CommandFailed(f"there is no node {name[:64]}; known: {', '.join(known)}", WRONG_USE)
    return given


def now() -> datetime:
    """The present moment; leases are compared with it."""
    return datetime.now(UTC)
