"""Show the pools of a running gateway as a live table, or take a replica out and put it back.

  switchyard pools                                  the table, once a second, until Ctrl-C
  switchyard pools http://10.0.0.9:4000 --once      once; exit code 1 when a pool has no replica that gets requests
  switchyard pools drain qwen/10.0.0.1:8000 --wait  nothing new for it; returns when nothing runs on it any more
  switchyard pools undrain qwen/10.0.0.1:8000       back
  switchyard pools eject qwen/10.0.0.1:8000         out until a real completion works on it again
  switchyard pools readmit qwen/10.0.0.1:8000       an ejected one back at once

A replica is named POOL/REPLICA, as the table shows them. The gateway is http://127.0.0.1:4000 unless --url says
otherwise; its admin key is read from the environment variable SWITCHYARD_ADMIN_KEY, if that is set.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from switchyard.cli.main import COULD_NOT_RUN, GOOD, NOT_GOOD, WRONG_USE, CommandFailed

if TYPE_CHECKING:
    import httpx

Json = dict[str, Any]
WORDS = ("drain", "undrain", "eject", "readmit")
DEFAULT_URL = "http://127.0.0.1:4000"
ANSWER_LIMIT_S = 5.0
EVERY_S = 1.0
WAIT_EVERY_S = 0.5
COLUMNS = ("replica", "state", "in flight", "tokens", "engine run+wait", "cache", "hit/repin/miss", "back in", "nodes", "why")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("what", nargs="?", metavar="URL|ACTION", help="the gateway's URL, or drain, undrain, eject, readmit")
    parser.add_argument("replica", nargs="?", metavar="POOL/REPLICA", help="with an action: the replica")
    parser.add_argument("--url", default=DEFAULT_URL, help="the gateway (default: %(default)s)")
    parser.add_argument(
        "--key-env", default="SWITCHYARD_ADMIN_KEY", metavar="NAME", help="variable with the admin key (default: %(default)s)"
    )
    parser.add_argument("--once", action="store_true", help="print the table once; so it is without a terminal, too")
    parser.add_argument("--json", action="store_true", help="what the gateway says, as JSON, once")
    parser.add_argument("--wait", action="store_true", help="with drain: return when nothing runs on the replica any more")
    parser.add_argument("--force", action="store_true", help="with drain and eject: the last replica of a pool, too")


def run(given: argparse.Namespace) -> int:
    """Show, or act."""
    import httpx

    url, action = given.url, None
    if given.what in WORDS:
        action = given.what
    elif given.what is not None:
        url = given.what
        if not url.startswith(("http://", "https://")):
            raise CommandFailed(f"{url!r} is neither a URL like {DEFAULT_URL} nor one of {', '.join(WORDS)}", WRONG_USE)
        if given.replica is not None:
            raise CommandFailed(
                f"what shall be done to {given.replica}? The gateway is given by --url, with an action", WRONG_USE
            )
    if given.wait and action != "drain":
        raise CommandFailed("--wait belongs to drain", WRONG_USE)
    if action is not None and "/" not in (given.replica or ""):
        raise CommandFailed(f"{action} needs a replica: POOL/REPLICA, as the table shows them", WRONG_USE)
    key = os.environ.get(given.key_env, "")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(base_url=url, headers=headers, timeout=ANSWER_LIMIT_S, trust_env=False) as client:
        if action is not None:
            return _act(client, action, given)
        if given.json or given.once or not sys.stdout.isatty():
            found = _ask(client, "GET", "/admin/pools", given.key_env)
            print(json.dumps(found, indent=2) if given.json else shown(found))
            return GOOD if all(pool["taking"] for pool in found["pools"]) else NOT_GOOD
        found = _ask(client, "GET", "/admin/pools", given.key_env)
        while True:
            print(f"\x1b[H\x1b[J{url}  {time.strftime('%H:%M:%S')}\n\n{shown(found)}", flush=True)
            time.sleep(EVERY_S)
            try:
                found = _ask(client, "GET", "/admin/pools", given.key_env)
            except CommandFailed as failed:  # it may be restarting; what was known stays on the screen
                print(f"\n{failed}", flush=True)


def _act(client: httpx.Client, action: str, given: argparse.Namespace) -> int:
    pool, _, label = given.replica.partition("/")
    pools = _ask(client, "GET", "/admin/pools", given.key_env)["pools"]
    for known in pools:  # names of pools may have slashes themselves
        if given.replica.startswith(f"{known['pool']}/"):
            pool, label = known["pool"], given.replica.removeprefix(f"{known['pool']}/")
    path = f"/admin/pools/{quote(pool)}/replicas/{quote(label)}/{action}{'?force=true' if given.force else ''}"
    found = _ask(client, "POST", path, given.key_env)
    if action == "drain" and given.wait:
        _wait_idle(client, pool, label, given.key_env)
        found = {**found, "in_flight": 0}
    if given.json:
        print(json.dumps(found, indent=2))
    else:
        why = f": {found['reason']}" if found["reason"] else ""
        already = "" if found["changed"] else " already"
        print(f"{pool}/{label} is {found['state']}{already}{why}; {found['in_flight']} requests run on it")
    return GOOD


def _wait_idle(client: httpx.Client, pool: str, label: str, key_env: str) -> None:
    """Wait until nothing runs on a replica; says how many are left when that changes."""
    last = None
    while True:
        pools = _ask(client, "GET", "/admin/pools", key_env)["pools"]
        found = [r for p in pools if p["pool"] == pool for r in p["replicas"] if r["replica"] == label]
        left = sum(r["in_flight"] for r in found)
        if not left:
            return
        if left != last:
            print(f"{left} requests still run on {pool}/{label}", file=sys.stderr)
        last = left
        time.sleep(WAIT_EVERY_S)


def _ask(client: httpx.Client, method: str, path: str, key_env: str) -> Any:
    import httpx

    try:
        answer = client.request(method, path)
    except httpx.HTTPError as error:
        raise CommandFailed(
            f"{client.base_url} can't be asked: {error or type(error).__name__} (--url says where the gateway is)",
            COULD_NOT_RUN,
        ) from None
    if answer.is_success:
        try:
            return answer.json()
        except ValueError:
            raise CommandFailed(f"{client.base_url} is no Switchyard gateway", COULD_NOT_RUN) from None
    code = answer.headers.get("x-switchyard-error")
    try:
        message = answer.json()["error"]["message"]
    except (ValueError, LookupError, TypeError):
        message = f"{client.base_url} answers {answer.status_code}"
    if answer.status_code == 401:
        message += f"; it is read from the environment variable {key_env}"
    raise CommandFailed(message, {"last_replica": NOT_GOOD, "replica_not_found": WRONG_USE}.get(str(code), COULD_NOT_RUN))


def shown(found: Json) -> str:
    """The table, and whose figures are missing in it."""
    workers = found.get("workers", {"count": 1, "answered": 1})
    missing = workers["count"] - workers["answered"]
    note = f"\n\n{missing} of {workers['count']} workers did not answer: their requests are not counted here" if missing else ""
    return table(found["pools"]) + note


def table(pools: Sequence[Json]) -> str:
    """The pools for people, as aligned columns."""
    blocks = []
    for pool in pools:
        rows = [tuple(column.upper() for column in COLUMNS), *(_row(replica) for replica in pool["replicas"])]
        widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
        lines = ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        taking = f"{pool['taking']} of {len(pool['replicas'])} take requests"
        queue = f"{pool['queued']} of {pool['queue_limit']} wait"
        if pool.get("replicas_problem"):
            lines.append(f"  {pool['source']} can't be used, so nothing changes: {pool['replicas_problem']}")
        blocks.append("\n".join([f"{pool['pool']}  {pool['model']}  {pool['balance']}  {taking}  {queue}", *lines]))
    return "\n\n".join(blocks)


def _row(replica: Mapping[str, Any]) -> tuple[str, ...]:
    engine = replica["engine"] or {}
    running = f"{engine['running']:.0f}+{engine['waiting']:.0f}" if engine else "-"
    cache = engine.get("kv_cache")
    return (
        replica["replica"],
        replica["state"],
        f"{replica['in_flight']}/{replica['limit']}",
        _short(replica["tokens"]),
        running,
        f"{cache:.0%}" if cache is not None else "-",
        "/".join(_short(replica["affinity"][word]) for word in ("hit", "repin", "miss")),
        f"{replica['back_in_s']:.0f} s" if replica["back_in_s"] is not None else "-",
        ",".join(replica["nodes"]) or "-",
        replica["reason"],
    )


def _short(number: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return f"{number:.0f}"
