"""`switchyard eval` with the demo's real engines: the whole path works, the model is poor, and the report says so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from integration.gateway import policy, pool
from integration.test_evals import evaluate

from switchyard.demo.engine import EmbeddedEngine
from switchyard.demo.model import fetch_model
from switchyard.evals.folder import read_finished

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def policy_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with EmbeddedEngine(fetch_model()) as big, EmbeddedEngine(fetch_model()) as small:
        for engine in (big, small):
            asyncio.run(engine.wait_ready())
        pools = {name: pool(engine.url, model="smollm2") for name, engine in (("small", small), ("big", big))}
        choose = [{"p_at_least": 0.6, "use": "small"}, {"use": "big"}]
        file = tmp_path_factory.mktemp("policy") / "policy.yaml"
        file.write_text(json.dumps(policy(pools, {"auto": {"classify": [{"type": "embedded"}], "choose": choose}})))
        yield file


SUITES = [
    ("function-calls", "simple_0,multiple_3,parallel_0,irrelevance_0"),
    (f"prompts:{ROOT}/evals/prompts/example.jsonl", "capital,contact,sorted"),
    ("tool-use", "TC-10,TC-11"),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("suite", "cases"), SUITES, ids=["function-calls", "prompts", "tool-use"])
def test_a_real_model_through_the_whole_path(policy_file: Path, tmp_path: Path, suite: str, cases: str) -> None:
    code, report, said = evaluate(
        tmp_path, suite, "--policy", str(policy_file), "--arms", "big,small,routed", "--cases", cases,
        "--set", "max_tokens=40", "--set", "temperature=0",
    )  # fmt: skip
    assert code == 4, said  # so few cases show nothing, whatever the model answers
    assert report["complete"]
    assert [p for p in report["problems"] if p["state"] == "error"] == []
    for arm in report["arms"].values():
        assert arm["tokens"]["output"] > 0
        assert arm["engine_s"] > 0
    trials = read_finished(tmp_path / "run")
    assert len(trials) == 3 * len(cases.split(","))
    assert all([d["case"] for d in t.decisions] == [t.label] * len(t.decisions) and t.decisions for t in trials)
    assert {d["decision"]["kind"] for t in trials if t.arm == "routed" for d in t.decisions[:1]} <= {"score", "otherwise"}
    words: list[Any] = report["cautions"] + [report["verdict"]["why"]]
    if report["arms"]["big"]["pass_rate"] < 0.5:
        assert any("passes only" in w or "too little" in w for w in words)
