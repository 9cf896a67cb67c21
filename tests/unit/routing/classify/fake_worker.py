"""A worker process without a model: speaks the protocol of `switchyard.routing.classify.worker`, and misbehaves on demand.

  fake_worker.py [fail | mute | noise | slow-start]

What a question's text begins with says what happens: `p 0.7`, `die`, `hang`, `late`, `error`, `junk`, `sleep 0.2`.
"""

import json
import os
import sys
import time


def say(**message: object) -> None:
    print(json.dumps(message), flush=True)


def main() -> None:
    how = sys.argv[1] if len(sys.argv) > 1 else ""
    if how == "fail":
        say(failed="OSError: no weights here")
        sys.exit(1)
    if how == "mute":
        sys.exit(3)
    if how == "noise":
        print("x" * 200_000, flush=True)
    if how == "slow-start":
        time.sleep(30)
    say(ready="fake")
    for line in sys.stdin:
        question = json.loads(line)
        id_, word, *rest = question["id"], *question["text"].split()
        if word == "p":
            say(id=id_, p=float(rest[0]))
        elif word == "die":
            os._exit(7)
        elif word == "hang":
            time.sleep(60)
        elif word == "late":
            say(id=id_, late=True)
        elif word == "error":
            say(id=id_, error="ValueError: too strange")
        elif word == "junk":
            print("what?\n[]\n{}", flush=True)
            say(id=99_999, p=0.1)
            say(id=id_, p=0.6)
        elif word == "sleep":
            time.sleep(float(rest[0]))
            say(id=id_, p=0.5)


main()
