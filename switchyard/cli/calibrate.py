"""Fit a policy's scores to graded answers, draw what they are worth, and propose a threshold as a diff.

  switchyard calibrate policy.yaml prompts.jsonl                       # labelled prompts: only look
  switchyard calibrate policy.yaml prompts.jsonl --share 0.25          # a quarter of the scored requests to the big pool
  switchyard calibrate policy.yaml eval-runs/tool-use --margin 2       # an eval's run: lose at most 2 points
  switchyard calibrate policy.yaml decisions.jsonl --outcomes graded.jsonl --share 0.5
  switchyard calibrate policy.yaml prompts.jsonl --train head.json --margin 2 --write

Labelled prompts are JSON lines: {"prompt": TEXT, "small_ok": BOOL, "big_ok": BOOL}, or "request": a whole body (and
"protocol": chat, responses or messages) instead of the text. They are scored here by the route's embedded classifiers;
scores of judges come from an eval's run (it needs the arms big, small and routed) or from a decision log. Outcomes name
their request by "id" or by "case", its x-switchyard-case.

The proposal changes scale and bias of each classifier with outcomes enough (--fit logistic), and p_at_least. Nothing is
proposed when labels are too few, or the order of the scores can't be told from chance: exit code 4; --force does it anyway.
The policy is only written with --write; a running gateway then takes it up at once. Every byte that isn't changed stays.
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from switchyard.cli.files import read_policy
from switchyard.cli.main import COULD_NOT_RUN, GOOD, INCONCLUSIVE, NOT_GOOD, WRONG_USE, CommandFailed

if TYPE_CHECKING:
    from switchyard.calibration.analyse import Analysis
    from switchyard.calibration.labels import Graded
    from switchyard.calibration.verdict import Found as Verdict
    from switchyard.config.edit import Value
    from switchyard.config.policy import Policy
    from switchyard.config.problem import KeyPath
    from switchyard.config.route import Route
    from switchyard.evals.verdict import Word
    from switchyard.routing.classify.base import Classifier
    from switchyard.routing.classify.scorer import Weights


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add("policy", metavar="POLICY", help="policy file")
    add("source", metavar="SOURCE", help="labelled prompts, the folder of an eval's run, or (with --outcomes) a decision log")
    add("--outcomes", metavar="FILE", help="graded outcomes for a decision log, as JSON lines")
    wish = parser.add_mutually_exclusive_group()
    wish.add_argument("--share", type=float, metavar="X", help="wanted share of the big pool among scored requests, 0..1")
    wish.add_argument(
        "--margin", type=float, metavar="POINTS", help="largest loss against the big pool alone that is still fine"
    )
    add("--route", metavar="NAME", help="the route (default: auto, or the only one that scores)")
    add("--small", metavar="POOL", help="the small pool, where choose has several thresholds (default: the first)")
    add("--fit", choices=("logistic", "isotonic", "none"), default="logistic",
        help="logistic: into the policy as scale and bias; isotonic: shown only; none (default: %(default)s)")  # fmt: skip
    add("--train", metavar="FILE", help="learn an embedded head from the prompts (extra `train`), write it there and use it")
    add("--write", action="store_true", help="write the proposal into the policy")
    add("--force", action="store_true", help="propose even when there are doubts")
    add("--chart", metavar="FILE", help="write the curve as FILE.svg, or as a page FILE.html")
    add("--json", action="store_true", help="everything as JSON")


def run(given: argparse.Namespace) -> int:
    """Calibrate one route."""
    from switchyard.calibration.changes import CannotCalibrate
    from switchyard.calibration.learn import CannotLearn
    from switchyard.calibration.sources import BadSource
    from switchyard.config.edit import CannotEdit

    _check_usage(given)
    policy = read_policy(given.policy)
    try:
        return _calibrate(given, policy)
    except (BadSource, CannotCalibrate, CannotLearn) as error:
        raise CommandFailed(str(error), WRONG_USE) from None
    except CannotEdit as error:
        raise CommandFailed(f"{given.policy}: {error}", NOT_GOOD) from None
    except OSError as error:
        raise CommandFailed(f"can't read or write {error.filename}: {error.strerror}", COULD_NOT_RUN) from None


def _calibrate(given: argparse.Namespace, policy: Policy) -> int:
    """Read, fit, propose, write what is to be written, show."""
    from switchyard.calibration.analyse import Wish, analyse
    from switchyard.calibration.changes import calibrations, find_route, find_step
    from switchyard.calibration.learn import learn_head
    from switchyard.calibration.verdict import replace_file, with_verdict
    from switchyard.routing.classify.scorer import encode_weights

    name = find_route(policy, given.route)
    route = policy.routes[name]
    wish = Wish(given.share, given.margin / 100 if given.margin is not None else None)
    place = find_step(route, given.small) if wish != Wish() else 0
    suite, rows = _read_rows(given, name, route)
    head: Weights | None = None
    if given.train:
        head, rows = learn_head(rows, suite)
    found = analyse(rows, calibrations(route), "none" if head is not None else given.fit, wish)  # a head's curve is its own
    trusted = not found.doubts or given.force
    if head is not None and trusted:
        replace_file(Path(given.train), encode_weights(head))
    before = after = Path(given.policy).read_bytes().decode()
    if found.step is not None and trusted:
        after = _edited(before, _changes(given, name, route, place, found), given.policy)
    if found.step is not None and after != before:
        after = with_verdict(after, given.policy, name, _verdict(suite, wish.margin, found))
    if given.chart:
        _draw(given, found)
    if given.write and after != before:  # last of all that can fail
        replace_file(Path(given.policy), after.encode())
    _show(given, found, route, before, after)
    return GOOD if trusted and (found.step is not None or wish == Wish()) else INCONCLUSIVE


def _changes(given: argparse.Namespace, name: str, route: Route, place: int, found: Analysis) -> list[tuple[KeyPath, Value]]:
    """What the proposal changes in the policy."""
    from switchyard.calibration.changes import changes_for
    from switchyard.calibration.fit import Logistic

    if given.train:
        curves = {"embedded": Logistic(1.0, 0.0)}
    else:
        fitted = {by: f.curve for by, f in found.fitted.items()}
        curves = {by: curve for by, curve in fitted.items() if isinstance(curve, Logistic) and curve.scale > 0}
    assert found.step is not None
    return changes_for(name, route, curves, place, found.step.p_at_least, given.train)


def _check_usage(given: argparse.Namespace) -> None:
    if given.share is not None and not 0 <= given.share <= 1:
        raise CommandFailed(f"--share {given.share:g}: a share from 0 to 1 is expected", WRONG_USE)
    if given.margin is not None and not 0 < given.margin < 100:
        raise CommandFailed(f"--margin {given.margin:g}: percentage points between 0 and 100 are expected", WRONG_USE)
    if given.write and given.share is None and given.margin is None:
        raise CommandFailed("--write needs to know what for: give --share or --margin", WRONG_USE)
    if given.chart and Path(given.chart).suffix not in {".svg", ".html"}:
        raise CommandFailed(f"--chart {given.chart}: a name that ends in .svg or .html is expected", WRONG_USE)
    if given.outcomes and Path(given.source).is_dir():
        raise CommandFailed("--outcomes belongs to a decision log; an eval's run has its own", WRONG_USE)


def _read_rows(given: argparse.Namespace, name: str, route: Route) -> tuple[str, list[Graded]]:
    """Name of the source, and the graded requests in it."""
    from switchyard.calibration.changes import calibrations
    from switchyard.calibration.sources import read_eval, read_log, read_prompts

    source = Path(given.source)
    if source.is_dir():
        return read_eval(source, name, calibrations(route))
    if given.outcomes:
        rows, unmatched = read_log(source, Path(given.outcomes), name, calibrations(route))
        if unmatched:
            print(f"{unmatched} outcomes name no request of route {name} in {source}", file=sys.stderr)
        return source.name, rows
    return source.name, read_prompts(source, _own_classifiers(route))


def _own_classifiers(route: Route) -> list[Classifier]:
    """Those of the route that can be asked here."""
    from switchyard.config.classifier import EmbeddedClassifier as Block
    from switchyard.routing.classify.embedded import EmbeddedClassifier
    from switchyard.routing.classify.scorer import BadWeights, load_scorer

    try:
        blocks = [block for block in route.classify if isinstance(block, Block)]
        return [EmbeddedClassifier(load_scorer(block.weights), block.bias, block.scale) for block in blocks]
    except BadWeights as error:
        raise CommandFailed(str(error), NOT_GOOD) from None


def _edited(text: str, changes: list[tuple[KeyPath, Value]], file: str) -> str:
    """The policy with the changes, checked as a policy."""
    from switchyard.config.edit import CannotEdit, set_value
    from switchyard.config.load import parse_policy
    from switchyard.config.problem import PolicyError

    for path, value in changes:
        text = set_value(text, path, value)
    try:
        parse_policy(text.encode(), file)
    except PolicyError as error:
        raise CannotEdit(f"the changed file would not be a good policy: {error}") from None
    return text


def _verdict(suite: str, margin: float | None, found: Analysis) -> Verdict:
    """What the graded requests say about the proposed threshold."""
    from datetime import date

    from switchyard.calibration.verdict import Found
    from switchyard.evals.verdict import default_margin, why_too_weak

    assert found.step is not None
    assert found.curve is not None
    margin = margin if margin is not None else default_margin(found.scored)
    low, high = found.step.interval.low, found.step.interval.high
    word: Word = "inferior" if high < -margin else "inconclusive"
    if low > -margin and not why_too_weak(found.curve.big, margin):
        word = "non-inferior"
    return Found("calibrate", suite, found.scored, margin * 100, (low * 100, high * 100), word, date.today())


# ---- showing ----


def _draw(given: argparse.Namespace, found: Analysis) -> None:
    from switchyard.calibration.chart import as_page, as_svg
    from switchyard.calibration.report import as_text

    if found.curve is None:
        return
    title = f"Share and quality: {Path(given.source).name}"
    html = given.chart.endswith(".html")
    chart = as_page(title, found.curve, found.step, as_text(found)) if html else as_svg(found.curve, found.step)
    Path(given.chart).write_text(chart)


def _show(given: argparse.Namespace, found: Analysis, route: Route, before: str, after: str) -> None:
    from switchyard.calibration.report import as_json, as_text

    diff = "".join(difflib.unified_diff(before.splitlines(True), after.splitlines(True), given.policy, given.policy))
    trusted, written = not found.doubts or given.force, bool(given.write and diff)
    notes = (
        ["the route has `share`: once that knows enough scores, it decides, and the threshold doesn't"] if route.share else []
    )
    if given.train:
        notes.append(f"the head is written to {given.train}" if trusted else f"{given.train} is not written")
    if given.json:
        print(json.dumps({**as_json(found), "notes": notes, "diff": diff, "written": written}, indent=1))
        return
    for line in as_text(found):
        print(line)
    for doubt in found.doubts:
        print(f"{'doubt' if given.force else 'nothing is proposed'}: {doubt}")
    if diff:
        print(f"\n{diff}", end="")
        print(f"\nwritten to {given.policy}" if written else "\nnot written: --write does that")
    elif found.step is not None and trusted:
        print("the policy has these values already")
    for note in notes:
        print(f"note: {note}")
