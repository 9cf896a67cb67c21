"""Run the gateway with a policy.

  switchyard serve policy.yaml
  switchyard serve policy.yaml --host 0.0.0.0 --port 8080   (needs server.api_keys_env)
  switchyard serve policy.yaml --workers 4                  (needs server.state: redis://...)

Dead engines don't stop it: it serves, and says so at /readyz. SIGTERM or Ctrl-C lets running requests end
(server.drain_s); a second one ends at once. The file is watched: a good change takes effect at once, a bad one changes
nothing and is said in the log and at /readyz. SIGHUP reads it again, too.
"""

from __future__ import annotations

import argparse
import gc
import ipaddress
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from switchyard.cli.main import GOOD, NOT_GOOD, WRONG_USE, CommandFailed, port_number

if TYPE_CHECKING:
    from switchyard.app import Gateway, WorkerPlace
    from switchyard.cli.workers import Worker
    from switchyard.config.policy import Policy

BACKLOG = 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("policy", metavar="FILE", help="policy file")
    parser.add_argument("--host", help="address to listen on; wins over server.host")
    parser.add_argument("--port", type=port_number, help="port to listen on, 0 for a free one; wins over server.port")
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help="processes on the port; more than one need server.state: redis://...",
    )
    parser.add_argument("--verbose", action="store_true", help="more log lines")


def run(given: argparse.Namespace) -> int:
    """Serve until a signal comes."""
    from switchyard.cli.files import read_policy, read_policy_secrets
    from switchyard.cli.workers import Worker
    from switchyard.config.problem import PolicyError
    from switchyard.config.reload import PolicyFile
    from switchyard.telemetry.logs import set_up_logging

    if given.workers < 1:
        raise CommandFailed("--workers: at least one is needed", WRONG_USE)
    worker = Worker.take_from(os.environ)
    policy = read_policy(given.policy)
    overrides = {k: v for k, v in (("host", given.host), ("port", given.port)) if v is not None}
    source = PolicyFile(Path(given.policy), overrides)
    policy = source.with_overrides(policy)
    secrets = read_policy_secrets(policy, given.policy)
    check_exposure(policy)
    check_local(policy)
    set_up_logging(sys.stderr, given.verbose, who=f"worker {worker.number} " if worker is not None else "")
    if worker is None and given.workers > 1:
        return supervise(given, policy)
    from switchyard.app import Gateway

    listener = listen(policy.server.host, policy.server.port) if worker is None else socket.socket(fileno=worker.listener)
    try:
        gateway = Gateway(policy, secrets, source=source, place=place_of(worker))
    except PolicyError as error:
        listener.close()
        raise CommandFailed(str(error), NOT_GOOD) from None
    except OSError as error:
        listener.close()
        raise CommandFailed(f"can't open the decision log {error.filename}: {error.strerror}") from None
    if worker is None:
        announce(listener, policy)
        serve_on(gateway, listener)
    else:
        worker.drain_with_parent()
        serve_on(gateway, listener, worker.say_that_it_serves)
    return GOOD


def supervise(given: argparse.Namespace, policy: Policy) -> int:
    """Start workers, and see to it that they run."""
    from switchyard.cli.workers import Crew, worker_command

    if policy.server.state == "memory":
        raise CommandFailed(
            f"{given.workers} workers need shared state: with server.state: memory each would have sessions and limits of its "
            "own. Set server.state: redis://host:6379/0, or leave --workers out (one process takes thousands of requests "
            "a second)",
            WRONG_USE,
        )
    listener = listen(policy.server.host, policy.server.port)
    announce(listener, policy, f", {given.workers} workers")
    options = [given.policy]
    options += ["--host", given.host] if given.host is not None else []
    options += ["--port", str(given.port)] if given.port is not None else []
    options += ["--verbose"] if given.verbose else []
    raise_file_limit()
    drain_s = policy.server.drain_delay_s + policy.server.drain_s
    return Crew(worker_command(options), given.workers, listener, drain_s).run()


def place_of(worker: Worker | None) -> WorkerPlace | None:
    """What the gateway has to know of its being a worker."""
    from switchyard.app import WorkerPlace

    return WorkerPlace(worker.number, worker.count, worker.crew, Path(worker.folder)) if worker is not None else None


def announce(listener: socket.socket, policy: Policy, more: str = "") -> None:
    """Say where it listens."""
    host, port = listener.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    routes = ", ".join([*policy.routes, *policy.pools])
    print(f"switchyard listens on http://{host}:{port}{more}  models: {routes}", file=sys.stderr, flush=True)


def check_local(policy: Policy) -> None:
    """Refuse to start when a classifier's model can't be used here: abstaining for ever is not what its author wants."""
    from switchyard.config.classifier import LocalClassifier
    from switchyard.routing.classify.local import why_not

    for route in policy.routes.values():
        for block in route.classify:
            if isinstance(block, LocalClassifier) and (reason := why_not(block.model)):
                raise CommandFailed(reason, NOT_GOOD)


def check_exposure(policy: Policy) -> None:
    """Refuse to bind anything but loopback without keys.

    Raises:
        CommandFailed: the gateway would be open to the network.
    """
    if policy.server.api_keys_env is None and not is_loopback(policy.server.host):
        raise CommandFailed(
            f"{policy.server.host} can be reached from other machines and no keys are set: name a variable with keys in "
            "server.api_keys_env, or listen on 127.0.0.1",
            NOT_GOOD,
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        CommandFailed: the address can't be had.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        hint = (
            "another process listens there: choose another --port" if error.errno == 98 else "choose another --host or --port"
        )
        raise CommandFailed(f"can't listen on {host}:{port}: {error.strerror} ({hint})") from None
    listener.setblocking(False)
    return listener


def raise_file_limit() -> None:
    """Take as many open files as the system allows: each client and each engine connection is one."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def serve_on(gateway: Gateway, listener: socket.socket, on_serving: Callable[[], None] = lambda: None) -> None:
    """Serve until a signal comes, then drain."""
    from switchyard.api.server import make_server

    settings = gateway.policy.server
    # What is here now stays for good; what a request makes is freed by counting. So the collector has little to find,
    # and looking through everything that lives, every few hundred requests, costs up to a tenth of the time.
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    raise_file_limit()
    make_server(gateway.app, gateway.door, settings.drain_delay_s, settings.drain_s, on_serving).run([listener])
