"""Finished runs made of numbers, for tests of what is computed and shown from them."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

from switchyard.evals.folder import Finished
from switchyard.evals.verdict import Outcome, Outcomes, State

CATEGORIES = ("simple", "multiple", "parallel", "irrelevance")


def outcomes(text: str) -> Outcomes:
    """Single trials from letters: 1 pass, 0 fail, e error, u unscored."""
    states: dict[str, State] = {"1": "pass", "0": "fail", "e": "error", "u": "unscored"}
    return {f"case-{i}": [Outcome(states[c], float(c == "1"))] for i, c in enumerate(text)}


def finished(
    arm: str, case: str, state: State = "pass", *, pool: str = "qwen", trial: int = 1, p: float | None = None,
    category: str = "simple", requests: int = 1, began_s: float = 1_000.0, wall_s: float = 1.0, detail: str = "as expected",
) -> Finished:  # fmt: skip
    """One trial whose requests all went to one pool."""
    ms = wall_s * 1000 / requests
    decision = {
        "client_request_id": f"{arm}/{case}/{trial}", "pool": pool, "replica": f"{pool}-1",
        "decision": {"pool": pool, "kind": "score" if p is not None else "named", "p": p},
        "ms": {"decide": 1.0, "queue": 0.0, "first_byte": ms / 2, "first_token": ms / 2, "total": ms},
        "tokens": {"input": 300, "output": 40, "cached": None}, "outcome": "ok", "status": 200,
    }  # fmt: skip
    return Finished(
        arm=arm, case=case, category=category, trial=trial, label=f"run/{arm}/{case}/{trial}", model=pool, state=state,
        score=float(state == "pass"), detail=detail, began_s=began_s, wall_s=wall_s, decisions=[decision] * requests,
    )  # fmt: skip


def described(cases: Iterable[str], arms: Iterable[str], **other: Any) -> dict[str, Any]:
    """run.json of such a run."""
    return {
        "format": 2, "run_id": "0a1b2c", "started": "2026-11-30T12:00:00+0000", "switchyard": "0.1.0",
        "suite": "function-calls", "version": "0123456789abcdef", "cases": list(cases), "arms": list(arms), "trials": 1,
        "margin": 0.05, "names": {"route": "auto", "big": "qwen", "small": "minicpm"}, "seed": 0, "settings": {},
        "concurrency": 4, "weights": {"qwen": 2.0}, "gateway": "started for the run", "policy": "policy.yaml",
        "policy_hash": "ab" * 32, **other,
    }  # fmt: skip


def whole_run(cases: int = 240, seed: int = 4) -> tuple[dict[str, Any], list[Finished]]:
    """A run of all five arms: big passes about 91 %, small 70 %, and a fair classifier sends a third to big."""
    draw = Random(seed)
    names = [f"{CATEGORIES[i % 4]}_{i // 4}" for i in range(cases)]
    trials: list[Finished] = []
    clock = dict.fromkeys(("big", "small", "routed", "big-again", "random"), 0.0)
    starts = {arm: 1_000.0 * i for i, arm in enumerate(clock, 1)}
    for i, name in enumerate(names):
        difficulty = draw.random()
        big, small = difficulty < 0.91, difficulty < 0.66 or draw.random() < 0.10
        p = min(0.99, max(0.01, 1 - difficulty + draw.uniform(-0.3, 0.3)))
        chosen = "minicpm" if p > 0.5 else "qwen"
        coin = "qwen" if draw.random() < 0.5 else "minicpm"
        flipped = big != (draw.random() < 0.02)
        plan = [("big", "qwen", big), ("small", "minicpm", small), ("routed", chosen, small if chosen == "minicpm" else big),
                ("big-again", "qwen", flipped), ("random", coin, small if coin == "minicpm" else big)]  # fmt: skip
        for arm, pool, passed in plan:
            wall_s = draw.uniform(0.8, 2.4) * (1.0 if pool == "qwen" else 0.3)
            state: State = "error" if (arm, i) == ("routed", 77) else "pass" if passed else "fail"
            trials.append(
                finished(
                    arm, name, state, pool=pool, p=p if arm == "routed" else None, category=CATEGORIES[i % 4],
                    began_s=starts[arm] + clock[arm], wall_s=wall_s,
                    detail="HTTP 502: pool minicpm: no replica can be reached" if state == "error" else "as expected",
                )
            )  # fmt: skip
            clock[arm] += wall_s / 4
    return described(names, clock), trials
