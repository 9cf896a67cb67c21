"""Predict what a cluster does with traffic: the gateway's own deciding, queueing and balancing, on virtual time.

  switchyard cluster simulate deploy/cluster.yaml --mix 0.25          a quarter needs the big pool; all places full
  switchyard cluster simulate deploy/cluster.yaml --mix 0.25 --escalate 0.1    what if 10 % of the small answers escalate
  switchyard cluster simulate deploy/cluster.yaml --mix 0.25 --rate 2 --down s3@600+900    what if s3 dies for 15 minutes
  switchyard cluster simulate deploy/cluster.yaml --mix 0.25 --rate 2 --lend s7            what if that node is lent
  switchyard cluster simulate deploy/cluster.yaml --traffic decisions.jsonl --times 2      a recorded day, twice as dense

Traffic is a decision log of `switchyard serve`, with its arrival times, or made up: --mix SHARE (of conversations that are
hard, in exact quotas) or --mix policy (scores spread evenly, the policy decides). Without --rate there are always as many
requests as the cluster has places, so the answer is its most. Speeds are those of the cluster file (`plan` shows them).
Not simulated: the policy's time-outs for answers, clients that leave, and what deciding itself takes.

Exit code 1 when requests failed or were refused.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from switchyard.cli.cluster.emulate import read_policy_for
from switchyard.cli.cluster.files import add_file, known_nodes, read_cluster
from switchyard.cli.main import COULD_NOT_RUN, GOOD, NOT_GOOD, WRONG_USE, CommandFailed

if TYPE_CHECKING:
    from switchyard.emulate.faults import Fault
    from switchyard.routing.recorded import Recorded
    from switchyard.simulate.outcome import Results
    from switchyard.simulate.stage import Stage

WARM_UP = 0.2
MOST_BAD = 10  # lines of a log named; the rest are only counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_file(parser)
    parser.add_argument("--policy", metavar="FILE", help="the gateway's policy; left out: gateway.policy of the cluster file")
    traffic = parser.add_mutually_exclusive_group(required=True)
    traffic.add_argument("--traffic", metavar="LOG", help="decision log to play, - for standard input")
    traffic.add_argument("--mix", metavar="SHARE", help="made-up traffic: share of hard conversations (0..1), or policy")
    parser.add_argument("--times", type=float, default=1.0, metavar="N", help="with --traffic: so many times as dense")
    parser.add_argument(
        "--rate", type=float, metavar="R", help="with --mix: requests a second, in the mean; else all places full"
    )
    parser.add_argument("--minutes", type=float, default=60.0, metavar="N", help="with --mix: how long (default: 60)")
    parser.add_argument(
        "--prompt-tokens", type=int, default=2000, metavar="N", help="with --mix: new ones in a turn (default: 2000)"
    )
    parser.add_argument(
        "--answer-tokens", type=int, default=200, metavar="N", help="with --mix: mean of an answer (default: 200)"
    )
    parser.add_argument("--turns", type=int, default=1, metavar="N", help="with --mix: turns of a conversation (default: 1)")
    parser.add_argument("--model", default="auto", metavar="NAME", help="with --mix: the route that is asked (default: auto)")
    parser.add_argument(
        "--escalate", type=float, default=0.0, metavar="SHARE", help="of a smaller pool's answers, taken over by a larger"
    )
    parser.add_argument(
        "--lend", action="append", default=[], metavar="NODE", help="without this node; may be given more than once"
    )
    parser.add_argument(
        "--down", action="append", default=[], metavar="NODE", help="NODE[@WHEN_S][+HOW_LONG_S]: what runs on it is gone"
    )
    parser.add_argument(
        "--fault", action="append", default=[], metavar="FAULT", help="of a replica, as `cluster emulate` takes it"
    )
    parser.add_argument("--seed", type=int, default=0, help="of all chance (default: 0)")
    parser.add_argument("--json", action="store_true", help="everything as JSON")


def run(given: argparse.Namespace) -> int:
    """Simulate."""
    from switchyard.cluster.fitting import Undetermined
    from switchyard.config.problem import PolicyError
    from switchyard.simulate.outcome import report
    from switchyard.simulate.stage import set_stage

    _check(given)
    cluster = read_cluster(given.cluster).value
    lent = known_nodes(cluster, given.lend)
    known_nodes(cluster, map(_node_of, given.down))
    try:
        stage = set_stage(cluster, read_policy_for(given, cluster), lent)
        results, warm_up_s = simulate(given, stage)
    except (Undetermined, ValueError, PolicyError) as error:
        raise CommandFailed(f"{given.cluster}: {error}", NOT_GOOD) from None
    found = report(results, warm_up_s)
    found["speeds"] = {card.name: engine.speed.note for card, engine in stage.engines.values()}
    print(json.dumps(found, indent=2) if given.json else "\n".join(describe(found)))
    return NOT_GOOD if found["errors"] else GOOD


def simulate(given: argparse.Namespace, stage: Stage) -> tuple[Results, float]:
    """Run it; gives the results, and the warm-up that isn't counted, in seconds."""
    from switchyard.cluster.traffic import Conversations, Mix, from_log
    from switchyard.simulate.stage import run

    faults = _faults(given, stage)
    if given.traffic is not None:
        asks = from_log(_read_log(given.traffic), given.times)
        if not asks:
            raise CommandFailed(f"{given.traffic} has no decision records", COULD_NOT_RUN)
        return run(stage, lambda s: s.play(asks), faults, given.escalate, given.seed), 0.0
    if given.model not in stage.policy.routes:
        known = ", ".join(stage.policy.routes) or "none: give a --policy"
        raise CommandFailed(f"--model {given.model}: the policy has no such route; known: {known}", WRONG_USE)
    mix = Mix(_share(given.mix), given.model, given.prompt_tokens, given.answer_tokens, given.turns)
    conversations = Conversations(mix, stage.policy, given.seed)
    if not conversations.scored:
        raise CommandFailed(f"route {given.model} has no classifier, so a mix says nothing to it; play a log", WRONG_USE)
    seconds, rate = given.minutes * 60, given.rate
    if rate is not None:
        results = run(stage, lambda s: s.arrive(conversations, rate, seconds), faults, given.escalate, given.seed)
    else:
        results = run(stage, lambda s: s.saturate(conversations, stage.places, seconds), faults, given.escalate, given.seed)
    return results, seconds * WARM_UP


# ---- what was given ----


def _check(given: argparse.Namespace) -> None:
    for name, high in (("times", 1e6), ("minutes", 1e5), ("rate", 1e6)):
        value = getattr(given, name)
        if value is not None and not 0 < value <= high:
            raise CommandFailed(f"--{name} {value:g}: more than 0 and at most {high:g} is expected", WRONG_USE)
    for name in ("prompt_tokens", "answer_tokens", "turns"):
        if getattr(given, name) < 1:
            raise CommandFailed(f"--{name.replace('_', '-')}: at least 1 is expected", WRONG_USE)
    if not 0 <= given.escalate <= 1:
        raise CommandFailed(f"--escalate {given.escalate:g}: a share from 0 to 1 is expected", WRONG_USE)


def _share(text: str) -> float | None:
    if text == "policy":
        return None
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise CommandFailed(f"--mix {text}: a share from 0 to 1 is expected, or policy", WRONG_USE)
    return share


def _node_of(down: str) -> str:
    """The node in NODE[@WHEN_S][+HOW_LONG_S]."""
    return re.split("[@+]", down, maxsplit=1)[0]


def _faults(given: argparse.Namespace, stage: Stage) -> list[tuple[str, float, Fault]]:
    from switchyard.emulate.faults import parse_fault

    try:
        faults = [parse_fault(text) for text in given.fault]
        for text in given.down:
            node = _node_of(text)
            faults += [parse_fault(f"{name}=kill{text.removeprefix(node)}") for name in stage.on_node(node)]
        known = [replica.name for replica in stage.replicas]
        if unknown := [name for name, _, _ in faults if name not in known]:
            raise ValueError(f"there is no replica {unknown[0][:64]}; known: {', '.join(known)}")
    except ValueError as error:
        raise CommandFailed(str(error), WRONG_USE) from None
    return faults


def _read_log(path: str) -> Iterator[Recorded]:
    from switchyard.cli.files import read_bytes
    from switchyard.routing.recorded import BadRecord, read_line

    bad = 0
    for number, line in enumerate(read_bytes(path).splitlines(), 1):
        if line.strip():
            try:
                yield read_line(line)
            except BadRecord as error:
                bad += 1
                if bad <= MOST_BAD:
                    print(f"{path}:{number}: left out: {error}", file=sys.stderr)
    if bad > MOST_BAD:
        print(f"{path}: {bad - MOST_BAD:,} more lines left out", file=sys.stderr)


# ---- showing ----


def describe(found: dict[str, Any]) -> Iterator[str]:
    """The report as lines for people."""
    yield (
        f"{found['requests']:,} requests in {found['span_s'] / 60:.1f} min: {found['requests_s']:.2f} answers/s, "
        f"{found['answer_tokens_s']:,.0f} tokens/s"
    )
    for code, count in found["errors"].items():
        yield f"  {count:,} ended with {code}"
    if found["still_running"]:
        yield f"  {found['still_running']:,} had no answer yet at the end"
    if found["escalated"]:
        yield f"  {found['escalated']:,} escalated to a larger pool"
    if found["not_decided_anew"]:
        yield f"  {found['not_decided_anew']:,} the log can't decide anew: they went where they went then"
    if found["answers_of_guessed_length"]:
        yield f"  {found['answers_of_guessed_length']:,} have no answer length in the log: a typical one was taken"
    yield ""
    yield "".join(f"{head:>{width}}" for head, width in COLUMNS)
    for pool in [*found["pools"], {"pool": "all", **found}]:
        yield "".join(f"{cell:>{width}}" for cell, (_, width) in zip(_row(pool), COLUMNS, strict=True))
    yield ""
    for pool in found["pools"]:
        used = ", ".join(f"{name} {share:.0%}" for name, share in pool["utilisation"].items())
        cached = "nothing was asked" if pool["cached_share"] is None else f"{pool['cached_share']:.0%} of prompt tokens cached"
        yield (
            f"{pool['pool']}: works {used} of the time; {pool['running']['mean']:.1f} of {pool['running']['places']} places, "
            f"queue {pool['queued']['mean']:.1f} in the mean, {pool['queued']['longest']} at most; {cached}"
        )
    if found["notes"]:
        yield ""
        yield from found["notes"]
        yield ""
    for note in dict.fromkeys(found["speeds"].values()):
        names = ", ".join(name for name, other in found["speeds"].items() if other == note)
        yield f"speed of {names}: {note}"


COLUMNS = (
    ("pool", 12), ("answers", 9), ("share", 7), ("a second", 10), ("queue s p50", 13), ("p99", 8), ("first token s p50", 19),
    ("p99", 8), ("ms/token p50", 14), ("p99", 8),
)  # fmt: skip


def _row(pool: dict[str, Any]) -> list[str]:
    share = f"{pool['share']:.1%}" if pool.get("share") is not None else ""
    cells = [pool["pool"], f"{pool.get('answered', pool['requests']):,}", share, f"{pool['requests_s']:.2f}"]
    for name, digits in (("queue_s", 1), ("first_token_s", 1), ("between_tokens_ms", 0)):
        cells += ["-" if pool[name][q] is None else f"{pool[name][q]:.{digits}f}" for q in ("p50", "p99")]
    return cells
