"""Take lent nodes back: note it in the file, say what to start, and let the gateway send requests there again.

  switchyard cluster return deploy/cluster.yaml s5 s6

The gateway is told at once (its admin key is read from SWITCHYARD_ADMIN_KEY): it probes the engines while they load, and
a replica that comes up gets requests slowly at first.
"""

from __future__ import annotations

import argparse
import json
import os

from switchyard.cli.cluster.files import add_file, known_nodes, read_cluster
from switchyard.cli.cluster.lend import add_gateway_arguments, edited, replace, show_commands, stop_commands
from switchyard.cli.main import GOOD, NOT_GOOD, CommandFailed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_file(parser)
    parser.add_argument("nodes", metavar="NODE", nargs="+", help="nodes to take back")
    add_gateway_arguments(parser)


def run(given: argparse.Namespace) -> int:
    """Take back."""
    from switchyard.cli.cluster.gateway import Gateway
    from switchyard.cluster.lease import coming_back, why_not_return, with_state

    cluster = read_cluster(given.cluster).value
    nodes = known_nodes(cluster, given.nodes)
    if problems := why_not_return(cluster, nodes):
        raise CommandFailed("; ".join(problems), NOT_GOOD)
    replicas = coming_back(with_state(cluster, nodes, "active"), nodes)
    text = edited(given.cluster, nodes, {})
    if not given.dry_run:
        replace(given.cluster, text)
        if not given.no_gateway:
            with Gateway(given.url, os.environ.get(given.key_env, ""), given.key_env) as gateway:
                gateway.undrain([(r.pool, r.name) for r in replicas])
    start = stop_commands(replicas, "start")
    found = {"returned": nodes, "dry_run": given.dry_run, "undrained": [f"{r.pool}/{r.name}" for r in replicas], "start": start}
    if given.json:
        print(json.dumps(found, indent=2))
        return GOOD
    are, says = ("would be", "would say") if given.dry_run else ("are", "says")
    print(f"{', '.join(nodes)} {are} back; {given.cluster} {says} so.")
    if start:
        print("\nStart the engines:")
        show_commands(start)
        print("The gateway sends requests there when a token has come back from them: `switchyard pools` shows it.")
    return GOOD
