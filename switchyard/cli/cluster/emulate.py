"""Start an emulated engine for each replica of a cluster file, on loopback, for a real gateway in front of them.

  switchyard cluster emulate deploy/cluster.yaml --write emulated.yaml
  switchyard serve emulated.yaml                                           (in another terminal)
  switchyard cluster emulate deploy/cluster.yaml --speedup 20 --fault qwen-2=kill@600+120
  curl -d '{"replica": "qwen-1", "kind": "slow", "factor": 3}' http://127.0.0.1:18000/faults

The engines have vLLM's endpoints and metrics and take the time that the speed figures of the file say: batches slow down,
long prompts hold up answers, known prompt beginnings are not read again. What they answer is no language. Faults: kill,
hang, slow, oom, rank (a dead rank behind a healthy head), loading; they come by --fault, or by POST /faults on the port
that is printed first, where GET / tells how all engines are. It runs until Ctrl-C.

With --speedup 20, twenty emulated seconds pass in a real one; the gateway's own time-outs and probes stay in real time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from switchyard.cli.cluster.files import add_file, read_cluster, read_named_policy
from switchyard.cli.main import COULD_NOT_RUN, GOOD, NOT_GOOD, WRONG_USE, CommandFailed, port_number

if TYPE_CHECKING:
    from switchyard.cluster.spec import Cluster
    from switchyard.config.policy import Policy
    from switchyard.emulate.cluster import EmulatedCluster

PORT = 18_000
FASTEST = 1000.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_file(parser)
    parser.add_argument("--policy", metavar="FILE", help="policy for the gateway; left out: gateway.policy of the cluster file")
    parser.add_argument("--write", metavar="FILE", help="write the policy, with the emulated engines as replicas, to this file")
    parser.add_argument("--speedup", type=float, default=1.0, metavar="N", help="emulated seconds in a real one (default: 1)")
    parser.add_argument(
        "--port",
        type=port_number,
        default=PORT,
        help="of faults and status; engines have the next ones; 0: free ones (default: %(default)s)",
    )
    parser.add_argument(
        "--fault", action="append", default=[], metavar="FAULT",
        help="REPLICA=KIND[:FACTOR][@WHEN_S][+HOW_LONG_S], in emulated seconds from the start; may be given more than once",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print ports and policy as one line of JSON")


def run(given: argparse.Namespace) -> int:
    """Emulate until a signal comes."""
    from switchyard.emulate.faults import parse_fault

    if not 0 < given.speedup <= FASTEST:
        raise CommandFailed(f"--speedup {given.speedup:g}: more than 0 and at most {FASTEST:g} is expected", WRONG_USE)
    try:
        faults = [parse_fault(text) for text in given.fault]
    except ValueError as error:
        raise CommandFailed(str(error), WRONG_USE) from None
    cluster = read_cluster(given.cluster).value
    policy = read_policy_for(given, cluster)
    asyncio.run(_emulate(given, cluster, policy, faults))
    return GOOD


def read_policy_for(given: argparse.Namespace, cluster: Cluster) -> Policy | None:
    """The policy of --policy, else the one that the cluster file names, else none."""
    from switchyard.cli.files import read_policy

    return read_policy(given.policy) if given.policy is not None else read_named_policy(given.cluster, cluster)[1]


async def _emulate(given: argparse.Namespace, cluster: Cluster, policy: Policy | None, faults: list[Any]) -> None:
    from switchyard.cluster.fitting import Undetermined
    from switchyard.emulate.cluster import EmulatedCluster
    from switchyard.emulate.policy import policy_for

    try:
        emulated = EmulatedCluster(cluster, given.speedup, port=given.port)
    except Undetermined as unknown:
        raise CommandFailed(f"{given.cluster}: {unknown}", NOT_GOOD) from None
    if not emulated.engines:
        raise CommandFailed(f"{given.cluster}: no replica runs: switchyard cluster check says why", NOT_GOOD)
    try:
        try:
            await emulated.start()
        except OSError as error:
            raise CommandFailed(f"can't listen: {error.strerror} (--port 0 takes free ports)", COULD_NOT_RUN) from None
        try:
            document = policy_for(cluster, emulated.layout, policy, emulated.url_of)
            emulated.plan_faults(faults)
        except ValueError as error:
            raise CommandFailed(str(error), WRONG_USE) from None
        if given.write:
            _write(given.write, document)
        _show(given, emulated, document)
        await _until_signal()
    finally:
        await emulated.stop()


async def _until_signal() -> None:
    ends = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ends.set)
    await ends.wait()


def _write(path: str, document: dict[str, Any]) -> None:
    try:
        Path(path).write_text(policy_text(document))
    except OSError as error:
        raise CommandFailed(f"can't write {path}: {error.strerror}", COULD_NOT_RUN) from None


def policy_text(document: dict[str, Any]) -> str:
    """A policy as YAML."""
    from switchyard.cluster.render.policy import pools_text
    from switchyard.cluster.render.yaml_text import to_yaml

    note = "# Written by `switchyard cluster emulate` for emulated engines, and overwritten by it.\n"
    rest = {key: value for key, value in document.items() if key != "pools"}
    return note + to_yaml(rest) + pools_text(document["pools"]).partition("\n")[2]


def _show(given: argparse.Namespace, emulated: EmulatedCluster, document: dict[str, Any]) -> None:
    control = f"http://{emulated.host}:{emulated.port}"
    if given.json:
        print(json.dumps({"control": control, "speedup": given.speedup, "policy": document}), flush=True)
        return
    print(f"{control}  status; POST /faults", file=sys.stderr)
    for engine in emulated.engines:
        nodes = "+".join(engine.card.nodes)
        print(f"{engine.url}  {engine.card.name} on {nodes}: {engine.living.engine.speed.note}", file=sys.stderr)
    if given.write:
        print(f"wrote {given.write}; next: switchyard serve {given.write}", file=sys.stderr)
        sys.stderr.flush()
    else:
        print(policy_text(document), flush=True)
