"""From an eval of scripted models to a policy that carries its verdict, and a threshold from the same run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from switchyard.cli.main import main
from switchyard.config.load import load_policy

from .engine import Engine
from .scripted_models import World
from .test_evals import engines, evaluate, p_of, policy_file, world  # noqa: F401  (fixtures)


@pytest.mark.timeout(150)
def test_an_evals_result_becomes_policy(
    world: World,  # noqa: F811
    engines: tuple[Engine, Engine, Engine],  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    everything = {c.id for c in world.suite.cases}
    engines[2].play(world.judge(p_of(world, everything - set(world.only_big))))
    file = policy_file(tmp_path, engines)
    arms = ("--arms", "big,small,routed")
    code, _, told = evaluate(tmp_path, "function-calls", "--policy", str(file), *arms, "--write-verdict")
    assert code == 0
    assert f"the verdict is written into {file}" in told
    verdict = load_policy(file).routes["auto"].evaluated
    assert verdict is not None
    assert (verdict.by, verdict.cases, verdict.verdict) == ("eval", 245, "non-inferior")
    assert main(["check", str(file)]) == 0
    assert "changed since" not in capsys.readouterr().out

    # The judge knows the cases apart: a threshold between its two groups keeps everything.
    assert main(["calibrate", str(file), str(tmp_path / "run"), "--margin", "2", "--fit", "none", "--json", "--write"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["requests"], found["scored"], found["written"]) == (245, 245, True)
    assert found["curve"]["beats_chance"]
    assert found["step"]["difference"] >= 0
    assert found["step"]["share"] <= 59 / 245
    changed = load_policy(file).routes["auto"]
    assert changed.choose[0].p_at_least == found["step"]["p_at_least"]
    assert changed.evaluated is not None
    assert changed.evaluated.by == "calibrate"
    assert main(["check", str(file)]) == 0
    assert "changed since" not in capsys.readouterr().out
