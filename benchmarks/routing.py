#!/usr/bin/env python3
"""Measure how well the embedded classifier ranks requests, against chance, prompt length and TF-IDF.

usage: routing.py --data FILE [--out FOLDER] [--only SETTING,...]

Every figure is from models that had not seen the prompt, nor any that shares a passage with it: the recipe in
`switchyard/calibration` is run once for each fold, exported, and read by the classifier that ships. What it measures, how,
and what came out is docs/explanation/routing-quality.md. Needs numpy, scipy and scikit-learn; ten minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
HERE = Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE.parent))

try:
    import numpy as np
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    from switchyard.calibration import recipe
except ImportError as error:
    sys.exit(f"{error.name} is missing: pip install -r tools/train_embedded/requirements.txt")

from switchyard.routing.classify.embedded import EmbeddedClassifier  # noqa: E402
from switchyard.routing.classify.reading import Reading  # noqa: E402
from switchyard.routing.classify.scope import why_not  # noqa: E402
from switchyard.routing.classify.scorer import Scorer, read_weights  # noqa: E402
from switchyard.routing.request import Body, RequestView  # noqa: E402
from switchyard.routing.signals import Signals  # noqa: E402

FOLDS = 5
SEED = 20_261_130  # of the folds; others were looked at while the recipe was made
RESAMPLES = 1_000
BINS = 10  # of calibration, with equally many prompts
THRESHOLDS = (0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
OURS, TFIDF, TFIDF_GAIN, LENGTH, LINEAR, TREES = "embedded", "TF-IDF", "TF-IDF by gain", "length", "linear part", "trees"
ARMS = (OURS, TFIDF, LENGTH, TFIDF_GAIN, LINEAR, TREES)
BASELINES = (TFIDF, LENGTH)


# ---- the figures: RouteLLM, arXiv 2406.18665 ----


@dataclass
class Labels:
    small: np.ndarray
    big: np.ndarray
    groups: np.ndarray  # what is drawn together in a resample

    @property
    def gain(self) -> np.ndarray:
        return self.big - self.small


def recovered(order: np.ndarray, labels: Labels, times: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Share of strong calls and performance gap recovered, when prompts go to the big model in this order."""
    times = np.ones(len(order)) if times is None else times
    share = np.concatenate([[0.0], np.cumsum(times[order])])
    gained = np.concatenate([[0.0], np.cumsum((times * labels.gain)[order])])
    return share / share[-1], gained / gained[-1]


def order_of(scores: np.ndarray) -> np.ndarray:
    """Strong first; equal scores in an order that says nothing."""
    return np.lexsort((np.random.default_rng(0).random(len(scores)), -scores))


def figures(order: np.ndarray, labels: Labels, times: np.ndarray | None = None) -> tuple[float, float, float]:
    """APGR, CPT(50 %), CPT(80 %)."""
    share, gap = recovered(order, labels, times)
    apgr = float(np.sum(np.diff(share) * (gap[1:] + gap[:-1]) / 2))
    return apgr, float(share[np.argmax(gap >= 0.5)]), float(share[np.argmax(gap >= 0.8)])


def resample(labels: Labels) -> Iterator[np.ndarray]:
    """How often each prompt is drawn, for each resample; whole groups are drawn."""
    _, group = np.unique(labels.groups, return_inverse=True)
    count = group.max() + 1
    random = np.random.default_rng(1)
    for _ in range(RESAMPLES):
        yield np.bincount(random.integers(0, count, count), minlength=count)[group].astype(float)


def interval(values: Sequence[float] | np.ndarray) -> list[float]:
    return [round(float(v), 4) for v in np.quantile(np.asarray(values), [0.025, 0.975])]


def rank_within(scores: np.ndarray, strata: np.ndarray) -> np.ndarray:
    """Ranks 0..1 inside each stratum: the same share of each goes to the big model."""
    ranks = np.zeros(len(scores))
    for stratum in np.unique(strata):
        here = np.flatnonzero(strata == stratum)
        ranks[here[order_of(scores[here])]] = 1 - (np.arange(len(here)) + 0.5) / len(here)
    return ranks


def calibration_error(p: np.ndarray, outcome: np.ndarray) -> tuple[float, list[list[float]]]:
    """Expected calibration error over `BINS` bins with equally many prompts; and each bin's mean p, frequency, size."""
    bins = [b for b in np.array_split(np.argsort(p, kind="stable"), BINS) if len(b)]
    rows = [[float(p[b].mean()), float(outcome[b].mean()), float(len(b))] for b in bins]
    return sum(n * abs(mean - real) for mean, real, n in rows) / len(p), [[round(v, 4) for v in row] for row in rows]


# ---- the settings ----


@dataclass
class Setting:
    """Which prompts are scored by models that learned from which others.

    Attributes:
        name: in the results.
        tested: indices of the scored prompts.
        fold: of each of them.
        also: indices of prompts that every model learns from; the TF-IDF baseline does not, it is better without them.
        clusters: what is drawn together in a resample.
        only: fixed training prompts instead of the other folds.
    """

    name: str
    tested: np.ndarray
    fold: np.ndarray
    clusters: np.ndarray
    also: np.ndarray = field(default_factory=lambda: np.array([], dtype=int))
    only: np.ndarray | None = None


def make_settings(rows: list[recipe.Row], groups: np.ndarray) -> list[Setting]:
    subjects = np.array([r.subject for r in rows])
    mmlu = np.array([r.suite == "mmlu" for r in rows])
    broken = np.isin(subjects, recipe.BROKEN)
    settings = []
    gsm8k = np.flatnonzero(~mmlu)
    for suffix, chosen in (("", np.flatnonzero(mmlu & ~broken)), (" with broken labels", np.flatnonzero(mmlu))):
        by_group = recipe.folds_of(groups[chosen].tolist(), FOLDS, SEED)
        settings.append(Setting("MMLU 5-fold" + suffix, chosen, by_group, groups[chosen], gsm8k))
        by_subject = recipe.folds_of(subjects[chosen].tolist(), FOLDS, SEED)
        settings.append(Setting("MMLU subjects left out" + suffix, chosen, by_subject, subjects[chosen], gsm8k))
    clean = np.flatnonzero(mmlu & ~broken)
    by_group = recipe.folds_of(groups[gsm8k].tolist(), FOLDS, SEED)
    settings.insert(2, Setting("GSM8K 5-fold", gsm8k, by_group, groups[gsm8k], clean))
    one = np.zeros
    settings.append(Setting("MMLU to GSM8K", gsm8k, one(len(gsm8k), dtype=int), groups[gsm8k], only=clean))
    settings.append(Setting("GSM8K to MMLU", clean, one(len(clean), dtype=int), groups[clean], only=gsm8k))
    return settings


@dataclass
class Scored:
    """Everything the models said in a setting; `stems` are the questions without the answers to choose from."""

    arms: dict[str, np.ndarray]
    p: np.ndarray
    why: list[str]
    stem_p: np.ndarray
    stem_why: list[str]


def score(setting: Setting, rows: list[recipe.Row], groups: np.ndarray, labels: Labels) -> Scored:
    n = len(setting.tested)
    arms = {arm: np.zeros(n) for arm in ARMS}
    scored = Scored(arms, np.zeros(n), [""] * n, np.zeros(n), [""] * n)
    arms[LENGTH][:] = [len(rows[i].prompt) for i in setting.tested]
    for k in range(int(setting.fold.max()) + 1):
        here = np.flatnonzero(setting.fold == k)
        own = setting.tested[setting.fold != k] if setting.only is None else setting.only
        learned = np.concatenate([own, setting.also])
        scorer = Scorer(recipe.fit([rows[i] for i in learned], groups[learned].tolist()))
        for at in here:
            prompt = rows[setting.tested[at]].prompt
            reading, stem = Reading(prompt), recipe.stem_of(prompt)
            sums = scorer.look_up(reading)
            arms[TREES][at], arms[LINEAR][at] = scorer._tree_gain(reading), scorer._linear_gain(reading, sums)
            scored.p[at], scored.why[at] = scorer.p(reading, sums), why_not(prompt, reading, sums)
            reading = Reading(stem)
            sums = scorer.look_up(reading)
            scored.stem_p[at], scored.stem_why[at] = scorer.p(reading, sums), why_not(stem, reading, sums)
        arms[OURS][here] = -scored.p[here]
        arms[TFIDF][here], arms[TFIDF_GAIN][here] = tfidf(rows, own, setting.tested[here], labels)
        print(".", end="", flush=True)
    return scored


def tfidf(rows: list[recipe.Row], learned: np.ndarray, tested: np.ndarray, labels: Labels) -> tuple[np.ndarray, np.ndarray]:
    """Logistic regression over TF-IDF of words and pairs: P(only big), and that minus P(only small)."""
    texts = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True)
    seen = texts.fit_transform([rows[i].prompt for i in learned])
    unseen = texts.transform([rows[i].prompt for i in tested])
    heads = []
    for target in (labels.gain[learned] > 0, labels.gain[learned] < 0):
        heads.append(LogisticRegression(max_iter=1000).fit(seen, target).predict_proba(unseen)[:, 1])
    return heads[0], heads[0] - heads[1]


# ---- what is made of them ----


def measure(setting: Setting, scored: Scored, labels: Labels, rows: list[recipe.Row]) -> dict[str, Any]:
    of = Labels(labels.small[setting.tested], labels.big[setting.tested], setting.clusters)
    orders = {arm: order_of(scores) for arm, scores in scored.arms.items()}
    draws: dict[str, list[tuple[float, float, float]]] = {arm: [] for arm in ARMS}
    for times in resample(of):
        for arm in ARMS:
            draws[arm].append(figures(orders[arm], of, times))
    random = np.random.default_rng(2)
    chance = np.array([figures(random.permutation(len(of.small)), of) for _ in range(RESAMPLES)])
    names = ("apgr", "cpt50", "cpt80")
    table: dict[str, Any] = {
        "random": {name: {"value": (0.5, 0.5, 0.8)[i], "interval": interval(chance[:, i])} for i, name in enumerate(names)}
    }
    for arm in ARMS:
        values, drawn = figures(orders[arm], of), np.array(draws[arm])
        table[arm] = {name: {"value": round(values[i], 4), "interval": interval(drawn[:, i])} for i, name in enumerate(names)}
    ours = np.array(draws[OURS])
    beats = {
        arm: {
            name: {
                "difference": round(table[OURS][name]["value"] - table[arm][name]["value"], 4),
                "interval": interval(ours[:, i] - np.array(draws[arm])[:, i]),
            }
            for i, name in enumerate(names)
        }
        for arm in ARMS
        if arm != OURS
    }
    small_is_enough = of.gain <= 0
    ece, bins = calibration_error(scored.p, small_is_enough)
    lengths = np.array([len(rows[i].prompt) for i in setting.tested])
    decile = np.searchsorted(np.quantile(lengths, np.arange(0.1, 1, 0.1)), lengths)
    subjects = np.array([rows[i].subject for i in setting.tested])
    balanced = {
        name: {arm: round(figures(order_of(rank_within(scored.arms[arm], strata)), of)[0], 4) for arm in (OURS, *BASELINES)}
        for name, strata in (("length", decile), ("subject", subjects))
    }
    oracle = recovered(order_of(of.gain), of)
    result = {
        "prompts": len(of.small), "groups": len(np.unique(of.groups)),
        "small": round(float(of.small.mean()), 4), "big": round(float(of.big.mean()), 4),
        "only_big": round(float((of.gain > 0).mean()), 4), "only_small": round(float((of.gain < 0).mean()), 4),
        "oracle": {"apgr": round(figures(order_of(of.gain), of)[0], 4), "most": round(float(oracle[1].max()), 4)},
        "arms": table, "ours_minus": beats, "balanced": balanced,
        "calibration": {"error": round(ece, 4), "bins": bins, "mean_p": round(float(scored.p.mean()), 4)},
        "thresholds": [at_threshold(t, scored.p, of) for t in THRESHOLDS],
        "scope": scope(scored.p, scored.why, of),
        "curves": {arm: curve(orders[arm], of) for arm in (OURS, *BASELINES)},
    }  # fmt: skip
    if rows[setting.tested[0]].suite == "mmlu":
        ece, bins = calibration_error(scored.stem_p, small_is_enough)
        result["stems"] = {
            "apgr": round(figures(order_of(-scored.stem_p), of)[0], 4),
            "calibration": {"error": round(ece, 4), "bins": bins},
            "scope": scope(scored.stem_p, scored.stem_why, of),
        }
    return result


def at_threshold(threshold: float, p: np.ndarray, of: Labels) -> dict[str, float]:
    """What a policy with `p_at_least: threshold` gets: share of the small pool, right answers, gap recovered."""
    small = p >= threshold
    right = float(np.where(small, of.small, of.big).mean())
    gap = float(of.big.mean() - of.small.mean())
    return {
        "p_at_least": threshold, "small_share": round(float(small.mean()), 4), "right": round(right, 4),
        "recovered": round((right - float(of.small.mean())) / gap, 4),
    }  # fmt: skip


def scope(p: np.ndarray, why: list[str], of: Labels) -> dict[str, Any]:
    """How often the classifier abstains, why, and the figures of both parts."""
    speaks = np.array([not reason for reason in why])
    reasons: dict[str, float] = {}
    for reason in filter(None, why):
        reasons[reason] = reasons.get(reason, 0) + 1
    found: dict[str, Any] = {
        "abstains": round(1 - float(speaks.mean()), 4),
        "reasons": {reason: round(n / len(why), 4) for reason, n in sorted(reasons.items(), key=lambda kv: -kv[1])},
    }
    for name, part in (("speaking", speaks), ("abstaining", ~speaks)):
        here = Labels(of.small[part], of.big[part], of.groups[part])
        if len(here.small) < 100 or here.gain.sum() <= 0:
            continue
        ece, _ = calibration_error(p[part], here.gain <= 0)
        apgr = figures(order_of(-p[part]), here)[0]
        found[name] = {
            "prompts": len(here.small), "apgr": round(apgr, 4), "calibration_error": round(ece, 4),
            "mean_p": round(float(p[part].mean()), 4), "small_is_enough": round(float((here.gain <= 0).mean()), 4),
        }  # fmt: skip
    return found


def curve(order: np.ndarray, of: Labels, points: int = 50) -> list[list[float]]:
    share, gap = recovered(order, of)
    at = np.linspace(0, len(share) - 1, points + 1).round().astype(int)
    return [[round(float(share[i]), 4), round(float(gap[i]), 4)] for i in at]


def cost(rows: list[recipe.Row]) -> dict[str, float]:
    """Median microseconds of one score for prompts of about a length; other readers of the signals come before us."""
    scorer = Scorer(read_weights())
    classifier = EmbeddedClassifier(scorer)
    taken: dict[str, list[float]] = {}
    for low, high in ((150, 250), (950, 1_050), (2_700, 3_000)):
        name = f"score, {low} to {high} characters"
        for prompt in [row.prompt for row in rows if low <= len(row.prompt) <= high][:200]:
            body = json.dumps({"model": "auto", "messages": [{"role": "user", "content": prompt}]}).encode()
            for _ in range(10):
                signals = Signals(RequestView("chat", Body(body), {}))
                _ = signals.last_human_text, signals.prompt_tokens, signals.tools, signals.code_share
                began = time.perf_counter()
                outcome = run(classifier.score(signals))
                if outcome.p is not None:
                    taken.setdefault(name, []).append(time.perf_counter() - began)
    text = "\n".join(row.prompt for row in rows[::30])
    for length in (1_000, 4_000):
        for at in range(0, len(text) - length, 1_000):
            piece = text[at : at + length]
            for _ in range(5):
                began = time.perf_counter()
                reading = Reading(piece)
                scorer.p(reading, scorer.look_up(reading))
                taken.setdefault(f"reading and p, mixed text of {length} characters", []).append(time.perf_counter() - began)
    began = time.perf_counter()
    Scorer(scorer.weights)
    found = {name: round(statistics.median(values) * 1e6, 1) for name, values in taken.items()}
    return found | {"making the tables, once": round((time.perf_counter() - began) * 1e6)}


def run(coroutine: Any) -> Any:
    """The result of a coroutine that waits for nothing, without the cost of a loop."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits")


# ---- what is shown ----

COLOURS = {OURS: "#c2410c", TFIDF: "#1d4ed8", LENGTH: "#15803d"}


def draw(results: dict[str, Any]) -> str:
    """Share-quality curves, one panel a setting."""
    side, gap, left, top = 250, 58, 48, 40
    low, high = -0.1, 1.2
    parts = []
    for n, (name, found) in enumerate(results.items()):
        x0 = left + n * (side + gap)

        def place(share: float, value: float, x0: int = x0) -> str:
            return f"{x0 + share * side:.1f},{top + side * (high - value) / (high - low):.1f}"

        parts.append(f'<text x="{x0}" y="{top - 12}" class="b">{name}</text>')
        for value in (0, 0.5, 0.8, 1):
            at = place(0, value).split(",")[1]
            parts.append(f'<path d="M{place(0, value)} L{place(1, value)}" stroke="#ddd"/>')
            parts.append(f'<text x="{x0 - 6}" y="{float(at) + 4:.1f}" text-anchor="end">{value:g}</text>')
        for share in (0, 0.5, 1):
            parts.append(f'<text x="{x0 + share * side}" y="{top + side + 16}" text-anchor="middle">{share:.0%}</text>')
        parts.append(f'<path d="M{place(0, 0)} L{place(1, 1)}" stroke="#888" stroke-dasharray="4 3"/>')
        for arm in reversed(COLOURS):
            points = " ".join(place(share, value) for share, value in found["curves"][arm])
            parts.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[arm]}" stroke-width="1.8"/>')
    width, height = left + len(results) * (side + gap), top + side + 66
    for n, (arm, colour) in enumerate([*COLOURS.items(), ("random", "#888")]):
        parts.append(f'<rect x="{left + n * 130}" y="{height - 20}" width="18" height="3" fill="{colour}"/>')
        parts.append(f'<text x="{left + n * 130 + 24}" y="{height - 14}">{arm}</text>')
    axes = "across: share of calls to the big model; up: share of the gap recovered"
    parts.append(f'<text x="{left}" y="{height - 32}">{axes}</text>')
    style = "text{font:12px sans-serif;fill:#222}.b{font-weight:bold}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"><style>{style}</style>'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n'
    )


def show(name: str, found: dict[str, Any]) -> str:
    """A setting as Markdown."""

    def cell(entry: dict[str, Any], percent: bool) -> str:
        low, high = entry["interval"]
        value = entry["value"] if "value" in entry else entry["difference"]
        if percent:
            return f"{value:.0%} ({low:.0%}..{high:.0%})"
        sign = "+" if "difference" in entry else ""
        return f"{value:{sign}.3f} ({low:{sign}.3f}..{high:{sign}.3f})"

    lines = [
        f"## {name}", "",
        f"{found['prompts']:,} prompts; right: small {found['small']:.1%}, big {found['big']:.1%}; only big"
        f" {found['only_big']:.1%}, only small {found['only_small']:.1%}; oracle APGR {found['oracle']['apgr']:.2f}, at most"
        f" {found['oracle']['most']:.2f} of the gap.", "",
        "| ranked by | APGR | CPT(50 %) | CPT(80 %) | embedded is better by (APGR) |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for arm, entry in found["arms"].items():
        better = cell(found["ours_minus"][arm]["apgr"], False) if arm in found["ours_minus"] else ""
        lines.append(
            f"| {arm} | {cell(entry['apgr'], False)} | {cell(entry['cpt50'], True)} | {cell(entry['cpt80'], True)} | {better} |"
        )
    calibration = found["calibration"]
    real = 1 - found["only_big"]
    lines += ["", f"Calibration error {calibration['error']:.3f}; mean p {calibration['mean_p']:.3f}, it was {real:.3f}."]
    for strata, of in found["balanced"].items():
        lines.append(f"Same share of each {strata}: " + ", ".join(f"{arm} {value:.3f}" for arm, value in of.items()) + ".")
    lines += ["", "| p_at_least | calls to small | right | gap recovered |", "|---|---|---|---|"]
    for row in found["thresholds"]:
        lines.append(f"| {row['p_at_least']:g} | {row['small_share']:.0%} | {row['right']:.1%} | {row['recovered']:.0%} |")
    lines.append("")
    for label, of in (("prompts", found["scope"]), ("questions without their answers", found.get("stems", {}).get("scope"))):
        if of:
            reasons = "; ".join(f"{reason} {share:.1%}" for reason, share in of["reasons"].items())
            lines.append(f"Abstains on {of['abstains']:.1%} of the {label}: {reasons}")
            for part in ("speaking", "abstaining"):
                if part in of:
                    lines.append(f"- {part}: " + ", ".join(f"{k} {v:g}" for k, v in of[part].items()))
    if "stems" in found:
        stems = found["stems"]
        lines.append(f"Without answers: APGR {stems['apgr']:.3f}, calibration error {stems['calibration']['error']:.3f}")
    return "\n".join(lines) + "\n"


def main() -> int:
    about, _, more = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(description=about, epilog=more, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="labelled prompts: see tools/train_embedded/README.md")
    parser.add_argument("--out", type=Path, default=HERE / "routing", help="folder for results (default: %(default)s)")
    parser.add_argument("--only", default="", help="names of settings, parted by commas; nothing is written then")
    arguments = parser.parse_args()
    if not arguments.data.is_file():
        print(f"{arguments.data} isn't there: tools/train_embedded/README.md says how to make it", file=sys.stderr)
        return 2
    rows = recipe.read_rows(arguments.data)
    groups = np.array(recipe.group_prompts([row.prompt for row in rows]))
    small = np.array([float(row.small_ok) for row in rows])
    labels = Labels(small, np.array([float(row.big_ok) for row in rows]), groups)
    wanted = [name.strip() for name in arguments.only.split(",") if name.strip()]
    results: dict[str, Any] = {}
    texts = []
    for setting in make_settings(rows, groups):
        if wanted and setting.name not in wanted:
            continue
        began = time.perf_counter()
        print(f"{setting.name} ", end="", flush=True)
        results[setting.name] = measure(setting, score(setting, rows, groups, labels), labels, rows)
        print(f" {time.perf_counter() - began:.0f} s", flush=True)
        texts.append(show(setting.name, results[setting.name]))
        if wanted:
            print(texts[-1])
    if wanted:
        return 0
    times = cost(rows)
    texts.append("## Cost\n\n" + "\n".join(f"- {name}: {value:g} microseconds" for name, value in times.items()) + "\n")
    arguments.out.mkdir(parents=True, exist_ok=True)
    summary = "# Results of benchmarks/routing.py\n\n" + "\n".join(texts)
    (arguments.out / "results.md").write_text(summary)
    (arguments.out / "results.json").write_text(json.dumps({"settings": results, "cost_us": times}, indent=1) + "\n")
    (arguments.out / "curve.svg").write_text(draw(dict(list(results.items())[:3])))
    print(f"\n{summary}\nwritten to {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
