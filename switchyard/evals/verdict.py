"""From paired outcomes to a verdict: non-inferior, inferior or inconclusive, and what would settle it. Pure.

The verdict is about the pass rate. A case passes with full points; everything else that was scored fails, and so does a case
that the infrastructure broke. *Unscored* is neither: such a trial is left out of the numbers, and the verdict has to hold
whichever way it would have gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from switchyard.evals.stats import (
    Counts,
    Interval,
    average_interval,
    cases_needed,
    holm,
    likely_discordance,
    matched_counts,
    mcnemar_exact,
    mean_interval,
    regression_p,
    tango_interval,
)

State = Literal["pass", "partial", "fail", "error", "unscored"]
Word = Literal["non-inferior", "inferior", "inconclusive"]

STATES: Mapping[State, str] = {
    "pass": "full points",
    "partial": "some of the points: no pass, but they count in the score",
    "fail": "no points",
    "error": "the gateway, an engine or the network gave no answer to grade: a failure, without points",
    "unscored": "the grader could not judge: left out of pass rate and score, and the verdict must hold whichever way it went",
}
ALARM = 0.05
LARGE_SUITE = 1_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one trial of one case ended under one arm.

    Attributes:
        state: see `STATES`.
        score: share of the points, 0..1; 0 for an error, without meaning when unscored.
    """

    state: State
    score: float = 0.0


Outcomes = Mapping[str, Sequence[Outcome]]
"""Trials by case."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two arms over the same cases.

    Attributes:
        cases: pairs that count: both sides scored.
        unscored: cases left out, since a side has no scored trial.
        trials: trials of each case, the largest number seen.
        counts: how many cases passed where; with several trials, the table with the same mean and spread.
        baseline_rate: pass rate of the baseline.
        difference: pass rate of the candidate minus that of the baseline.
        interval: 90 % interval of it.
        method: how the interval was made.
        score_difference: the same for points, 0..1.
        score_interval: 90 % interval of it, by the case-clustered bootstrap.
        discordance: share of the cases on which the arms differ.
        p_mcnemar: exact two-sided p; a difference in either direction. With several trials a sign test over cases.
        p_regression: exact one-sided p; small when the candidate loses more than chance would have it.
        lost: names of cases that only the baseline passes, or passes in more of its trials.
        won: the same for the candidate.
    """

    cases: int
    unscored: tuple[str, ...]
    trials: int
    counts: Counts
    baseline_rate: float
    difference: float
    interval: Interval
    method: str
    score_difference: float
    score_interval: Interval
    discordance: float
    p_mcnemar: float
    p_regression: float
    lost: tuple[str, ...]
    won: tuple[str, ...]

    @property
    def regressed(self) -> bool:
        """Whether the regression alarm sounds: it says "worse", not "worse than the margin"."""
        return self.p_regression < ALARM


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a comparison shows.

    Attributes:
        word: non-inferior, inferior, inconclusive.
        margin: as a proportion.
        why: one sentence.
        settled_by: cases in all that would settle it with 80 % power if the arms are equally good; None when settled.
        settled_as_seen: the same if the difference stays as it was seen; None when it lies at the margin, or when settled.
    """

    word: Word
    margin: float
    why: str
    settled_by: int | None = None
    settled_as_seen: int | None = None


def default_margin(cases: int) -> float:
    """5 points; 2 where there are cases enough to show that."""
    return 0.02 if cases >= LARGE_SUITE else 0.05


def smallest_margin(cases: int) -> float:
    """The smallest margin that so many cases can show at all: that of a run in which no case differs."""
    return -tango_interval(Counts(cases, 0, 0, 0)).low


def why_too_weak(baseline_rate: float, margin: float) -> str:
    """What keeps a baseline from proving parity at a margin, its rate first; empty when nothing does.

    One that passes less than twice the margin proves none: with most of what it can do lost, a candidate would be non-inferior
    (a margin may give away half of the effect: FDA, Non-Inferiority Clinical Trials, 2016).
    """
    if baseline_rate >= 2 * margin:
        return ""
    return f"{baseline_rate:.1%}: too little for this margin, a loss of {margin * 100:g} points would be over half of that"


# ---- comparing ----


def compare(baseline: Outcomes, candidate: Outcomes) -> Comparison:
    """Compare two arms case by case.

    Raises:
        ValueError: no case was scored under both.
    """
    names = [name for name in baseline if name in candidate]
    rates = {name: (_pass_rate(baseline[name]), _pass_rate(candidate[name])) for name in names}
    scored = {name: (a, b) for name, (a, b) in rates.items() if a is not None and b is not None}
    if not scored:
        raise ValueError("no case was scored under both arms")
    everything = dict.fromkeys([*baseline, *candidate])
    trials = max(len(o[name]) for o in (baseline, candidate) for name in scored)
    differences = [b - a for a, b in scored.values()]
    interval, method = _interval(differences, trials)
    lost = tuple(name for name, (a, b) in scored.items() if b < a)
    won = tuple(name for name, (a, b) in scored.items() if b > a)
    points = [_mean_score(candidate[name]) - _mean_score(baseline[name]) for name in scored]
    return Comparison(
        cases=len(scored),
        unscored=tuple(name for name in everything if name not in scored),
        trials=trials,
        counts=matched_counts(differences),
        baseline_rate=sum(a for a, _ in scored.values()) / len(scored),
        difference=sum(differences) / len(scored),
        interval=interval,
        method=method,
        score_difference=sum(points) / len(points),
        score_interval=mean_interval(points),
        discordance=(len(lost) + len(won)) / len(scored),
        p_mcnemar=mcnemar_exact(len(lost), len(won)),
        p_regression=regression_p(len(lost), len(won)),
        lost=lost,
        won=won,
    )


def _interval(differences: Sequence[float], trials: int) -> tuple[Interval, str]:
    if trials == 1:
        return tango_interval(matched_counts(differences)), "Tango's score interval"
    return average_interval(differences), "bootstrap over cases, and Tango's interval"


def _pass_rate(trials: Sequence[Outcome]) -> float | None:
    scored = [t.state == "pass" for t in trials if t.state != "unscored"]
    return sum(scored) / len(scored) if scored else None


def _mean_score(trials: Sequence[Outcome]) -> float:
    scored = [t.score for t in trials if t.state != "unscored"]
    return sum(scored) / len(scored)


# ---- judging ----


def judge(baseline: Outcomes, candidate: Outcomes, margin: float) -> Verdict:
    """The verdict on a candidate.

    *Non-inferior*: the whole interval lies above -margin. *Inferior*: all of it lies below. *Inconclusive*: anything else
    (Piaggio and others, CONSORT for non-inferiority trials, JAMA 308 (2012) 2594-2604). Either of the first two must also
    hold if every unscored trial had gone the other way, and non-inferiority must not rest on failures of the baseline's
    infrastructure or on a baseline that is too weak (see `why_too_weak`).

    Args:
        baseline: outcomes of the big model.
        candidate: outcomes of the routed agent.
        margin: largest loss of pass rate that is still fine, as a proportion; fixed before the run.

    Raises:
        ValueError: no case was scored under both.
    """
    seen = compare(baseline, candidate)
    names = dict.fromkeys([*baseline, *candidate])
    if seen.interval.high < -margin:
        best = _reimagined(baseline, names, unscored="fail"), _reimagined(candidate, names, unscored="pass")
        if _bound(*best).high < -margin:
            return Verdict("inferior", margin, f"the whole interval lies below the margin of -{margin * 100:g} points")
        return _open(seen, margin, "unscored trials could account for the loss")
    if why := why_too_weak(seen.baseline_rate, margin):
        return Verdict("inconclusive", margin, f"the baseline passes {why}")
    if seen.interval.low > -margin:
        worst = _reimagined(baseline, names, errors="pass", unscored="pass"), _reimagined(candidate, names, unscored="fail")
        if _bound(*worst).low > -margin:
            return Verdict("non-inferior", margin, f"the interval lies above the margin of -{margin * 100:g} points")
        why = "unscored trials, or failures of the baseline's infrastructure, could have hidden a larger loss"
        return _open(seen, margin, why)
    least = smallest_margin(seen.cases)
    if least >= margin:
        why = f"{seen.cases} cases can't show a margin under {least * 100:.1f} points, even when no case differs"
    else:
        why = f"the margin of -{margin * 100:g} points lies inside the interval"
    return _open(seen, margin, why)


def _reimagined(outcomes: Outcomes, names: Iterable[str], *, unscored: State, errors: State = "error") -> Outcomes:
    """The same outcomes with another ending where none was scored, or where the infrastructure broke it."""
    instead: dict[State, State] = {"unscored": unscored, "error": errors}
    return {
        name: [Outcome(instead.get(t.state, t.state)) for t in outcomes.get(name) or [Outcome("unscored")]] for name in names
    }


def _bound(baseline: Outcomes, candidate: Outcomes) -> Interval:
    differences = [(_pass_rate(candidate[name]) or 0.0) - (_pass_rate(baseline[name]) or 0.0) for name in baseline]
    return _interval(differences, max(len(o[name]) for o in (baseline, candidate) for name in baseline))[0]


def _open(seen: Comparison, margin: float, why: str) -> Verdict:
    discordance = likely_discordance(seen.counts)
    floor = _cases_to_show(margin)
    equal = max(cases_needed(discordance, margin), floor)
    as_seen = None
    if seen.difference > -margin:
        as_seen = max(cases_needed(discordance, margin, seen.difference), floor)
    elif seen.difference < -margin:
        as_seen = cases_needed(discordance, -margin, -seen.difference)
    return Verdict("inconclusive", margin, why, equal, as_seen)


def _cases_to_show(margin: float) -> int:
    """The fewest cases that can show a margin: found from the smallest margin of a run without discordant cases."""
    low, high = 1, 1 << 20
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if smallest_margin(middle) < margin else (middle + 1, high)
    return low


# ---- categories ----


@dataclass(frozen=True, slots=True)
class CategoryRow:
    """One category of a suite; exploratory: it informs, and never makes the verdict.

    Attributes:
        p_regression: Holm-adjusted over the categories.
    """

    category: str
    comparison: Comparison
    p_regression: float


def compare_categories(baseline: Outcomes, candidate: Outcomes, category_of: Mapping[str, str]) -> list[CategoryRow]:
    """Compare inside each category, with the p-values of the alarms corrected for their number."""
    found: list[tuple[str, Comparison]] = []
    for category in sorted(set(category_of.values())):
        inside = {name for name, c in category_of.items() if c == category}
        parts = [{n: t for n, t in outcomes.items() if n in inside} for outcomes in (baseline, candidate)]
        try:
            found.append((category, compare(*parts)))
        except ValueError:  # nothing of it was scored
            continue
    adjusted = holm([c.p_regression for _, c in found])
    return [CategoryRow(category, c, p) for (category, c), p in zip(found, adjusted, strict=True)]
