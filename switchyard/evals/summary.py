"""From a run's folder to everything that its reports show, as plain JSON. Pure.

Rates, shares and scores are proportions (0..1); what ends in `_points` is in percentage points.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from switchyard.evals.arms import AGAIN, ARMS, BIG, RANDOM, ROUTED, SMALL
from switchyard.evals.folder import Finished
from switchyard.evals.measure import measure_arm
from switchyard.evals.routing_value import RoutedCase, advantage_over_random, oracle_curve, share_quality_curve
from switchyard.evals.stats import Interval
from switchyard.evals.verdict import Comparison, Outcome, Outcomes, compare, compare_categories, judge, smallest_margin

Json = dict[str, Any]
WEAK_BASELINE = 0.5


def summarise(run: Mapping[str, Any], finished: Sequence[Finished]) -> Json:
    """The whole report.

    Args:
        run: run.json.
        finished: its trials, in any order.
    """
    by_arm = {arm: [t for t in finished if t.arm == arm] for arm in run["arms"]}
    outcomes = {arm: _outcomes(trials) for arm, trials in by_arm.items()}
    expected = len(run["cases"]) * run["trials"]
    big_pool = run["names"]["big"]
    arms = {arm: measure_arm(trials, run.get("weights") or {}) for arm, trials in by_arm.items() if trials}
    for arm, measured in arms.items():
        base = arms.get(BIG)
        comparable = base is not None and base["engine_s"] and base["trials"] and measured["trials"]
        measured["what"] = ARMS[arm]
        measured["big_share"] = _mean([t.share(big_pool) for t in by_arm[arm]])
        measured["cost"] = (
            (measured["engine_s"] / measured["trials"]) / (base["engine_s"] / base["trials"]) if base and comparable else None
        )
        measured["speed"] = (
            (measured["trials"] / measured["busy_s"]) / (base["trials"] / base["busy_s"])
            if base and measured["busy_s"] and base["busy_s"]
            else None
        )
    report: Json = {
        "run": dict(run),
        "complete": all(len(trials) == expected for trials in by_arm.values()),
        "finished": len(finished),
        "expected": expected * len(run["arms"]),
        "arms": arms,
        **_verdict(run, outcomes),
        "noise_floor": _comparison(outcomes, BIG, AGAIN),
        "small": _comparison(outcomes, BIG, SMALL),
        "against_random": _comparison(outcomes, RANDOM, ROUTED),
        "categories": _categories(finished, outcomes, big_pool),
        **_value(by_arm, big_pool),
    }
    report["problems"] = [
        {"arm": t.arm, "case": t.case, "trial": t.trial, "state": t.state, "detail": t.detail}
        for t in finished
        if t.state in {"error", "unscored"}
    ]
    report["cautions"] = list(_cautions(report))
    return report


def _outcomes(trials: Sequence[Finished]) -> Outcomes:
    found: dict[str, list[Outcome]] = {}
    for trial in sorted(trials, key=lambda t: t.trial):
        found.setdefault(trial.case, []).append(Outcome(trial.state, trial.score))
    return found


def _verdict(run: Mapping[str, Any], outcomes: Mapping[str, Outcomes]) -> Json:
    margin = run["margin"]
    verdict: Json = {"word": "inconclusive", "margin_points": margin * 100, "settled_by": None, "settled_as_seen": None}
    comparison = _comparison(outcomes, BIG, ROUTED)
    if BIG not in outcomes or ROUTED not in outcomes:
        verdict["why"] = "a verdict compares the arms big and routed, and this run doesn't have both"
    elif comparison is None:
        verdict["why"] = "no case was scored under both big and routed"
    else:
        # What has not run yet is unscored, so that half a run can't pass for a whole one.
        whole = [{c: o.get(c) or [Outcome("unscored")] for c in run["cases"]} for o in (outcomes[BIG], outcomes[ROUTED])]
        found = judge(whole[0], whole[1], margin)
        verdict |= {
            "word": found.word, "why": found.why, "settled_by": found.settled_by, "settled_as_seen": found.settled_as_seen,
            "smallest_margin_points": smallest_margin(comparison["cases"]) * 100,
        }  # fmt: skip
    return {"verdict": verdict, "comparison": comparison}


def _cautions(report: Json) -> Iterator[str]:
    """What a reader must know before believing the verdict."""
    comparison, small, noise = report["comparison"], report["small"], report["noise_floor"]
    margin = report["verdict"]["margin_points"]
    if report["run"].get("chosen_on_suite"):
        yield "the thresholds were chosen on this suite: with the same cases this is the forecast again, no proof of it"
    if comparison and comparison["baseline_rate"] < WEAK_BASELINE:
        yield f"the big model passes only {comparison['baseline_rate']:.1%}: to be as good as that says little"
    if small and small["interval_points"][0] > -margin:
        yield "the small model alone is as good as the big one here: this suite doesn't tell them apart"
    if noise and not (noise["interval_points"][0] > -margin and noise["interval_points"][1] < margin):
        yield "two equal runs of the big model can't be told to be equal at this margin: the suite is too noisy, or too short"
    broken = [arm for arm, measured in report["arms"].items() if measured["states"].get("error")]
    if broken:
        yield f"the infrastructure broke trials of {', '.join(broken)}; they count as failures"
    if report["problems"] and (unscored := sorted({p["arm"] for p in report["problems"] if p["state"] == "unscored"})):
        yield f"trials of {', '.join(unscored)} could not be graded and are left out; the verdict holds either way, or is open"


def _comparison(outcomes: Mapping[str, Outcomes], baseline: str, candidate: str) -> Json | None:
    try:
        found = compare(outcomes[baseline], outcomes[candidate])
    except (KeyError, ValueError):  # an arm did not run, or nothing of it was scored
        return None
    return {"baseline": baseline, "candidate": candidate, **_shown(found)}


def _shown(found: Comparison) -> Json:
    return {
        "cases": found.cases, "trials": found.trials, "unscored": list(found.unscored), "method": found.method,
        "baseline_rate": found.baseline_rate,
        "difference_points": found.difference * 100, "interval_points": _points(found.interval),
        "score_difference_points": found.score_difference * 100, "score_interval_points": _points(found.score_interval),
        "discordance": found.discordance, "p_mcnemar": found.p_mcnemar, "p_regression": found.p_regression,
        "regressed": found.regressed, "lost": list(found.lost), "won": list(found.won),
    }  # fmt: skip


def _points(interval: Interval) -> list[float]:
    return [interval.low * 100, interval.high * 100]


def _categories(finished: Sequence[Finished], outcomes: Mapping[str, Outcomes], big_pool: str) -> list[Json]:
    """Each category: exploratory intervals, corrected alarms, and how much of it the big pool answered."""
    category_of = {t.case: t.category for t in finished}
    routed = [t for t in finished if t.arm == ROUTED]
    rows: list[Json] = []
    for row in compare_categories(outcomes.get(BIG, {}), outcomes.get(ROUTED, {}), category_of):
        inside = [t for t in routed if t.category == row.category]
        rates = {
            arm: measure_arm([t for t in finished if t.arm == arm and t.category == row.category], {})["pass_rate"]
            for arm in outcomes
        }
        rows.append(
            {
                "category": row.category, "rates": rates, "big_share": _mean([t.share(big_pool) for t in inside]),
                **_shown(row.comparison), "p_regression": row.p_regression, "regressed": row.p_regression < 0.05,
            }
        )  # fmt: skip
    return rows


def _value(by_arm: Mapping[str, Sequence[Finished]], big_pool: str) -> Json:
    """What routing is worth, where big, small and routed ran."""
    if not all(by_arm.get(arm) for arm in (BIG, SMALL, ROUTED)):
        return {"advantage": None, "curve": None}
    rates = {arm: _rates(by_arm[arm]) for arm in (BIG, SMALL, ROUTED)}
    cases = [
        RoutedCase(
            name, rates[BIG][name], rates[SMALL][name], rate,
            _mean([t.share(big_pool) for t in by_arm[ROUTED] if t.case == name]) or 0.0,
            _score(by_arm[ROUTED], name),
        )
        for name, rate in rates[ROUTED].items()
        if name in rates[BIG] and name in rates[SMALL]
    ]  # fmt: skip
    if not cases:
        return {"advantage": None, "curve": None}
    advantage = advantage_over_random(cases)
    return {
        "advantage": {
            "share": advantage.share, "difference_points": advantage.difference * 100,
            "interval_points": _points(advantage.interval), "shown": advantage.shown, "cases": len(cases),
        },
        "curve": {
            "points": [{"share": p.share, "quality": p.quality, "threshold": p.threshold} for p in share_quality_curve(cases)],
            "oracle": [list(point) for point in oracle_curve(cases)],
            "scored": sum(c.p is not None for c in cases),
            "cases": len(cases),
        },
    }  # fmt: skip


def _rates(trials: Sequence[Finished]) -> dict[str, float]:
    passed: dict[str, list[bool]] = {}
    for trial in trials:
        if trial.state != "unscored":
            passed.setdefault(trial.case, []).append(trial.state == "pass")
    return {case: sum(p) / len(p) for case, p in passed.items()}


def _score(trials: Sequence[Finished], case: str) -> float | None:
    """The score that decided a case: that of its first request which a score decided."""
    for trial in trials:
        for record in trial.decisions if trial.case == case else ():
            decision = record.get("decision") or {}
            if decision.get("kind") in {"score", "share", "pressure"} and decision.get("p") is not None:
                return float(decision["p"])
    return None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
