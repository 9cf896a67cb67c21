"""Reading cluster files, with one clear line when that fails."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

from switchyard.cli.main import COULD_NOT_RUN, NOT_GOOD, CommandFailed
from switchyard.cluster.spec import Cluster, ClusterError, parse_cluster
from switchyard.config.load import Loaded


def add_file(parser: argparse.ArgumentParser) -> None:
    """Declare the argument that all commands have."""
    parser.add_argument("cluster", metavar="FILE", help="cluster file, like deploy/cluster.yaml")


def read_cluster(path: str) -> Loaded[Cluster]:
    """The cluster in a file; its problems go to stderr, one a line.

    Raises:
        CommandFailed: it can't be read, or is not good.
    """
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


def now() -> datetime:
    """The present moment; leases are compared with it."""
    return datetime.now(UTC)
