#!/usr/bin/env python3
"""How many instructions a request takes, counted by valgrind: the same figure on a busy machine as on a quiet one.

usage: instructions.py [--bodies 1k,50k] [--json]

The gateway of gateway.yaml, an engine, one connection, one request after the other. The gateway runs twice, for few requests
and for many, and the difference leaves out how it starts and ends. The kernel's work is not counted, and instructions are not
time: the figures are for comparing one version with the next. A minute for each body.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import bodies
from peers import KEY
from processes import clean_environment, compiled, free_port, stop

FEW, MANY = 100, 500
START_LIMIT_S = 300.0
COUNTED = re.compile(r"I +refs: +([\d,]+)")


def count(work: Path, body: bytes, requests: int) -> int:
    """Instructions of a gateway from its start over so many requests to its end."""
    first, second, port = free_port(), free_port(), free_port()
    text = Path(__file__).with_name("gateway.yaml").read_text()
    for name, value in {"model": "m", "engine0": f"http://127.0.0.1:{first}", "engine1": f"http://127.0.0.1:{second}"}.items():
        text = text.replace("{" + name + "}", value)
    text = text.replace("    limits:", "    health: {every_s: 3600}\n    limits:")  # probes come by the clock, not by requests
    (work / "policy.yaml").write_text(text)
    engine = subprocess.Popen([str(compiled(work, "engine")), "-m", "m", str(first), str(second)], start_new_session=True)
    command = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", sys.executable, "-m"]
    command += ["switchyard", "serve", str(work / "policy.yaml"), "--port", str(port)]
    with (work / "log.txt").open("wb") as log:
        gateway = subprocess.Popen(
            command,
            env=clean_environment({"PYTHONHASHSEED": "0", "SWITCHYARD_API_KEYS": KEY}),
            stderr=log,
            cwd=work,
            start_new_session=True,
        )
    try:
        ask(port, body, requests, gateway)
        gateway.send_signal(signal.SIGTERM)
        gateway.wait(START_LIMIT_S)
    finally:
        stop(gateway)
        stop(engine)
    found = COUNTED.search((work / "log.txt").read_text(errors="replace"))
    if found is None:
        raise SystemExit(f"valgrind has counted nothing; see {work / 'log.txt'}")
    return int(found[1].replace(",", ""))


def ask(port: int, body: bytes, requests: int, gateway: subprocess.Popen[bytes]) -> None:
    """Send the same request again and again, once the gateway listens."""
    end = time.monotonic() + START_LIMIT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            break
        except OSError:
            if time.monotonic() > end or gateway.poll() is not None:
                raise SystemExit("the gateway did not start") from None
            time.sleep(0.2)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    for _ in range(requests):
        connection.request(
            "POST", "/v1/chat/completions", body, {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
        )
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise SystemExit(f"the gateway answered with status {answer.status}")
    connection.close()


def main() -> int:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bodies", default="1k,50k", help="shapes of bodies.py without a stream")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if shutil.which("valgrind") is None:
        print("valgrind is not there: apt-get install valgrind", file=sys.stderr)
        return 3
    found = {}
    with tempfile.TemporaryDirectory(prefix="switchyard-instructions-") as folder:
        for name in given.bodies.split(","):
            print(f"{name} ...", file=sys.stderr, flush=True)
            body = bodies.body(*bodies.SHAPES[name])
            few, many = (count(Path(folder), body, requests) for requests in (FEW, MANY))
            found[name] = round((many - few) / (MANY - FEW))
    if given.json:
        print(json.dumps({"instructions_per_request": found}))
    else:
        for name, instructions in found.items():
            print(f"{name:>6} body: {instructions / 1e6:.2f} million instructions a request")
    return 0


if __name__ == "__main__":
    sys.exit(main())
