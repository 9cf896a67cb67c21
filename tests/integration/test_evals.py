"""`switchyard eval` as a process, through a real gateway, against models whose success is known: the verdict is, too."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from redis_server import RedisServer

from switchyard.cli.main import main
from switchyard.evals.folder import read_finished

from .client import eventually
from .engine import RESET, DeadPort, Engine, reply
from .gateway import Serve, policy, pool
from .scripted_models import World, completion
from .test_workers import serve

Json = dict[str, Any]


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.fixture
def engines(world: World) -> Iterator[tuple[Engine, Engine, Engine]]:
    """The big model, the small one and the judge."""
    with Engine("acme/big") as big, Engine("acme/small") as small, Engine("acme/judge") as judge:
        big.play(world.model(world.big))
        small.play(world.model(world.small))
        yield big, small, judge


def policy_file(folder: Path, engines: tuple[Engine, Engine, Engine], threshold: float = 0.5, **server: Any) -> Path:
    """A policy with a judge between small and big."""
    big, small, judge = engines
    question = {"type": "model", "pool": "judge", "deadline_ms": 10_000, "concurrency": 64}
    auto = {"classify": [question], "choose": [{"p_at_least": threshold, "use": "small"}, {"use": "big"}]}
    written = policy({"small": pool(small), "big": pool(big), "judge": pool(judge)}, {"auto": auto}, **server)
    file = folder / "policy.yaml"
    file.write_text(json.dumps(written))
    return file


def evaluate(folder: Path, *arguments: str, environment: dict[str, str] | None = None) -> tuple[int, Json, str]:
    """Exit code, report and error output of an eval in a folder of its own."""
    ended = subprocess.run(
        [sys.executable, "-m", "switchyard", "eval", *arguments, "--out", str(folder / "run"), "--json"],
        capture_output=True, text=True, timeout=120, cwd=folder, env=os.environ | (environment or {}),
    )  # fmt: skip
    assert "Traceback" not in ended.stderr
    return ended.returncode, json.loads(ended.stdout) if ended.stdout else {}, ended.stderr


def p_of(world: World, small_ones: set[str]) -> dict[str, float]:
    """Scores of a judge that sends these cases to the small pool, with some spread."""
    draw = Random(3)
    return {c.id: draw.uniform(0.6, 0.99) if c.id in small_ones else draw.uniform(0.01, 0.4) for c in world.suite.cases}


# ---- the four known ends ----


@pytest.mark.timeout(150)
def test_non_inferior(world: World, engines: tuple[Engine, Engine, Engine], tmp_path: Path) -> None:
    everything = {c.id for c in world.suite.cases}
    engines[2].play(world.judge(p_of(world, everything - set(world.only_big))))
    code, report, _ = evaluate(tmp_path, "function-calls", "--policy", str(policy_file(tmp_path, engines)))
    assert (code, report["verdict"]["word"]) == (0, "non-inferior")
    rates = {name: arm["pass_rate"] for name, arm in report["arms"].items()}
    assert rates["big"] == rates["big-again"] == 223 / 245
    assert (rates["small"], rates["routed"]) == (172 / 245, 231 / 245)
    assert report["arms"]["routed"]["shares"] == pytest.approx({"big": 59 / 245, "small": 186 / 245})
    assert report["arms"]["random"]["shares"] == pytest.approx({"big": 59 / 245, "small": 186 / 245})
    assert sorted(report["comparison"]["won"]) == sorted(world.only_small)
    assert report["comparison"]["lost"] == []
    assert report["noise_floor"]["discordance"] == 0
    assert report["advantage"]["shown"]
    assert {p["quality"] for p in report["curve"]["points"] if p["share"] == pytest.approx(59 / 245)} == {231 / 245}
    assert report["complete"]
    # Every trial is joined with exactly its own decisions.
    finished = read_finished(tmp_path / "run")
    assert len(finished) == 5 * 245
    assert all([d["case"] for d in t.decisions] == [t.label] for t in finished)
    log = [json.loads(line) for line in (tmp_path / "run" / "decisions.jsonl").read_bytes().splitlines()]
    asked = [r["id"] for r in log if not r["case"].endswith("/check")]
    assert sorted(asked) == sorted(d["id"] for t in finished for d in t.decisions)
    for name in ("report.md", "report.html"):
        assert "non-inferior" in (tmp_path / "run" / name).read_text().lower()


@pytest.mark.timeout(150)
def test_inferior(world: World, engines: tuple[Engine, Engine, Engine], tmp_path: Path) -> None:
    engines[2].play(world.judge(p_of(world, {c.id for c in world.suite.cases})))
    code, report, _ = evaluate(
        tmp_path, "function-calls", "--policy", str(policy_file(tmp_path, engines)), "--arms", "big,routed"
    )
    assert (code, report["verdict"]["word"]) == (1, "inferior")
    assert report["comparison"]["difference_points"] == pytest.approx(-100 * 51 / 245)
    assert sorted(report["comparison"]["lost"]) == sorted(world.only_big)
    assert report["comparison"]["regressed"]


@pytest.mark.timeout(150)
def test_inconclusive(world: World, engines: tuple[Engine, Engine, Engine], tmp_path: Path) -> None:
    everything = {c.id for c in world.suite.cases}
    engines[2].play(world.judge(p_of(world, everything - set(world.only_big[20:]))))
    code, report, _ = evaluate(
        tmp_path, "function-calls", "--policy", str(policy_file(tmp_path, engines)), "--arms", "big,routed"
    )
    assert (code, report["verdict"]["word"]) == (4, "inconclusive")
    assert report["comparison"]["difference_points"] == pytest.approx(-100 * 12 / 245)
    assert report["verdict"]["settled_by"] > 245


@pytest.mark.timeout(150)
def test_a_classifier_no_better_than_chance(world: World, engines: tuple[Engine, Engine, Engine], tmp_path: Path) -> None:
    draw = Random(5)
    engines[2].play(world.judge({c.id: draw.random() for c in world.suite.cases}))
    _, report, _ = evaluate(tmp_path, "function-calls", "--policy", str(policy_file(tmp_path, engines)))
    assert not report["advantage"]["shown"]
    assert 0.4 < report["advantage"]["share"] < 0.6
    low, high = report["against_random"]["interval_points"]
    assert low < 0 < high
    markdown = (tmp_path / "run" / "report.md").read_text()
    assert "NOT shown to be better than chance" in markdown


def test_several_trials(world: World, engines: tuple[Engine, Engine, Engine], tmp_path: Path) -> None:
    engines[2].play(world.judge(p_of(world, set(world.small))))
    code, report, _ = evaluate(
        tmp_path, "function-calls", "--policy", str(policy_file(tmp_path, engines)), "--arms", "big,routed,random",
        "--cases", "irrelevance_1?", "--trials", "3", "--margin", "20",
    )  # fmt: skip
    assert code in {0, 4}
    assert report["comparison"]["method"] == "bootstrap over cases, and Tango's interval"
    trials = read_finished(tmp_path / "run")
    assert Counter(t.trial for t in trials) == {1: 30, 2: 30, 3: 30}
    assert len({t.label for t in trials}) == 90
    routed, drawn = ([t for t in trials if t.arm == arm] for arm in ("routed", "random"))
    assert sum(t.share("big") for t in routed) == sum(t.share("big") for t in drawn)


# ---- the loop: what an eval learns becomes a threshold, and the policy carries its verdict ----


@pytest.mark.timeout(150)
def test_from_a_run_to_a_threshold_to_a_verdict(
    world: World, engines: tuple[Engine, Engine, Engine], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engines[2].play(world.judge(p_of(world, set(world.small))))
    policy_file(tmp_path, engines, threshold=0.995)  # all scored requests stay on big: safe, and dear
    file = tmp_path / "policy.yaml"
    written = json.loads(file.read_text())
    written["routes"] = "ROUTES"
    routes = """
  auto:
    classify:
      - {type: model, pool: judge, deadline_ms: 10000, concurrency: 64}
    choose:
      - {p_at_least: 0.995, use: small}  # far too careful
      - {use: big}
"""
    file.write_text("".join(f"{k}: {json.dumps(v)}\n" for k, v in written.items()).replace(' "ROUTES"', routes.rstrip("\n")))
    given = ["function-calls", "--policy", str(file)]
    code, report, said = evaluate(tmp_path, *given, "--arms", "big,small,routed")
    assert (code, report["arms"]["routed"]["big_share"]) == (0, 1), said
    assert not any("forecast again" in c for c in report["cautions"])

    assert main(["calibrate", str(file), str(tmp_path / "run"), "--margin", "5", "--write", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["written"]
    assert found["step"]["share"] < 0.5
    assert "# far too careful" in file.read_text()
    assert main(["check", str(file)]) == 0
    assert "changed since" not in capsys.readouterr().out

    shutil.rmtree(tmp_path / "run")
    code, report, said = evaluate(tmp_path, *given, "--arms", "big,routed", "--write-verdict")
    assert (code, report["verdict"]["word"]) == (0, "non-inferior"), said
    assert report["arms"]["routed"]["big_share"] == pytest.approx(found["step"]["share"]), "the forecast came true"
    assert any("forecast again" in c for c in report["cautions"]), "on the cases that it was chosen on"
    assert "the verdict is not written" in said
    text = file.read_text()
    assert "by: calibrate" in text, "so that the next run knows it, too"

    file.write_text(text.replace(f"p_at_least: {found['step']['p_at_least']:g}", "p_at_least: 0.1"))
    assert main(["check", str(file)]) == 0
    assert "rules or thresholds changed since the verdict non-inferior" in capsys.readouterr().out
    shutil.rmtree(tmp_path / "run")
    code, report, said = evaluate(tmp_path, *given, "--arms", "big,routed", "--write-verdict")
    assert not any("forecast again" in c for c in report["cautions"]), "these thresholds are somebody's own"
    assert "by: eval" in file.read_text()


# ---- ended runs ----


@pytest.mark.timeout(150)
def test_a_killed_run_goes_on(world: World, engines: tuple[Engine, Engine, Engine], tmp_path: Path) -> None:
    engines[2].play(world.judge(p_of(world, set(world.small))))
    given = ["function-calls", "--policy", str(policy_file(tmp_path, engines)), "--arms", "big,routed", "--cases", "simple_*"]
    run = tmp_path / "run"
    kills = 0
    while kills < 3:
        more = ["--resume"] if kills else []
        process = subprocess.Popen(
            [sys.executable, "-m", "switchyard", "eval", *given, *more, "--out", str(run)],
            stderr=subprocess.DEVNULL,
            cwd=tmp_path,
        )
        before = lines(run)
        while lines(run) < before + 20 and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
    assert 20 <= lines(run) < 170
    with (run / "cases.jsonl").open("ab") as file:
        file.write(b'{"arm": "routed", "case": "simple_8')  # as a crash of the machine would leave it
    code, report, _ = evaluate(tmp_path, *given, "--resume")
    assert (code, report["complete"]) == (0, True)
    finished = read_finished(run)
    assert Counter(t.key for t in finished) == Counter((arm, f"simple_{i}", 1) for arm in ("big", "routed") for i in range(85))
    assert all([d["case"] for d in t.decisions] == [t.label] for t in finished)


def _heed_interrupts() -> None:
    """A shell lets what it runs in the background ignore them, and tests may run so."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_ended_run_leaves_no_gateway_behind(
    world: World, engines: tuple[Engine, Engine, Engine], tmp_path: Path, number: signal.Signals
) -> None:
    engines[2].play(world.judge(p_of(world, set(world.small))))
    run = tmp_path / "run"
    command = [sys.executable, "-m", "switchyard", "eval", "function-calls", "--policy", str(policy_file(tmp_path, engines))]
    process = subprocess.Popen(
        [*command, "--out", str(run)], stderr=subprocess.PIPE, cwd=tmp_path, text=True, preexec_fn=_heed_interrupts
    )
    eventually(lambda: lines(run) > 5, 30)
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert process.returncode == (130 if number == signal.SIGINT else -9)
    if number == signal.SIGINT:
        assert "--resume goes on" in said
    found = re.search(r"listens on http://127\.0\.0\.1:(\d+)", (run / "gateway.log").read_text())
    assert found

    def is_gone() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", int(found[1]))) != 0

    eventually(is_gone, 15)


def lines(run: Path) -> int:
    """Finished trials so far."""
    return (run / "cases.jsonl").read_bytes().count(b"\n") if (run / "cases.jsonl").exists() else 0


def test_resuming_something_else_is_refused(world: World, engines: tuple[Engine, Engine, Engine], tmp_path: Path) -> None:
    given = ["--policy", str(policy_file(tmp_path, engines)), "--arms", "big"]
    assert evaluate(tmp_path, "function-calls", *given, "--cases", "simple_0", "--resume")[0] == 2
    assert evaluate(tmp_path, "function-calls", *given, "--cases", "simple_0")[0] == 4
    refused = [
        (["--cases", "simple_1", "--resume"], "cases"),
        (["--cases", "simple_0", "--trials", "2", "--resume"], "trials"),
        (["--cases", "simple_0"], "--resume"),
    ]
    for more, word in refused:
        code, _, said = evaluate(tmp_path, "function-calls", *given, *more)
        assert code == 2
        assert word in said


def test_a_run_is_about_one_gateway_and_one_policy(
    world: World, engines: tuple[Engine, Engine, Engine], tmp_path: Path, start: Any
) -> None:
    engines[2].play(world.judge(p_of(world, set(world.small))))
    written = json.loads(policy_file(tmp_path, engines).read_text())
    written["routes"] = {"work": written["routes"]["auto"] | {"aliases": ["gpt-4"]}}  # the alias is no second route
    (tmp_path / "serve").mkdir()
    served = start(Serve(written, tmp_path / "serve"))
    served.wait_ready()
    url = f"http://127.0.0.1:{served.port}"
    given = ["function-calls", "--arms", "big,routed", "--cases", "simple_0,simple_1"]
    code, report, said = evaluate(tmp_path, *given, "--url", f"{url}/v1/")
    assert code == 4, said
    assert report["run"]["gateway"] == url
    assert evaluate(tmp_path, *given, "--url", url, "--resume")[0] == 4

    code, _, said = evaluate(tmp_path, *given, "--url", url.replace("127.0.0.1", "localhost"), "--resume")
    assert code == 2
    assert "holds a run with another gateway" in said

    written["routes"]["work"]["choose"][0]["p_at_least"] = 0.7
    httpx.post(f"{url}/admin/policy", content=json.dumps(written)).raise_for_status()
    code, _, said = evaluate(tmp_path, *given, "--url", url, "--resume")
    assert code == 2
    assert "under another policy, rules or thresholds changed since" in said


def test_a_policy_that_changes_under_way_is_no_result(
    world: World, engines: tuple[Engine, Engine, Engine], tmp_path: Path, start: Any
) -> None:
    written = json.loads(policy_file(tmp_path, engines).read_text())
    (tmp_path / "serve").mkdir()
    served = start(Serve(written, tmp_path / "serve"))
    served.wait_ready()
    url = f"http://127.0.0.1:{served.port}"
    plain, asked = world.model(world.big), iter(range(1_000))
    written["pools"]["big"]["context"] = 100_000

    def then_another(request: Any) -> Any:
        if next(asked) == 5:
            httpx.post(f"{url}/admin/policy", content=json.dumps(written)).raise_for_status()
        return plain(request)

    engines[0].play(then_another)
    code, _, said = evaluate(tmp_path, "function-calls", "--url", url, "--arms", "big", "--cases", "simple_?")
    assert code == 3
    assert "pools of the gateway's policy changed while the run went on" in said
    assert not (tmp_path / "run" / "report.json").exists()
    given = ["function-calls", "--url", url, "--arms", "big", "--cases", "simple_?"]
    code, _, said = evaluate(tmp_path, *given, "--resume")
    assert code == 2
    assert "holds no run to resume" in said
    code, report, said = evaluate(tmp_path, *given)
    assert (code, report["complete"], report["finished"]) == (4, True, 10), said


# ---- trouble ----


def test_a_reader_that_stops_reading_does_not_change_the_verdict(
    world: World, engines: tuple[Engine, Engine, Engine], tmp_path: Path
) -> None:
    given = ["function-calls", "--policy", str(policy_file(tmp_path, engines)), "--arms", "big", "--cases", "simple_0"]
    command = [sys.executable, "-m", "switchyard", "eval", *given, "--out", str(tmp_path / "run"), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(60) == 4


def test_failures_of_the_infrastructure_are_failures(
    world: World, engines: tuple[Engine, Engine, Engine], tmp_path: Path
) -> None:
    big, _, judge = engines
    judge.play(world.judge(p_of(world, set(world.only_small))))  # nearly everything stays on big
    broken = {f"simple_{i}" for i in range(6)}

    def flaky(request: Any) -> Any:
        case = world.case_in(request.json()["messages"][-1]["content"])
        if case in broken:
            return [RESET]
        return reply(completion(world.suite.right_answer(case) if case else []))

    big.play(flaky)
    code, report, _ = evaluate(
        tmp_path, "function-calls", "--policy", str(policy_file(tmp_path, engines)), "--arms", "big,routed",
        "--cases", "simple_1?,simple_[0-9]",
    )  # fmt: skip
    # Both arms lose the same cases: equal, but the baseline's failures could have been passes, so nothing is shown.
    assert code == 4
    assert report["arms"]["big"]["states"]["error"] == 6
    assert {p["case"] for p in report["problems"]} == broken
    assert report["arms"]["big"]["pass_rate"] == 14 / 20


def test_refusals_of_the_gateway_are_joined_too(world: World, engines: tuple[Engine, Engine, Engine], tmp_path: Path) -> None:
    too_long = reply({"error": {"message": "too long", "type": "invalid_request_error"}}, 400)
    engines[0].play(lambda request: too_long if "tools" in request.json() else reply(completion([])))
    written = json.loads(policy_file(tmp_path, engines).read_text())
    written["pools"]["small"]["accepts"] = []  # no tools: the gateway itself refuses
    (tmp_path / "policy.yaml").write_text(json.dumps(written))
    code, report, said = evaluate(
        tmp_path, "function-calls", "--policy", str(tmp_path / "policy.yaml"), "--arms", "big,small", "--cases", "simple_0"
    )  # fmt: skip
    assert code == 4, said
    trials = {t.arm: t for t in read_finished(tmp_path / "run")}
    assert [t.state for t in trials.values()] == ["error", "error"]
    assert "too long" in trials["big"].detail
    assert [(d["status"], d["error"]) for d in trials["small"].decisions] == [(400, "no_capable_pool")]
    assert report["arms"]["small"]["requests"] == 0


def test_a_gateway_that_ends_under_way_is_no_result(
    world: World, engines: tuple[Engine, Engine, Engine], tmp_path: Path, start: Any
) -> None:
    (tmp_path / "serve").mkdir()
    served = start(Serve(json.loads(policy_file(tmp_path, engines).read_text()), tmp_path / "serve"))
    served.wait_ready()
    answered = iter(range(1_000))

    def then_gone(request: Any) -> Any:
        if next(answered) == 10:
            served.process.kill()
        case = world.case_in(request.json()["messages"][-1]["content"])
        return reply(completion(world.suite.right_answer(case) if case else []))

    engines[0].play(then_gone)
    given = ["function-calls", "--url", f"http://127.0.0.1:{served.port}", "--arms", "big", "--cases", "simple_*"]
    code, _, said = evaluate(tmp_path, *given)
    assert code == 3
    assert "--resume" in said
    finished = read_finished(tmp_path / "run")
    assert 0 < len(finished) <= 11
    assert {t.state for t in finished} == {"pass"}, "what the gateway's end cut off is no failure of a model"


def test_a_pool_whose_engine_is_down(world: World, engines: tuple[Engine, Engine, Engine], tmp_path: Path) -> None:
    given = ["function-calls", "--policy", str(policy_file(tmp_path, engines)), "--arms", "big,small", "--cases", "simple_0"]
    engines[1].shut()
    code, _, said = evaluate(tmp_path, *given)
    assert code == 3
    assert "small does not answer: HTTP 502" in said
    assert read_finished(tmp_path / "run") == [], "no case has failed for it"
    engines[1].listen()
    code, report, said = evaluate(tmp_path, *given, "--resume")
    assert (code, report["complete"]) == (4, True), said


def test_a_gateway_that_is_not_there(world: World, engines: tuple[Engine, Engine, Engine], tmp_path: Path) -> None:
    with DeadPort() as nobody:
        code, _, said = evaluate(tmp_path, "function-calls", "--url", nobody.url, "--arms", "big", "--cases", "simple_0")
    assert code == 3
    assert "not ready" in said


def test_a_gateway_of_several_workers(world: World, engines: tuple[Engine, Engine, Engine], tmp_path: Path, start: Any) -> None:
    with RedisServer() as redis:
        written = json.loads(policy_file(tmp_path, engines, state=redis.url, state_budget_ms=250).read_text())
        served = serve(start, written, tmp_path / "serve")
        given = ["function-calls", "--url", f"http://127.0.0.1:{served.port}", "--arms", "big", "--cases", "simple_1?"]
        code, report, said = evaluate(tmp_path, *given)
        assert (code, report["complete"]) == (4, True), said
        trials = read_finished(tmp_path / "run")
        assert [[d["case"] for d in t.decisions] for t in trials] == [[t.label] for t in trials], "whichever worker has them"
        served.stop()


def test_a_gateway_with_keys(world: World, engines: tuple[Engine, Engine, Engine], tmp_path: Path, start: Any) -> None:
    written = json.loads(policy_file(tmp_path, engines, api_keys_env="KEYS", admin_key_env="ADMIN").read_text())
    (tmp_path / "serve").mkdir()
    served = start(Serve(written, tmp_path / "serve", environment={"KEYS": "sk-1,sk-2", "ADMIN": "sk-admin"}))
    served.wait_ready()
    given = ["function-calls", "--url", f"http://127.0.0.1:{served.port}", "--arms", "big", "--cases", "simple_0"]
    code, _, said = evaluate(tmp_path, *given)
    assert code == 3
    assert "--api-key-env" in said
    code, _, said = evaluate(tmp_path, *given, environment={"SWITCHYARD_API_KEY": "sk-1"})
    assert code == 3
    assert "--admin-key-env" in said
    assert not (tmp_path / "run").exists(), "it is asked for before anything has run"
    keys = {"SWITCHYARD_API_KEY": "sk-1", "SWITCHYARD_ADMIN_KEY": "sk-admin"}
    code, report, said = evaluate(tmp_path, *given, environment=keys)
    assert code == 4, said
    assert report["arms"]["big"]["pass_rate"] == 1
    kept = b"".join(p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file())
    assert b"sk-1" not in kept
    assert b"sk-admin" not in kept
