"""Print the JSON Schema of policies. Editors with the YAML language server use it for completion and checks.

switchyard schema > policy.schema.json
"""

from __future__ import annotations

import argparse
import sys

from switchyard.cli.main import GOOD


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command has no arguments."""


def run(given: argparse.Namespace) -> int:
    """Print it."""
    from switchyard.config.schema import schema_text

    sys.stdout.write(schema_text())
    return GOOD
