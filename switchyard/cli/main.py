"""`switchyard`: finds the command, hands over, and turns what it raises into one clear line and an exit code.

Exit codes: 0 good; 1 the thing checked is not good; 2 wrong use; 3 could not run; 4 inconclusive.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from switchyard import __version__

COMMANDS = {
    "init": "write a commented policy for the engines at some URLs",
    "serve": "run the gateway with a policy",
    "pools": "show the pools of a running gateway as a live table; drain, eject, readmit a replica",
    "check": "say everything that is wrong with a policy, or that it is good",
    "whatif": "decide recorded traffic anew under another policy: what moves, and what that does to shares and queues",
    "eval": "run the same cases over big, small and routed, and say whether quality held",
    "calibrate": "fit scores to graded answers, draw the share-quality curve, propose thresholds as a diff",
    "explain": "show how a policy decides about a request in a file",
    "cluster": "describe a cluster in one file: check it, plan it, write what starts it, predict what it does",
    "bench": "measure prefill and decode at 1, 4 and 8 requests at once, through the gateway and direct",
    "schema": "print the JSON Schema of policies or of cluster files",
    "demo": "start small real engines and the gateway, and show routed requests",
}

GOOD, NOT_GOOD, WRONG_USE, COULD_NOT_RUN, INCONCLUSIVE = 0, 1, 2, 3, 4


class CommandFailed(Exception):
    """Ends a command with a message and an exit code."""

    def __init__(self, message: str, code: int = COULD_NOT_RUN) -> None:
        super().__init__(message)
        self.code = code


def port_number(text: str) -> int:
    """The type of `--port`: sockets would take a larger number modulo 65,536, and listen somewhere else."""
    if not text.isdecimal() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text} is no port: 0 to 65535 is expected")
    return int(text)


def make_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="switchyard",
        description="One endpoint in front of your own models: a YAML policy decides which pool and replica answers.",
        epilog="Begin with `switchyard demo`, or with `switchyard init http://127.0.0.1:8000` for an engine of yours. "
        "Exit codes: 0 good, 1 the thing checked is not good, 2 wrong use, 3 could not run, 4 inconclusive.",
    )
    parser.add_argument("--version", action="version", version=f"switchyard {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        module = importlib.import_module(f"switchyard.cli.{name}")
        command = commands.add_parser(
            name, help=summary, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    given = make_parser().parse_args(argv)
    try:
        code = given.run(given)
        sys.stdout.flush()
    except CommandFailed as failed:
        print(f"switchyard {given.command}: {failed}", file=sys.stderr)
        return failed.code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return GOOD
    except Exception as error:  # the last place: a traceback is for those who ask for it
        if os.environ.get("SWITCHYARD_TRACEBACK"):
            raise
        print(
            f"switchyard {given.command}: unexpected {type(error).__name__}: {error} (SWITCHYARD_TRACEBACK=1 shows where)",
            file=sys.stderr,
        )
        return COULD_NOT_RUN
    return int(code)
