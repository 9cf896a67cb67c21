"""Run the same cases over big, small and routed, and say whether quality held.

  switchyard eval tool-use --policy policy.yaml
  switchyard eval function-calls --policy policy.yaml --margin 5 --trials 3
  switchyard eval prompts:my-prompts.jsonl --url http://127.0.0.1:4000 --arms big,routed
  switchyard eval tool-use --policy policy.yaml --resume

With --policy a gateway is started for the run; with --url a running one is used, whose decision records are read under
/admin. Its engines must run. Suites: tool-use (92 cases of tool-eval-bench, extra `eval`), function-calls (shipped, or BFCL
files: function-calls:PATH), prompts:FILE.jsonl (your own, with graders).

Arms: big (the baseline), small, routed (the candidate), big-again (the noise floor), random (a coin at the routed share).
They run one after the other. Every case is labelled and joined with its decisions; finished cases are kept at once, so that a
run that was ended goes on with --resume. The report is written as text, report.md, report.json and report.html.

The exit code is the verdict on routed against big: 0 non-inferior, 1 inferior, 4 inconclusive. Fix the margin before the run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from switchyard import __version__
from switchyard.cli.main import COULD_NOT_RUN, GOOD, INCONCLUSIVE, NOT_GOOD, WRONG_USE, CommandFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from switchyard.config.policy import Policy
    from switchyard.config.route import Fingerprint
    from switchyard.evals.folder import Folder
    from switchyard.evals.gateway import Gateway
    from switchyard.evals.suite import Case, Suite

EXIT_CODES = {"non-inferior": GOOD, "inferior": NOT_GOOD, "inconclusive": INCONCLUSIVE}
GO_ON = "What is finished is kept: the same command with --resume goes on."
SAME = ("suite", "version", "cases", "arms", "trials", "names", "margin", "seed", "settings", "policy_hash", "gateway")
"""What a resumed run must have in common with what was begun."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add("suite", metavar="SUITE", help="tool-use, function-calls[:PATH] or prompts:FILE.jsonl")
    add("--policy", metavar="FILE", help="start a gateway with this policy, on loopback, for the run")
    add("--url", metavar="URL", help="use this running gateway")
    add("--arms", default="big,small,routed,big-again,random", metavar="ARMS", help="arms to run (default: %(default)s)")
    add("--margin", type=float, metavar="POINTS", help="largest loss that is still fine (default: 5; 2 from 1,000 cases up)")
    add(
        "--cases",
        default="",
        metavar="CASES",
        help="ids, patterns like TC-0*, ranges like TC-01..TC-20, or all (97 in tool-use)",
    )
    add("--trials", type=int, default=1, metavar="N", help="times that each case is tried (default: 1)")
    add("--resume", action="store_true", help="go on with the run in the folder")
    add(
        "--write-verdict",
        action="store_true",
        help="write the verdict into the policy, so that `check` says when it is outdated",
    )
    add("--out", metavar="DIR", help="the run's folder (default: eval-runs/SUITE)")
    add("--json", action="store_true", help="the report as JSON on stdout, progress on stderr")
    add("--concurrency", type=int, default=4, metavar="N", help="cases under way at the same time (default: 4)")
    add("--timeout", type=float, default=300, metavar="S", help="longest silence of an answer in seconds (default: 300)")
    add("--set", action="append", default=[], metavar="KEY=JSON", help="a field of every request, like temperature=0")
    add("--seed", type=int, default=0, metavar="N", help="of the random arm's draw (default: 0)")
    add("--route", metavar="NAME", help="the route (default: auto, or the only one that chooses)")
    add("--big", metavar="POOL", help="the baseline's pool (default: the route's largest)")
    add("--small", metavar="POOL", help="the small arm's pool (default: the route's smallest)")
    add("--weight", action="append", default=[], metavar="POOL=X",
        help="what a second of a pool's engine costs (default: the nodes of its replicas)")  # fmt: skip
    add("--api-key-env", default="SWITCHYARD_API_KEY", metavar="NAME",
        help="with --url, variable with the gateway's key (default: %(default)s)")  # fmt: skip
    add("--admin-key-env", default="SWITCHYARD_ADMIN_KEY", metavar="NAME",
        help="with --url, variable with its admin key (default: %(default)s)")  # fmt: skip


def run(given: argparse.Namespace) -> int:
    """Run what is missing, report, and give the verdict's code."""
    import asyncio

    from switchyard.cli.files import read_policy
    from switchyard.evals.arms import BadArms
    from switchyard.evals.folder import BadFolder, Folder
    from switchyard.evals.gateway import CouldNotRun
    from switchyard.evals.suite import BadSuite, select
    from switchyard.evals.suites import load_suite

    check_usage(given)
    logging.getLogger("tool_eval_bench").setLevel(logging.CRITICAL)  # what it warns of stands in the raw logs
    try:
        policy = read_policy(given.policy) if given.policy else None
    except CommandFailed as failed:  # a typo in the policy must not look like a verdict
        raise CommandFailed(str(failed), COULD_NOT_RUN) from None
    try:
        suite = load_suite(given.suite)
        cases = select(suite, given.cases)
        path = Path(given.out or Path("eval-runs") / given.suite.replace("/", "_").replace(":", "-"))
        with Folder(path) as folder:
            try:
                report = asyncio.run(_run(given, policy, suite, cases, folder))
            except CouldNotRun as error:
                raise CommandFailed(f"{error}\n{GO_ON}" if folder.has_run else str(error), COULD_NOT_RUN) from None
            except KeyboardInterrupt:
                _say(f"ended. {GO_ON}" if folder.has_run else "ended")
                raise
            _write(folder, report)
    except (BadSuite, BadArms, BadFolder) as error:
        raise CommandFailed(str(error), WRONG_USE) from None
    try:
        _show(given, report, path)
    except BrokenPipeError:  # `| head`: the verdict stays the verdict
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if given.write_verdict:
        _write_verdict(given.policy, report)
    return EXIT_CODES[report["verdict"]["word"]]


def _write_verdict(policy: str, report: dict[str, Any]) -> None:
    from switchyard.calibration.verdict import write_eval_verdict
    from switchyard.config.edit import CannotEdit
    from switchyard.config.problem import PolicyError

    if report["run"]["chosen_on_suite"]:  # else the next run would not know that they were
        _say(f"the verdict is not written into {policy}: its thresholds were chosen on this suite, which can't prove them")
        return
    try:
        write_eval_verdict(Path(policy), report)
    except (CannotEdit, PolicyError) as error:
        raise CommandFailed(f"the verdict is not written into {policy}: {error}", COULD_NOT_RUN) from None
    except OSError as error:
        raise CommandFailed(f"can't write {policy}: {error.strerror}", COULD_NOT_RUN) from None
    _say(f"the verdict is written into {policy}")


def check_usage(given: argparse.Namespace) -> None:
    """Refuse what can't be meant.

    Raises:
        CommandFailed: wrong use.
    """
    if (given.policy is None) == (given.url is None):
        raise CommandFailed("say either --policy FILE or --url URL", WRONG_USE)
    if given.url and not re.fullmatch(r"https?://[^/?#]+(/[^?#]*)?", given.url):
        raise CommandFailed(f"--url {given.url}: a gateway's URL is expected, like http://127.0.0.1:4000", WRONG_USE)
    if given.write_verdict and given.policy is None:
        raise CommandFailed("--write-verdict needs --policy: which policy a running gateway has can't be seen", WRONG_USE)
    for name, low in (("trials", 1), ("concurrency", 1), ("timeout", 0.001)):
        if getattr(given, name) < low:
            raise CommandFailed(f"--{name} {getattr(given, name)}: at least {low} is expected", WRONG_USE)
    if given.margin is not None and not 0 < given.margin < 100:
        raise CommandFailed(f"--margin {given.margin:g}: percentage points between 0 and 100 are expected", WRONG_USE)
    for text in given.set:
        _parse_setting(text)
    for text in given.weight:
        _parse_weight(text)


async def _run(
    given: argparse.Namespace, policy: Policy | None, suite: Suite, cases: list[Case], folder: Folder
) -> dict[str, Any]:
    from switchyard.evals.arms import Names, cards_of, find_names, parse_arms
    from switchyard.evals.gateway import REACHED_LIMIT_S, READY_LIMIT_S
    from switchyard.evals.progress import ProgressLine
    from switchyard.evals.runner import Plan, Runner
    from switchyard.evals.summary import summarise

    arms = parse_arms(given.arms)
    _check_folder(given, folder)

    def find(cards: dict[str, dict[str, Any]]) -> Names:
        for pool in dict(map(_parse_weight, given.weight)):
            if cards.get(pool, {}).get("kind") != "pool":
                raise CommandFailed(f"--weight {pool}: there is no pool of this name", WRONG_USE)
        return find_names(cards, given.route, given.big, given.small)

    names = find(cards_of(policy)) if policy is not None else None  # a wrong name is refused before anything is started
    async with _gateway(given, policy, folder) as gateway:
        await gateway.wait_ready(READY_LIMIT_S if policy is not None else REACHED_LIMIT_S, _say)
        cards, prints = await gateway.cards(), await gateway.fingerprints()
        names = names or find({name: card for name, card in cards.items() if card["kind"] == "pool" or name in prints})
        asked = _describe(given, policy, suite, cases, arms, names, gateway)
        asked["fingerprint"] = prints[names.route].model_dump()
        run = _resumed(folder, asked) if given.resume else asked
        if not given.resume:
            folder.begin(run)
        _warn(given, run)
        plan = Plan(
            run["run_id"], suite, cases, arms, Names(**run["names"]), given.trials, given.seed, given.concurrency,
            given.timeout, run["settings"],
        )  # fmt: skip
        progress = ProgressLine(len(folder.finished), sys.stderr)
        try:
            await Runner(plan, gateway, folder, progress).run()
        finally:
            progress.end()
        await _check_policy(gateway, names.route, prints[names.route], folder)
    return summarise(run, folder.finished)


async def _check_policy(gateway: Gateway, route: str, before: Fingerprint, folder: Folder) -> None:
    """Refuse a run that has seen two policies."""
    from switchyard.routing.fingerprint import differing

    after = (await gateway.fingerprints()).get(route)
    if changed := [f"the route {route}"] if after is None else differing(before, after):
        folder.take_back()
        raise CommandFailed(
            f"{' and '.join(changed)} of the gateway's policy changed while the run went on, so it is about two policies: "
            "run it again, without --resume",
            COULD_NOT_RUN,
        )


def _check_folder(given: argparse.Namespace, folder: Folder) -> None:
    if given.resume and not folder.has_run:
        raise CommandFailed(f"{folder.path} holds no run to resume: leave --resume out, or say --out", WRONG_USE)
    if not given.resume and folder.has_run:
        raise CommandFailed(f"{folder.path} holds a run: --resume goes on with it, --out begins another", WRONG_USE)


@contextlib.asynccontextmanager
async def _gateway(given: argparse.Namespace, policy: Policy | None, folder: Folder) -> AsyncIterator[Gateway]:
    from switchyard.evals.gateway import Gateway, started

    if policy is not None:
        own: contextlib.AbstractAsyncContextManager[Gateway] = started(policy, folder.path, Path(given.policy).parent)
        async with own as gateway:
            yield gateway
        return
    gateway = Gateway(given.url, os.environ.get(given.api_key_env), os.environ.get(given.admin_key_env))
    try:
        yield gateway
    finally:
        await gateway.aclose()


def _describe(
    given: argparse.Namespace, policy: Policy | None, suite: Suite, cases: list[Case], arms: list[str], names: Any, gateway: Any
) -> dict[str, Any]:
    """run.json."""
    import hashlib
    import secrets
    from dataclasses import asdict

    from switchyard.evals.verdict import default_margin

    margin = given.margin / 100 if given.margin is not None else default_margin(len(cases))
    return {
        "run_id": secrets.token_hex(3), "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "switchyard": __version__,
        "suite": suite.name, "version": suite.version, "cases": [case.id for case in cases], "arms": arms,
        "trials": given.trials, "margin": margin, "names": asdict(names), "seed": given.seed,
        "settings": dict(map(_parse_setting, given.set)), "concurrency": given.concurrency,
        "weights": _weights(policy) | dict(_parse_weight(text) for text in given.weight),
        "gateway": "started for the run" if policy is not None else gateway.url, "policy": given.policy,
        "policy_hash": hashlib.sha256(Path(given.policy).read_bytes()).hexdigest() if policy is not None else None,
        "chosen_on_suite": policy is not None and _chosen_on(policy, names.route, suite),
    }  # fmt: skip


def _chosen_on(policy: Policy, name: str, suite: Suite) -> bool:
    """Whether the route's thresholds, as they stand, were found by `calibrate` on this very suite."""
    from switchyard.routing.fingerprint import fingerprint

    route = policy.routes[name]
    was = route.evaluated
    if was is None or was.by != "calibrate" or was.suite != f"{suite.name} {suite.version}":
        return False
    return was.hash.choosing == fingerprint(policy, route, lambda _: "").choosing  # which doesn't rest on weights


def _resumed(folder: Folder, asked: dict[str, Any]) -> dict[str, Any]:
    from switchyard.config.route import Fingerprint
    from switchyard.routing.fingerprint import differing

    run = folder.resume()
    for key in SAME:
        if run.get(key) != asked[key]:
            raise CommandFailed(
                f"{folder.path} holds a run with another {key.replace('_', ' ')}: resume it as it was begun, or say --out",
                WRONG_USE,
            )
    if changed := differing(Fingerprint(**run["fingerprint"]), Fingerprint(**asked["fingerprint"])):
        raise CommandFailed(
            f"{folder.path} holds a run under another policy, {' and '.join(changed)} changed since: begin another with --out",
            WRONG_USE,
        )
    return run


def _weights(policy: Policy | None) -> dict[str, float]:
    """Nodes of a replica of each pool, where the policy says them."""
    if policy is None:
        return {}
    return {
        name: sum(max(1, len(replica.nodes)) for replica in pool.listed) / len(pool.listed)
        for name, pool in policy.pools.items()
        if pool.listed
    }


def _parse_weight(text: str) -> tuple[str, float]:
    pool, _, weight = text.partition("=")
    try:
        if float(weight) > 0:
            return pool, float(weight)
    except ValueError:
        pass
    raise CommandFailed(f"--weight {text}: POOL=X is expected, with a number above 0", WRONG_USE)


def _parse_setting(text: str) -> tuple[str, Any]:
    from switchyard.evals.suite import refuse_constant

    key, equals, value = text.partition("=")
    if not key or not equals or key in {"model", "messages", "tools", "stream"}:
        raise CommandFailed(
            f"--set {text}: KEY=JSON is expected, like temperature=0; not model, messages, tools, stream", WRONG_USE
        )
    try:
        return key, json.loads(value, parse_constant=refuse_constant)
    except ValueError:
        raise CommandFailed(f"--set {text}: {value} is no JSON; a text needs quotes", WRONG_USE) from None


# ---- telling ----


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _warn(given: argparse.Namespace, run: dict[str, Any]) -> None:
    """What can be known before the first request."""
    from switchyard.evals.stats import cases_needed
    from switchyard.evals.verdict import smallest_margin

    cases, margin = len(run["cases"]), run["margin"]
    if smallest_margin(cases) >= margin:
        _say(
            f"warning: {cases} cases can't show a margin of {margin * 100:g} points, even when no case differs "
            f"({smallest_margin(cases) * 100:.1f} at best); where 5 % differ, about {cases_needed(0.05, margin):,} are needed"
        )
    if given.trials > 1 and run["settings"].get("temperature") == 0:
        _say("warning: several trials at temperature 0 say little more than one")


def _write(folder: Folder, report: dict[str, Any]) -> None:
    from switchyard.evals.page import as_html
    from switchyard.evals.report import as_markdown

    folder.write("report.json", json.dumps(report, indent=1) + "\n")
    folder.write("report.md", as_markdown(report))
    folder.write("report.html", as_html(report))


def _show(given: argparse.Namespace, report: dict[str, Any], path: Path) -> None:
    from switchyard.evals.report import as_text

    if given.json:
        print(json.dumps(report, indent=1))
    else:
        print(as_text(report))
        print(f"{path}/report.html, report.md, report.json; cases.jsonl has every case with its decisions")
    sys.stdout.flush()
