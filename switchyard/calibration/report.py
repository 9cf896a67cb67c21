"""What was found, as plain JSON and as lines for people. Shares and qualities are 0..1 in JSON, per cent in text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from switchyard.calibration.analyse import Analysis
from switchyard.calibration.curve import Curve
from switchyard.calibration.fit import Logistic
from switchyard.calibration.propose import Step
from switchyard.evals.stats import Interval

Json = dict[str, Any]
SHOWN = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


def as_json(found: Analysis) -> Json:
    """Everything that was found."""
    return {
        "requests": found.requests,
        "scored": found.scored,
        "classifiers": {
            by: {
                "requests": f.requests,
                "calibration_error": {"before": f.error_before, "after": f.error_after},
                "fit": _curve_json(f.curve),
                **({"why_not": f.why_not} if f.why_not else {}),
            }
            for by, f in found.fitted.items()
        },
        "curve": _share_quality(found.curve) if found.curve else None,
        "step": _step(found.step) if found.step else None,
        "doubts": list(found.doubts),
    }


def _curve_json(curve: object) -> Json | None:
    if isinstance(curve, Logistic):
        return {"scale": curve.scale, "bias": curve.bias}
    return {"starts": list(curve.starts), "values": list(curve.values)} if curve is not None else None  # type: ignore[attr-defined]


def _share_quality(curve: Curve) -> Json:
    return {
        "requests": curve.requests, "small": curve.small, "big": curve.big, "apgr": curve.apgr, "advantage": curve.advantage,
        "advantage_interval": _ends(curve.advantage_interval), "beats_chance": curve.beats_chance,
        "points": [{"share": p.share, "quality": p.quality, "interval": _ends(p.interval)} for p in curve.points],
    }  # fmt: skip


def _step(step: Step) -> Json:
    return {
        "p_at_least": step.p_at_least, "share": step.share, "share_interval": _ends(step.share_interval),
        "quality": step.quality, "difference": step.difference, "interval": _ends(step.interval),
        "discordance": step.discordance,
    }  # fmt: skip


def _ends(interval: Interval) -> list[float]:
    return [interval.low, interval.high]


def as_text(found: Analysis) -> Iterator[str]:
    """Lines for people."""
    yield f"{found.requests:,} graded requests, {found.scored:,} of them with a score"
    for by, fitted in found.fitted.items():
        after = f" -> {fitted.error_after:.3f}" if fitted.error_after is not None else ""
        curve = fitted.curve
        if isinstance(curve, Logistic):
            how = f"scale {curve.scale:g}, bias {curve.bias:g}"
        elif curve is not None:
            how = f"{len(curve.values)} rising steps, {curve.values[0]:.2f}..{curve.values[-1]:.2f}; a policy keeps its scores"
        else:
            how = fitted.why_not or "scores left as they are"
        yield f"  {by}: {fitted.requests:,} scores, calibration error {fitted.error_before:.3f}{after}; {how}"
    if found.curve is not None:
        yield from _curve_lines(found.curve)
    if found.step is not None:
        yield from _step_lines(found.step)


def _curve_lines(curve: Curve) -> Iterator[str]:
    yield ""
    yield "share of the big pool -> good answers (90 % interval); by chance"
    for point in curve.points:
        if point.share in SHOWN:
            chance = curve.small + point.share * (curve.big - curve.small)
            yield (
                f"  {point.share:>4.0%}  {point.quality:>6.1%}  ({point.interval.low:.1%}..{point.interval.high:.1%})"
                f"  {chance:>6.1%}"
            )
    apgr = f", APGR {curve.apgr:.2f}" if curve.apgr is not None else ""
    low, high = (x * 100 for x in _ends(curve.advantage_interval))
    yield f"against chance {curve.advantage * 100:+.1f} points on average over all shares ({low:+.1f}..{high:+.1f}){apgr}"


def _step_lines(step: Step) -> Iterator[str]:
    low, high = (x * 100 for x in _ends(step.interval))
    yield ""
    yield (
        f"p_at_least {step.p_at_least:g}: {step.share:.1%} of these go to the big pool "
        f"({step.share_interval.low:.1%}..{step.share_interval.high:.1%}), {step.quality:.1%} good answers, "
        f"{step.difference * 100:+.1f} points against the big pool alone ({low:+.1f}..{high:+.1f}), "
        f"{step.discordance:.1%} differ"
    )
