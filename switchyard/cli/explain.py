"""Show how a policy decides about a request: signals, rules that matched, pool, and why. Nothing is sent to any engine.

  switchyard explain policy.yaml request.json
  switchyard explain policy.yaml - --endpoint /v1/messages -H 'x-session-id: abc' < request.json

The request is a body as a client sends it. Contexts that the policy leaves to the engines (context: auto) count as
unlimited here, and a `model` classifier counts as unavailable: both need running engines.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any

from switchyard.cli.files import read_bytes, read_policy
from switchyard.cli.main import GOOD, NOT_GOOD, WRONG_USE, CommandFailed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("policy", metavar="FILE", help="policy file")
    parser.add_argument("request", metavar="REQUEST.json", help="a request body; - for standard input")
    parser.add_argument("--endpoint", default="/v1/chat/completions", help="path it would be sent to (default: %(default)s)")
    parser.add_argument("-H", "--header", action="append", default=[], metavar="'NAME: VALUE'", help="a request header")
    parser.add_argument("--json", action="store_true", help="the whole explanation as JSON")


def run(given: argparse.Namespace) -> int:
    """Explain one request."""
    from switchyard.api.endpoints import ENDPOINTS
    from switchyard.app import Gateway
    from switchyard.config.problem import PolicyError
    from switchyard.config.secrets import Secrets
    from switchyard.errors import GatewayError
    from switchyard.routing.request import Body, RequestView

    policy = read_policy(given.policy)
    endpoint = ENDPOINTS.get(given.endpoint.encode())
    if endpoint is None:
        raise CommandFailed(f"--endpoint must be one of {', '.join(e.path for e in ENDPOINTS.values())}", WRONG_USE)
    headers = dict(_parse_header(h) for h in given.header)
    quiet = policy.model_copy(update={"server": policy.server.model_copy(update={"decision_log": None})})
    try:
        gateway = Gateway(quiet, Secrets(), ask=_no_engine)
    except PolicyError as error:  # files that it names: weights, tokenizers
        raise CommandFailed("\n".join(f"{given.policy}: {p.key}: {p.message}" for p in error.problems), NOT_GOOD) from None
    try:
        view = RequestView(endpoint.protocol, Body(read_bytes(given.request)), headers, counting=endpoint.counting)
        found = asyncio.run(gateway.pipeline.explain(view, "explain"))
    except GatewayError as error:
        refusal = {"status": error.status, "code": error.code, "message": error.message}
        print(
            json.dumps({"refused": refusal}, indent=2)
            if given.json
            else f"refused with {error.status} {error.code}: {error.message}"
        )
        return NOT_GOOD
    print(json.dumps(found, indent=2) if given.json else describe(found))
    return GOOD


async def _no_engine(pool: str, body: bytes) -> tuple[int, bytes]:
    from switchyard.errors import Unreachable

    raise Unreachable(f"explain asks no engine, so pool {pool} can't judge")


def _parse_header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise CommandFailed(f"a header looks like 'NAME: VALUE', not {text!r}", WRONG_USE)
    return name.strip().lower(), value.strip()


def describe(found: dict[str, Any]) -> str:
    """The explanation as lines for people."""
    fallbacks = f", then {', '.join(found['fallbacks'])} if it can't be reached" if found["fallbacks"] else ""
    lines = [
        f"model {found['model']}" + (f" -> route {found['route']}" if found["route"] else ""),
        f"pool  {found['pool']}{fallbacks}",
        *(f"{'why  ' if i == 0 else '     '} {reason}" for i, reason in enumerate(found["reasons"])),
        f"session {found['session']['key']} (from {found['session']['source']})",
    ]
    if found["rules"]:
        lines.append("rules")
        lines += [f"  {'matches' if r['matches'] else '   -   '}  {r['rule']} -> {r['use']}" for r in found["rules"]]
    lines.append("signals")
    width = max(map(len, found["signals"]))
    lines += [f"  {name:{width}}  {json.dumps(value)}" for name, value in found["signals"].items()]
    return "\n".join(lines)
