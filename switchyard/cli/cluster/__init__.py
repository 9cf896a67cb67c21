"""Describe a cluster in one file: check it, plan it, write what starts it, and predict what it does.

  switchyard cluster check deploy/cluster.yaml
  switchyard cluster plan deploy/cluster.yaml --mix 0.25
  switchyard cluster render deploy/cluster.yaml --target compose --out out/
  switchyard cluster simulate deploy/cluster.yaml --mix 0.25
  switchyard cluster lend deploy/cluster.yaml s5 s6 --owner anna --until 8h

The file says which machines there are and what runs on them; examples are in deploy/.
"""

from __future__ import annotations

import argparse
import importlib

COMMANDS = {
    "check": "say everything that is wrong with a cluster file, with the memory arithmetic",
    "plan": "where everything runs, how fast it will be, what routing gains for a mix, and which split is best",
    "render": "write what starts it: pools, Compose, systemd, Kubernetes, sparkrun",
    "speeds": "the published speeds that predictions rest on, and how well the models fit them",
    "simulate": "predict what a cluster does with traffic, by the gateway's own code on virtual time",
    "lend": "lend nodes: drain what runs there, note the lease, say what to stop and how to start a training run",
    "return": "take lent nodes back: note it, say what to start, let the gateway use them again",
    "emulate": "start one fake engine for each replica, as fast as real ones would be, for a gateway in front",
}
MODULES = {"return": "return_"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the commands under `cluster`."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        module = importlib.import_module(f"switchyard.cli.cluster.{MODULES.get(name, name)}")
        command = commands.add_parser(
            name, help=summary, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run, command=f"cluster {name}")


def run(given: argparse.Namespace) -> int:
    """Never called: one of the commands under `cluster` is required."""
    raise NotImplementedError
