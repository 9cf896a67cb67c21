"""Print the JSON Schema of a kind of file. Editors with the YAML language server use it for completion and checks.

switchyard schema > policy.schema.json
switchyard schema cluster > cluster.schema.json
"""

from __future__ import annotations

import argparse
import sys

from switchyard.cli.main import GOOD


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "kind",
        metavar="KIND",
        nargs="?",
        choices=["policy", "cluster"],
        default="policy",
        help="policy (the default) or cluster",
    )


def run(given: argparse.Namespace) -> int:
    """Print it."""
    from switchyard.cluster.spec import cluster_schema_text
    from switchyard.config.schema import schema_text

    sys.stdout.write(cluster_schema_text() if given.kind == "cluster" else schema_text())
    return GOOD
