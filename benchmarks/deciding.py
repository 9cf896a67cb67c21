"""What deciding costs: from a request's bytes to a decision, in process, without any network.

usage: deciding.py [--count N] [--json]

Reads the body, all signals that the policy of gateway.yaml asks for, the session, rules, the embedded classifier, the
thresholds: everything but a model judge. Bodies are those of bodies.py, each time parsed anew: an agent's turns, on which the
classifier abstains. The question has no tools; there it reads the whole text.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path

import bodies

from switchyard.app import Gateway
from switchyard.config.load import parse_policy
from switchyard.config.secrets import Secrets
from switchyard.routing.request import Body, RequestView
from switchyard.routing.session import identify
from switchyard.routing.signals import Signals

SIZES = {"1 KB": 1_000, "50 KB": 50_000, "500 KB": 500_000, "question": 0}
QUESTION = (
    "What is the area of a field that is {} m long and {} m wide, if a path of 2 m goes around it, and who would need it? "
)


def make_bodies(size: int) -> list[bytes]:
    """Twenty agent's turns of about a size; 0 stands for a question of 2,900 characters."""
    if size:
        return [bodies.body(size, seed=seed) for seed in range(20)]
    texts = ["".join(QUESTION.format(seed + n, seed * n) for n in range(25)) for seed in range(20)]
    return [json.dumps({"model": "m", "messages": [{"role": "user", "content": text[:2900]}]}).encode() for text in texts]


def make_gateway() -> Gateway:
    """The gateway that benchmarks run with, without a log file and without starting it."""
    text = Path(__file__).with_name("gateway.yaml").read_text()
    for name, value in {"model": "m", "engine0": "http://127.0.0.1:1", "engine1": "http://127.0.0.1:2"}.items():
        text = text.replace("{" + name + "}", value)
    text = "\n".join(line for line in text.splitlines() if "decision_log" not in line)
    return Gateway(parse_policy(text.encode()), Secrets(("sk-bench",)))


async def measure(gateway: Gateway, size: int, count: int) -> dict[str, float]:
    """Percentiles in microseconds over `count` decisions; every body differs a little, so that nothing is cached."""
    headers = {"content-type": "application/json", "user-agent": "bench", "authorization": "Bearer sk-bench"}
    raws = make_bodies(size)
    target = gateway.decider.find_target("m")
    assert target is not None
    taken: list[float] = []
    for i in range(count):
        raw = raws[i % len(raws)]
        began = time.perf_counter()
        view = RequestView("chat", Body(raw), headers, "key-1")
        signals = Signals(view, 12)
        await gateway.decider.decide(target, signals, identify(signals))
        taken.append((time.perf_counter() - began) * 1e6)
    taken.sort()
    return {"p50_us": round(taken[count // 2], 1), "p99_us": round(taken[int(count * 0.99)], 1), "max_us": round(taken[-1], 1)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=5_000)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    gateway = make_gateway()
    results = {name: asyncio.run(measure(gateway, size, given.count)) for name, size in SIZES.items()}
    if given.json:
        print(json.dumps(results, indent=1))
        return
    for name, row in results.items():
        print(f"{name:>7}: " + "  ".join(f"{key.removesuffix('_us')} {value:8.1f} us" for key, value in row.items()))


if __name__ == "__main__":
    main()
