"""Lend nodes to somebody else, for a training run: drain what runs there, note the lease, say what to stop and what to start.

  switchyard cluster lend deploy/cluster.yaml s5 s6 --owner anna --until 2026-12-01T18:00:00+01:00
  switchyard cluster lend deploy/cluster.yaml s5 s6 --owner anna --until 8h --dry-run

Refused is what would leave a pool with fewer than its `min_replicas`, part of a replica, or the gateway without its machine.
The replicas are drained at the gateway (its admin key is read from SWITCHYARD_ADMIN_KEY): nothing new comes to them, and what
runs may end. Then the lease is written into the file, nothing else of which changes. Stopping engines and starting the
job are yours: this prints the commands, and torchrun's environment for each node. `switchyard cluster return` undoes it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from switchyard.cli.cluster.files import add_file, known_nodes, now, read_cluster, read_file
from switchyard.cli.main import COULD_NOT_RUN, GOOD, NOT_GOOD, WRONG_USE, CommandFailed

if TYPE_CHECKING:
    from switchyard.cluster.place import Replica

LEASE = ("state", "owner", "until")
DEFAULT_URL = "http://127.0.0.1:4000"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_file(parser)
    parser.add_argument("nodes", metavar="NODE", nargs="+", help="nodes to lend")
    parser.add_argument("--owner", required=True, metavar="NAME", help="who gets them")
    parser.add_argument(
        "--until", required=True, metavar="WHEN", help="end of the lease: 90m, 8h, 2d, or a moment with its time zone"
    )
    add_gateway_arguments(parser)
    parser.add_argument(
        "--wait", type=float, default=600.0, metavar="SECONDS", help="for running requests to end (default: 600)"
    )


def add_gateway_arguments(parser: argparse.ArgumentParser) -> None:
    """What lend and return have in common."""
    parser.add_argument("--url", default=DEFAULT_URL, help="the gateway (default: %(default)s)")
    parser.add_argument(
        "--key-env", default="SWITCHYARD_ADMIN_KEY", metavar="NAME", help="variable with its admin key (default: %(default)s)"
    )
    parser.add_argument("--no-gateway", action="store_true", help="ask no gateway: none runs, or you drain by hand")
    parser.add_argument("--dry-run", action="store_true", help="change nothing; say what would be done")
    parser.add_argument("--json", action="store_true", help="what was done, as JSON")


def run(given: argparse.Namespace) -> int:
    """Lend."""
    from switchyard.cli.cluster.gateway import Gateway
    from switchyard.cluster.lease import leaving, torchrun_ranks, why_not_lend

    cluster = read_cluster(given.cluster).value
    nodes = known_nodes(cluster, given.nodes)
    until = read_moment(given.until, now())
    if problems := why_not_lend(cluster, nodes):
        raise CommandFailed("; ".join(problems), NOT_GOOD)
    replicas = leaving(cluster, nodes)
    written = until.isoformat(timespec="seconds")
    text = edited(given.cluster, nodes, {"state": "lent", "owner": given.owner, "until": written})
    if not given.dry_run:
        if not given.no_gateway:
            with Gateway(given.url, os.environ.get(given.key_env, ""), given.key_env) as gateway:
                gateway.drain([(r.pool, r.name) for r in replicas], given.wait)
        replace(given.cluster, text)
    ranks = torchrun_ranks(cluster, nodes)
    found = {
        "lent": nodes, "owner": given.owner, "until": written, "dry_run": given.dry_run,
        "drained": [] if given.no_gateway else [f"{r.pool}/{r.name}" for r in replicas],
        "stop": stop_commands(replicas), "torchrun": [{"node": r.node, "env": r.env, "command": r.command} for r in ranks],
    }  # fmt: skip
    if given.json:
        print(json.dumps(found, indent=2))
    else:
        _show(given, found)
    return GOOD


def read_moment(text: str, now_: datetime) -> datetime:
    """A moment to come, or a time from now.

    Raises:
        CommandFailed: it is neither.
    """
    if found := re.fullmatch(r"(\d{1,6})([mhd])", text):
        return now_.astimezone() + timedelta(minutes=int(found[1]) * {"m": 1, "h": 60, "d": 1440}[found[2]])
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise CommandFailed(f"--until {text}: 90m, 8h, 2d, or a moment like 2026-12-01T18:00:00+01:00 is expected", WRONG_USE)
    if moment <= now_:
        raise CommandFailed(f"--until {text}: that is over already", WRONG_USE)
    return moment


def edited(path: str, nodes: Sequence[str], lease: Mapping[str, str]) -> str:
    """The file's text with this lease of these nodes; an empty one takes it out.

    Raises:
        CommandFailed: it is written in a way that can't be changed, or would not be good any more.
    """
    from switchyard.cluster.spec import ClusterError, parse_cluster
    from switchyard.config.drop import drop_keys
    from switchyard.config.edit import CannotEdit, set_value

    text = read_file(path).decode("utf-8")
    order = [node.name for node in read_cluster(path).value.nodes]
    try:
        for name in nodes:
            place = ("nodes", order.index(name))
            text = drop_keys(text, place, LEASE) if not lease else text
            for key, value in lease.items():
                text = set_value(text, (*place, key), value)
        parse_cluster(text.encode(), path)
    except CannotEdit as error:
        raise CommandFailed(f"{path}: {error}", COULD_NOT_RUN) from None
    except ClusterError as error:
        raise CommandFailed(str(error), WRONG_USE) from None
    return text


def replace(path: str, text: str) -> None:
    """Write a file in one step: whoever reads it gets the old one or the new one."""
    target = Path(path).resolve()
    try:
        with tempfile.NamedTemporaryFile(
            "w", dir=target.parent, prefix=f".{target.name}.", delete=False, encoding="utf-8", newline=""
        ) as file:
            file.write(text)
        os.chmod(file.name, target.stat().st_mode & 0o777)
        os.replace(file.name, target)
    except OSError as error:
        raise CommandFailed(f"can't write {path}: {error.strerror}", COULD_NOT_RUN) from None


def stop_commands(replicas: Sequence[Replica], verb: str = "stop") -> list[dict[str, str]]:
    """How each rank of these replicas is stopped (or started), for what `cluster render` wrote. It stays so over a reboot."""
    compose, systemd = ("stop", "disable") if verb == "stop" else ("up -d", "enable")
    commands = []
    for replica in replicas:
        for rank, node in enumerate(replica.nodes):
            service = f"{replica.name}-rank{rank}" if len(replica.nodes) > 1 else replica.name
            commands.append({
                "node": node, "replica": replica.name, "compose": f"docker compose {compose} {service}",
                "systemd": f"systemctl {systemd} --now switchyard-{replica.name}.target",
            })  # fmt: skip
    return commands


def show_commands(commands: Sequence[dict[str, str]]) -> None:
    """Two columns for people: what they started it with decides which holds."""
    for command in commands:
        print(f"  on {command['node']}:  {command['compose']}    (Compose)    {command['systemd']}    (systemd)")


def _show(given: argparse.Namespace, found: dict[str, Any]) -> None:
    are, says = ("would be", "would say") if given.dry_run else ("are", "says")
    print(f"{', '.join(found['lent'])} {are} lent to {given.owner} until {found['until']}; {given.cluster} {says} so.")
    if found["drained"]:
        print(f"{'Would be drained' if given.dry_run else 'Drained'}: {', '.join(found['drained'])}")
    if found["stop"]:
        print("\nStop the engines:")
        show_commands(found["stop"])
        print("Then see that the memory is free: `free -g` on each, and no process left in `nvidia-smi`.")
    print("\nFor torchrun:")
    for rank in found["torchrun"]:
        print(f"  on {rank['node']}:")
        for name, value in rank["env"].items():
            print(f"    export {name}={shlex.quote(value)}")
        print(f"    {rank['command']} train.py")
    print(f"\nBack:  switchyard cluster return {given.cluster} {' '.join(found['lent'])}")
    sys.stdout.flush()
