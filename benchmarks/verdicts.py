"""How good the statistics of `switchyard eval` are: coverage of the intervals and wrong verdicts, simulated and exact.

python benchmarks/verdicts.py             the tables of docs/explanation/eval-statistics.md, in two minutes
python benchmarks/verdicts.py --json      the same as JSON
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Iterator
from functools import cache
from random import Random
from typing import Any

from switchyard.evals.stats import Counts, average_interval, mean_interval, tango_interval

SIZES = (92, 1_000)
DISCORDANCE = (0.02, 0.08, 0.2)
MARGINS = {92: 0.05, 1_000: 0.02}


@cache
def interval(n: int, lost: int, won: int) -> tuple[float, float]:
    """Tango's interval of a table with so many discordant cases."""
    found = tango_interval(Counts(n - lost - won, lost, won, 0))
    return found.low, found.high


def draws(n: int, psi: float, difference: float, count: int, seed: int) -> Iterator[tuple[int, int]]:
    """Lost and won cases of simulated runs whose true discordance and difference are these."""
    draw = Random(seed)
    p_lost, p_won = (psi - difference) / 2, (psi + difference) / 2
    for _ in range(count):
        outcomes = Counter(
            "lost" if (u := draw.random()) < p_lost else "won" if u < p_lost + p_won else "same" for _ in range(n)
        )
        yield outcomes["lost"], outcomes["won"]


def chances(n: int, psi: float, difference: float) -> Iterator[tuple[float, int, int]]:
    """Every table that isn't too rare to matter, with its probability."""
    p_won = (psi + difference) / 2 / psi
    for k in range(n + 1):
        p_k = math.exp(
            math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) + k * math.log(psi) + (n - k) * math.log1p(-psi)
        )
        if p_k < 1e-8:
            continue
        for won in range(k + 1):
            p = p_k * math.comb(k, won) * p_won**won * (1 - p_won) ** (k - won)
            if p > 1e-9:
                yield p, k - won, won


def coverage(n: int, psi: float, difference: float = 0.0, count: int = 10_000, seed: int = 1) -> dict[str, Any]:
    """How often the 90 % interval holds the true difference."""

    def holds(lost: int, won: int) -> bool:
        low, high = interval(n, lost, won)
        return low <= difference <= high

    simulated = sum(holds(*pair) for pair in draws(n, psi, difference, count, seed)) / count
    exact = sum(p for p, lost, won in chances(n, psi, difference) if holds(lost, won))
    return {"cases": n, "psi": psi, "difference": difference, "simulated": simulated, "exact": exact}


def type_one_error(n: int, psi: float, margin: float, count: int = 10_000, seed: int = 2) -> dict[str, Any]:
    """How often a candidate that is worse by exactly the margin is called non-inferior."""
    simulated = sum(interval(n, *pair)[0] > -margin for pair in draws(n, psi, -margin, count, seed)) / count
    exact = sum(p for p, lost, won in chances(n, psi, -margin) if interval(n, lost, won)[0] > -margin)
    return {"cases": n, "psi": psi, "margin": margin, "simulated": simulated, "exact": exact}


def power(n: int, psi: float, margin: float) -> float:
    """How often non-inferiority is shown where both arms are equally good; exact."""
    return sum(p for p, lost, won in chances(n, psi, 0.0) if interval(n, lost, won)[0] > -margin)


def bootstrap_coverage(n: int, psi: float, trials: int = 3, count: int = 400, seed: int = 3) -> dict[str, Any]:
    """Coverage of the bootstrap over cases, where each case's difference is an average over trials."""
    draw = Random(seed)
    held = 0
    for run in range(count):
        differences = []
        for _ in range(n):
            # A case is either unsettled, with arms that differ now and then, or the same each time.
            unsettled = draw.random() < psi * 2
            pairs = [((draw.random() < 0.5) - (draw.random() < 0.5)) if unsettled else 0 for _ in range(trials)]
            differences.append(sum(pairs) / trials)
        found = mean_interval(differences, seed=run, resamples=1_000)
        held += found.low <= 0 <= found.high
    return {"cases": n, "psi": psi, "trials": trials, "simulated": held / count}


def average_type_one_error(n: int, margin: float, loss: float, trials: int = 3, count: int = 1_000) -> dict[str, Any]:
    """Wrong verdicts with several trials: a candidate that is worse by exactly the margin, on few of the cases.

    Args:
        n: cases.
        margin: and true loss of the pass rate.
        loss: how often one of those cases is lost in a trial; 1 means each time, as at temperature 0.
        trials: of each case.
        count: runs.
    """
    draw = Random(4)
    alone = used = 0
    for run in range(count):
        differences = [
            -sum(draw.random() < loss for _ in range(trials)) / trials if draw.random() < margin / loss else 0.0
            for _ in range(n)
        ]
        alone += mean_interval(differences, seed=run, resamples=500).low > -margin
        used += average_interval(differences, seed=run, resamples=500).low > -margin
    return {
        "cases": n, "margin": margin, "loss": loss, "trials": trials, "bootstrap": alone / count, "simulated": used / count,
    }  # fmt: skip


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="as JSON")
    given = parser.parse_args()
    found = {
        "coverage": [coverage(n, psi, d) for n in SIZES for psi in DISCORDANCE for d in (0.0, -psi / 2)],
        "type_one_error": [
            type_one_error(n, psi, MARGINS[n]) for n in SIZES for psi in (MARGINS[n], 0.06, 0.08, 0.12, 0.2, 0.3)
        ],
        "power": [
            {"cases": n, "margin": margin} | {f"{psi:.0%}": power(n, psi, margin) for psi in (0.01, 0.02, 0.05, 0.08, 0.1, 0.2)}
            for n, margin in ((92, 0.05), (92, 0.1), (245, 0.05), (1_000, 0.02))
        ],
        "average_type_one_error": [
            average_type_one_error(n, margin, loss) for n, margin in ((50, 0.1), (92, 0.05), (245, 0.05)) for loss in (1, 0.5)
        ],
        "bootstrap": [bootstrap_coverage(n, psi) for n in (92, 300) for psi in DISCORDANCE],
    }
    if given.json:
        print(json.dumps(found, indent=1))
        return
    print("| cases | psi | true difference | coverage, 10,000 draws | exact |\n| --- | --- | --- | --- | --- |")
    for row in found["coverage"]:
        shown = f"{row['simulated']:.3f} | {row['exact']:.3f}"
        print(f"| {row['cases']:,} | {row['psi']:.0%} | {row['difference'] * 100:+.0f} | {shown} |")
    print("\n| cases | margin | psi | wrongly non-inferior, 10,000 draws | exact |\n| --- | --- | --- | --- | --- |")
    for row in found["type_one_error"]:
        print(
            f"| {row['cases']:,} | {row['margin'] * 100:g} | {row['psi']:.0%} | {row['simulated']:.1%} | {row['exact']:.1%} |"
        )
    print("\nShown with this probability where both are equally good, by psi:")
    print("| " + " | ".join(found["power"][0]) + " |\n" + "| --- " * len(found["power"][0]) + "|")
    for row in found["power"]:
        rest = [f"{value:.0%}" for key, value in row.items() if key.endswith("%")]
        print(f"| {row['cases']:,} | {row['margin'] * 100:g} | {' | '.join(rest)} |")
    print("\n| cases | margin | a lost case is lost in | wrongly non-inferior | by the bootstrap alone |")
    print("| --- | --- | --- | --- | --- |")
    for row in found["average_type_one_error"]:
        where = "each of 3 trials" if row["loss"] == 1 else f"{row['loss']:.0%} of 3 trials"
        shown = f"{row['simulated']:.1%} | {row['bootstrap']:.1%}"
        print(f"| {row['cases']} | {row['margin'] * 100:g} | {where} | {shown} |")
    print("\n| cases | psi | trials | coverage of the bootstrap, 400 runs |\n| --- | --- | --- | --- |")
    for row in found["bootstrap"]:
        print(f"| {row['cases']} | {row['psi']:.0%} | {row['trials']} | {row['simulated']:.3f} |")


if __name__ == "__main__":
    main()
