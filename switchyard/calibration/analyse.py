"""The whole way from graded requests to a proposal: calibrate each classifier, draw the curve, find the threshold. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from switchyard.calibration.curve import Curve, draw_curve
from switchyard.calibration.fit import Isotonic, Logistic, calibration_error, fit_isotonic, fit_logistic
from switchyard.calibration.labels import Graded
from switchyard.calibration.propose import (
    LEAST_OF_A_KIND,
    Step,
    for_margin,
    for_share,
    requests_needed,
    why_no_better_than_chance,
    why_too_few,
)
from switchyard.evals.verdict import why_too_weak

Method = Literal["logistic", "isotonic", "none"]
AS_IT_IS = Logistic(1.0, 0.0)


@dataclass(frozen=True, slots=True)
class Fitted:
    """One classifier's scores against outcomes.

    Attributes:
        requests: how many graded requests it scored.
        error_before: calibration error of its scores under the policy as it is.
        error_after: of the fitted ones, on the same requests; None when nothing was fitted.
        curve: the fitted curve; for logistic, what the policy should carry (with what it carries already worked in).
        why_not: why nothing was fitted.
    """

    requests: int
    error_before: float
    error_after: float | None = None
    curve: Logistic | Isotonic | None = None
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Wish:
    """What the threshold is wanted for: a share of the big pool, or a largest loss, both 0..1; or neither."""

    share: float | None = None
    margin: float | None = None


@dataclass(frozen=True, slots=True)
class Analysis:
    """What graded requests show.

    Attributes:
        requests: all of them.
        rows: with the scores that the proposed policy would give.
        fitted: by classifier.
        curve: None where no request has a score.
        step: the threshold that fulfils the wish; None without a wish, or when none does.
        doubts: why nothing should be proposed; empty when the step can be trusted.
    """

    requests: int
    rows: tuple[Graded, ...]
    fitted: Mapping[str, Fitted]
    curve: Curve | None
    step: Step | None
    doubts: tuple[str, ...]

    @property
    def scored(self) -> int:
        """How many have a score."""
        return sum(row.p is not None for row in self.rows)


def analyse(rows: Sequence[Graded], current: Mapping[str, Logistic], method: Method, wish: Wish) -> Analysis:
    """Look at graded requests.

    Args:
        rows: with the scores that the policy as it is gives.
        current: the calibration in the policy, by classifier.
        method: logistic changes the scores; isotonic only says how far they are off; none looks at the order alone.
        wish: what is wanted.
    """
    doubts = [reason] if (reason := why_too_few(rows)) else []
    fitted = {by: _fit([r for r in rows if r.by == by], current.get(by, AS_IT_IS), method) for by in _classifiers(rows)}
    if method == "logistic":
        doubts += [f"higher scores of {by} mean worse answers by the small pool" for by, f in fitted.items() if _falls(f.curve)]
        rows = [_rescored(row, current.get(row.by, AS_IT_IS), fitted[row.by].curve if row.by else None) for row in rows]
    if not any(row.p is not None for row in rows):
        return Analysis(len(rows), tuple(rows), fitted, None, None, tuple(doubts))
    curve = draw_curve(rows)
    if reason := why_no_better_than_chance(curve):
        doubts.append(reason)
    step = None
    if wish.share is not None:
        step = for_share(rows, wish.share)
    elif wish.margin is not None:
        if why := why_too_weak(curve.big, wish.margin):
            doubts.append(f"the big pool's share of good answers is {why}")
        step = for_margin(rows, wish.margin)
        if step is None:
            doubts.append(
                f"no threshold is shown to lose less than {wish.margin * 100:g} points; about "
                f"{requests_needed(rows, wish.margin):,} graded requests could show it for a half and half split without loss"
            )
    return Analysis(len(rows), tuple(rows), fitted, curve, step, tuple(doubts))


def _classifiers(rows: Sequence[Graded]) -> list[str]:
    return list(dict.fromkeys(row.by for row in rows if row.p is not None))


def _fit(rows: Sequence[Graded], current: Logistic, method: Method) -> Fitted:
    scores = [row.p or 0.0 for row in rows]
    good = [row.good for row in rows]
    before = calibration_error(scores, good)
    if method == "none":
        return Fitted(len(rows), before)
    if min(sum(good), len(good) - sum(good)) < LEAST_OF_A_KIND:
        return Fitted(len(rows), before, why_not="too few outcomes of one kind: left as it is")
    if method == "isotonic":
        steps = fit_isotonic(scores, good)
        return Fitted(len(rows), before, calibration_error([steps(p) for p in scores], good), steps)
    found = fit_logistic(scores, good)
    return Fitted(len(rows), before, calibration_error([found(p) for p in scores], good), found.after(current))


def _falls(curve: object) -> bool:
    return isinstance(curve, Logistic) and curve.scale <= 0


def _rescored(row: Graded, current: Logistic, fitted: object) -> Graded:
    """The row with the score that the new calibration gives."""
    if row.p is None or not isinstance(fitted, Logistic) or _falls(fitted):
        return row
    raw = Logistic(1 / current.scale, -current.bias / current.scale)(row.p)
    return replace(row, p=fitted(raw))
