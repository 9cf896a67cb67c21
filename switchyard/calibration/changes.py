"""A proposal as changes to a policy's text: which block and which key, and what is said when it can't be put there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from switchyard.calibration.fit import Logistic
from switchyard.config.classifier import Classifier, EmbeddedClassifier, ModelClassifier
from switchyard.config.edit import Value
from switchyard.config.policy import Policy
from switchyard.config.problem import KeyPath
from switchyard.config.route import Route

DIGITS = 4


class CannotCalibrate(Exception):
    """The policy has no place for what was asked; the message says what to do."""


def name_of(block: Classifier) -> str:
    """What a classifier is called in decisions."""
    return f"model {block.pool}" if isinstance(block, ModelClassifier) else block.type


def find_route(policy: Policy, name: str | None) -> str:
    """The route that is meant: the one named, `auto`, or the only one that scores.

    Raises:
        CannotCalibrate: there is none, or it has no scores to calibrate.
    """
    scoring = [n for n, route in policy.routes.items() if route.classify]
    if name is None:
        if "auto" not in scoring and len(scoring) != 1:
            raise CannotCalibrate(f"say which --route: {', '.join(scoring) or 'no route has classify'}")
        return "auto" if "auto" in scoring else scoring[0]
    if name not in scoring:
        raise CannotCalibrate(f"no route {name} has classify; those that do: {', '.join(scoring) or 'none'}")
    return name


def find_step(route: Route, small: str | None) -> int:
    """Which entry of `choose` holds the threshold: the first, or that of a pool.

    Raises:
        CannotCalibrate: no entry has `p_at_least`.
    """
    for i, step in enumerate(route.choose):
        if step.p_at_least is not None and small in {None, step.use}:
            return i
    raise CannotCalibrate(
        f"choose has no entry with p_at_least{f' for {small}' if small else ''}: add {{p_at_least: 0.5, use: POOL}}"
    )


def calibrations(route: Route) -> dict[str, Logistic]:
    """What the policy carries already, by classifier."""
    return {name_of(block): Logistic(block.scale, block.bias) for block in route.classify}


def changes_for(
    name: str, route: Route, curves: Mapping[str, Logistic], step: int, p_at_least: float, weights: str | None
) -> list[tuple[KeyPath, Value]]:
    """Places in the file and their new values.

    Args:
        name: of the route.
        route: as it is.
        curves: new calibrations by classifier.
        step: entry of `choose`.
        p_at_least: its threshold.
        weights: file with a head of one's own; None leaves that as it is.

    Raises:
        CannotCalibrate: two blocks have the name of a classifier that is to be changed.
    """
    at: KeyPath = ("routes", name)
    found: list[tuple[KeyPath, Value]] = []
    for by, curve in curves.items():
        i = _place(route.classify, by)
        for key, value, old in (("scale", curve.scale, route.classify[i].scale), ("bias", curve.bias, route.classify[i].bias)):
            if round(value, DIGITS) != old:
                found.append(((*at, "classify", i, key), round(value, DIGITS)))
    if weights is not None:
        i = _place(route.classify, "embedded")
        block = route.classify[i]
        if not isinstance(block, EmbeddedClassifier) or block.weights != weights:
            found.append(((*at, "classify", i, "weights"), weights))
    if route.choose[step].p_at_least != p_at_least:
        found.append(((*at, "choose", step, "p_at_least"), p_at_least))
    return found


def _place(blocks: Sequence[Classifier], by: str) -> int:
    places = [i for i, block in enumerate(blocks) if name_of(block) == by]
    if len(places) != 1:
        what = "no classifier" if not places else "more than one classifier"
        raise CannotCalibrate(f"the route has {what} that is called {by}: the scores can't be told apart by it")
    return places[0]
