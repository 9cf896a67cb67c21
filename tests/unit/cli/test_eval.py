"""`switchyard eval`: what it refuses before anything is started. What it does is in tests/integration/test_evals.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from switchyard.cli.eval import EXIT_CODES, _weights
from switchyard.cli.main import main
from switchyard.config.load import load_policy

ROOT = Path(__file__).parents[3]
POLICY = str(ROOT / "policies" / "two-endpoints.yaml")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["function-calls"], "say either --policy FILE or --url URL"),
        (["function-calls", "--policy", POLICY, "--url", "http://127.0.0.1:1"], "say either"),
        (["function-calls", "--url", "127.0.0.1:4000"], "like http://127.0.0.1:4000"),
        (["bfcl", "--policy", POLICY], "there is no suite 'bfcl'"),
        (["function-calls:/nowhere", "--policy", POLICY], "there is no /nowhere"),
        (["prompts", "--policy", POLICY], "prompts:FILE.jsonl"),
        (["function-calls", "--policy", POLICY, "--cases", "simple_999"], "has no case 'simple_999'"),
        (["function-calls", "--policy", POLICY, "--arms", "big,huge"], "there is no arm 'huge'"),
        (["function-calls", "--policy", POLICY, "--margin", "0"], "percentage points between 0 and 100"),
        (["function-calls", "--policy", POLICY, "--trials", "0"], "at least 1"),
        (["function-calls", "--policy", POLICY, "--set", "temperature"], "KEY=JSON"),
        (["function-calls", "--policy", POLICY, "--set", "model=1"], "not model"),
        (["function-calls", "--policy", POLICY, "--set", "stop=END"], "a text needs quotes"),
        (["function-calls", "--policy", POLICY, "--weight", "big=0"], "a number above 0"),
        (["function-calls", "--policy", POLICY, "--set", "temperature=NaN"], "NaN is no JSON"),
        (["function-calls", "--policy", POLICY, "--weight", "huge=2"], "--weight huge: there is no pool of this name"),
        (["function-calls", "--policy", POLICY, "--route", "other"], "there is no route 'other'"),
        (["function-calls", "--policy", POLICY, "--big", "huge"], "there is no pool 'huge'"),
        (["function-calls", "--url", "http://"], "like http://127.0.0.1:4000"),
        (["function-calls", "--policy", POLICY, "--resume"], "holds no run to resume"),
    ],
)
def test_wrong_use(
    arguments: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["eval", *arguments]) == 2
    said = capsys.readouterr().err
    assert why in said
    assert said.startswith("switchyard eval: ")
    assert list(tmp_path.iterdir()) == [], "what is refused leaves nothing behind"


def test_a_bad_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.yaml").write_text("version: 1\npools: {}\n")
    assert main(["eval", "function-calls", "--policy", str(tmp_path / "p.yaml")]) == 3, "1 would mean: inferior"
    assert "p.yaml:2" in capsys.readouterr().err


def test_a_replica_over_two_nodes_costs_two() -> None:
    assert _weights(load_policy(str(ROOT / "policies" / "spark-8.yaml"))) == {"qwen": 2.0, "minicpm": 1.0}
    assert _weights(None) == {}


def test_a_folder_that_was_there_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "function-calls", "--policy", POLICY, "--resume", "--out", str(tmp_path)]) == 2
    assert tmp_path.is_dir()


def test_exit_codes() -> None:
    assert EXIT_CODES == {"non-inferior": 0, "inferior": 1, "inconclusive": 4}


def test_a_folder_of_another_format_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"format": 0}))
    assert main(["eval", "function-calls", "--policy", POLICY, "--out", str(tmp_path)]) == 2
    assert "--resume goes on with it, --out begins another" in capsys.readouterr().err
