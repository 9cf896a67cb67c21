"""`switchyard calibrate`: sources, honesty, the diff, writing, a head of one's own."""

import json
import math
from random import Random

import pytest

from switchyard.cli.main import main
from switchyard.config.load import load_policy
from switchyard.evals.folder import Finished, Folder
from switchyard.routing.classify.scorer import load_scorer

from ..telemetry.records import record_of

POLICY = """\
version: 1   # mine
pools:
  small: {model: s, replicas: [http://127.0.0.1:8001]}
  big:   {model: b, replicas: [http://127.0.0.1:8002]}
routes:
  auto:
    classify:
      - {type: embedded}              # quick
      - {type: model, pool: small}    # slow
    choose:
      - {p_at_least: 0.6, use: small} # the threshold
      - {use: big}
"""
EASY = ("capital", "planet", "river", "colour", "animal")
HARD = ("integral", "theorem", "eigenvalue", "manifold", "lemma")


@pytest.fixture
def policy(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    return path


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def prompts(count, seed=1):
    """Questions of two kinds; the small model is mostly wrong about one of them."""
    random = Random(seed)
    for _ in range(count):
        hard = random.random() < 0.5
        word, other = random.choice(HARD if hard else EASY), random.choice(EASY)
        small = random.random() < (0.25 if hard else 0.95)
        text = f"What is the {word} of number {random.randrange(10_000)} in the list of a {other}?"
        yield {"prompt": text, "small_ok": small, "big_ok": random.random() < 0.95}


def outcomes(count, slope=1.0, seed=2):
    """Scores by a judge, with outcomes."""
    random = Random(seed)
    for i in range(count):
        x = random.gauss(0.3, 1.3)
        good = random.random() < 1 / (1 + math.exp(-slope * x))
        yield f"r{i}", 1 / (1 + math.exp(-x)), good


def run(capsys, *arguments):
    code = main(["calibrate", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


# ---- sources ----


def make_run(path, count=300, arms=("big", "small", "routed"), slope=1.0):
    with Folder(path) as folder:
        names = {"route": "auto", "big": "big", "small": "small"}
        folder.begin({"suite": "mine", "version": "2", "arms": list(arms), "cases": [], "margin": 0.05, "names": names})
        for name, p, good in outcomes(count, slope):
            decision = {"kind": "score", "p": p, "raw_p": p, "classifier": "model small"}
            states = {"big": "pass", "small": "pass" if good else "fail", "routed": "pass"}
            for arm in arms:
                decisions = [{"decision": {"kind": "held", "p": None}}, {"decision": decision}] if arm == "routed" else []
                folder.keep(Finished(arm, name, "c", 1, "l", "m", states[arm], 1.0, "", 0.0, 1.0, decisions), {})
    return path


def test_from_an_evals_run(policy, tmp_path, capsys):
    code, out, err = run(capsys, policy, make_run(tmp_path / "run"), "--share", 0.5)
    assert (code, err) == (0, "")
    assert "300 graded requests, 300 of them with a score" in out
    added = [line for line in out.splitlines() if line.startswith("+ ")]
    assert added[2:4] == ["+    evaluated:", "+      by: calibrate"]
    assert "{type: model, pool: small, scale: " in added[0]
    assert added[0].endswith("    # slow")
    assert "use: small} # the threshold" in added[1]
    assert policy.read_text() == POLICY
    assert "not written: --write does that" in out


def test_an_evals_run_without_the_arms_is_refused(policy, tmp_path, capsys):
    code, _, err = run(capsys, policy, make_run(tmp_path / "run", 3, ("big", "routed")))
    assert code == 2
    assert "no arm small" in err
    policy.write_text(POLICY.replace("auto:", "work:"))
    code, _, err = run(capsys, policy, tmp_path / "run")
    assert code == 2
    assert "the run was about the route auto, not work" in err
    code, _, err = run(capsys, policy, tmp_path)
    assert code == 2
    assert "holds no run" in err


def test_the_same_source_again_changes_nothing(policy, tmp_path, capsys):
    """Scores stand in records as the classifier gave them, too: what was written since is not worked in twice."""
    log, graded = make_log(tmp_path, slope=2.0)
    for source in ([make_run(tmp_path / "run", slope=2.0)], [log, "--outcomes", graded]):
        policy.write_text(POLICY)
        assert run(capsys, policy, *source, "--share", 0.5, "--write")[0] == 0
        written = policy.read_text()
        assert "scale: 1." in written or "scale: 2." in written
        code, out, _ = run(capsys, policy, *source, "--share", 0.5)
        assert (code, policy.read_text()) == (0, written)
        assert "the policy has these values already" in out


def make_log(tmp_path, count=300, slope=1.0, **changes):
    lines, graded = [], []
    for i, (name, p, good) in enumerate(outcomes(count, slope)):
        record = record_of(id=name, route="auto", case=f"case-{i}")
        scored = {"kind": "score", "p": p, "raw_p": p, "classifier": "model small"}
        record.decision = {"pool": "big", "reasons": ["x"], **scored, **changes}
        lines.append(record.as_line())
        graded.append({("id" if i % 2 else "case"): (name if i % 2 else f"case-{i}"), "small_ok": good, "big_ok": True})
    return write_lines(tmp_path / "log.jsonl", lines), write_lines(tmp_path / "graded.jsonl", graded)


def test_from_recorded_decisions(policy, tmp_path, capsys):
    log, graded = make_log(tmp_path)
    code, out, err = run(capsys, policy, log, "--outcomes", graded, "--margin", 20, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["scored"] == found["requests"] == 300
    assert found["classifiers"]["model small"]["fit"]["scale"] == pytest.approx(1, abs=0.3)
    assert found["step"]["interval"][0] > -0.2
    assert found["written"] is False
    assert found["diff"].startswith("--- ")


def test_decisions_that_no_score_made_have_none(policy, tmp_path, capsys):
    log, graded = make_log(tmp_path, kind="otherwise", p=None)
    code, out, _ = run(capsys, policy, log, "--outcomes", graded, "--share", 0.5)
    assert code == 4
    assert "300 graded requests, 0 of them with a score" in out


def test_outcomes_that_match_nothing_are_counted(policy, tmp_path, capsys):
    log, _ = make_log(tmp_path, 5)
    graded = write_lines(tmp_path / "g.jsonl", [{"id": "other", "small_ok": True, "big_ok": True}])
    code, _, err = run(capsys, policy, log, "--outcomes", graded, "--share", 0.5)
    assert code == 4
    assert "1 outcomes name no request of route auto" in err


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ({"prompt": "x", "small_ok": True}, "big_ok"),
        ({"prompt": "x", "small_ok": 1, "big_ok": True}, "bool"),
        ({"small_ok": True, "big_ok": True}, "give either prompt"),
        ({"prompt": "x", "request": {}, "small_ok": True, "big_ok": True}, "give either prompt"),
        ({"request": {}, "protocol": "smoke", "small_ok": True, "big_ok": True}, "smoke"),
        ("no object", "object"),
    ],
)
def test_a_bad_line_is_named(policy, tmp_path, capsys, line, why):
    good = {"prompt": "x", "small_ok": True, "big_ok": True}
    code, _, err = run(capsys, policy, write_lines(tmp_path / "p.jsonl", [good, line]))
    assert code == 2
    assert "p.jsonl:2: " in err
    assert why in err
    code, _, err = run(capsys, policy, make_log(tmp_path)[0])
    assert code == 2
    assert "for a decision log, --outcomes names" in err


def test_whole_requests_are_scored_like_their_text(policy, tmp_path, capsys):
    ask = "What is the capital of France?"
    labels = {"small_ok": True, "big_ok": True}
    source = write_lines(
        tmp_path / "p.jsonl",
        [
            {"prompt": ask, **labels},
            {"request": {"messages": [{"role": "user", "content": ask}]}, **labels},
            {"request": {"input": ask}, "protocol": "responses", **labels},
            {"request": {"messages": [{"role": "user", "content": "Refactor it"}]}, "protocol": "messages", **labels},
        ],
    )
    code, out, _ = run(capsys, policy, source, "--json")
    assert code == 4  # far too few
    assert (json.loads(out)["requests"], json.loads(out)["scored"]) == (4, 3)


# ---- honesty ----


def test_too_few_labels_propose_nothing_unless_forced(policy, tmp_path, capsys):
    source = write_lines(tmp_path / "p.jsonl", list(prompts(60)))
    code, out, _ = run(capsys, policy, source, "--share", 0.5, "--write")
    assert code == 4
    assert "nothing is proposed" in out
    assert "+++" not in out
    assert policy.read_text() == POLICY
    code, out, _ = run(capsys, policy, source, "--share", 0.5, "--write", "--force")
    assert code == 0
    assert "doubt: " in out
    assert policy.read_text() != POLICY


def test_scores_no_better_than_chance_propose_nothing(policy, tmp_path, capsys):
    lines, graded, random = [], [], Random(3)
    for name, p, _ in outcomes(500):
        record = record_of(id=name, route="auto")
        record.decision = {"pool": "big", "kind": "score", "reasons": ["x"], "p": p, "classifier": "model small"}
        lines.append(record.as_line())
        graded.append({"id": name, "small_ok": random.random() < 0.6, "big_ok": True})
    log, outcome = write_lines(tmp_path / "l.jsonl", lines), write_lines(tmp_path / "g.jsonl", graded)
    code, out, _ = run(capsys, policy, log, "--outcomes", outcome, "--share", 0.5, "--write")
    assert code == 4
    assert "no better than chance" in out
    assert policy.read_text() == POLICY


# ---- writing ----


def test_writing_changes_only_the_values(policy, tmp_path, capsys):
    policy.chmod(0o640)
    code, out, _ = run(capsys, policy, make_run(tmp_path / "run"), "--share", 0.5, "--write", "--fit", "none")
    assert code == 0
    assert f"written to {policy}" in out
    assert policy.stat().st_mode & 0o777 == 0o640
    route = load_policy(policy).routes["auto"]
    text = policy.read_text()
    at = text.index("    evaluated:\n")
    assert text[:at] == POLICY.replace("0.6,", f"{route.choose[0].p_at_least:g},")
    assert (route.evaluated.by, route.evaluated.suite, route.evaluated.cases) == ("calibrate", "mine 2", 300)
    assert route.evaluated.verdict == "inferior"  # at an even share this small pool loses far more than 5 points
    assert main(["check", str(policy)]) == 0
    assert "changed since" not in capsys.readouterr().out
    code, out, _ = run(capsys, policy, tmp_path / "run", "--share", 0.5, "--fit", "none")
    assert "the policy has these values already" in out
    assert sorted(p.name for p in tmp_path.iterdir()) == ["policy.yaml", "run"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--share", "2"], "from 0 to 1"),
        (["--margin", "0"], "between 0 and 100"),
        (["--write"], "give --share or --margin"),
        (["--chart", "x.png"], ".svg or .html"),
        (["--route", "nope"], "no route nope"),
        (["--share", "0.5", "--small", "nope"], "no entry with p_at_least for nope"),
    ],
)
def test_wrong_use(policy, tmp_path, capsys, arguments, why):
    source = write_lines(tmp_path / "p.jsonl", list(prompts(3)))
    code, _, err = run(capsys, policy, source, *arguments)
    assert code == 2
    assert why in err


def test_files_that_are_not_there(policy, capsys):
    code, _, err = run(capsys, policy, "/nowhere.jsonl")
    assert (code, "/nowhere.jsonl" in err) == (3, True)


def test_charts(policy, tmp_path, capsys):
    source = make_run(tmp_path / "run")
    for name, start in (("c.svg", "<svg xmlns"), ("c.html", "<!doctype html>")):
        assert run(capsys, policy, source, "--share", 0.5, "--chart", tmp_path / name)[0] == 0
        text = (tmp_path / name).read_text()
        assert text.startswith(start)
        assert "p_at_least" in text
        assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_a_chart_that_can_t_be_written_leaves_the_policy_as_it_is(policy, tmp_path, capsys):
    source = make_run(tmp_path / "run")
    code, _, err = run(capsys, policy, source, "--share", 0.5, "--write", "--chart", tmp_path / "nowhere" / "c.svg")
    assert code == 3
    assert "can't read or write" in err
    assert policy.read_text() == POLICY


def test_nothing_can_be_forced_without_a_score(policy, tmp_path, capsys):
    source = write_lines(tmp_path / "p.jsonl", [{"prompt": "x", "small_ok": True, "big_ok": True}])
    assert run(capsys, policy, source, "--share", 0.5, "--force")[0] == 4


# ---- a head of one's own ----


@pytest.mark.timeout(300)
def test_a_head_is_learned_written_and_used(policy, tmp_path, capsys):
    source = write_lines(tmp_path / "p.jsonl", list(prompts(700)))
    head = tmp_path / "head.json"
    code, out, err = run(capsys, policy, source, "--train", head, "--share", 0.5, "--write", "--json")
    assert (code, err) == (0, "")
    claimed = json.loads(out)
    block = load_policy(policy).routes["auto"].classify[0]
    assert (block.weights, block.scale, block.bias) == (str(head), 1, 0)
    assert load_scorer(str(head)).weights.scope == "own"
    assert main(["check", str(policy)]) == 0
    capsys.readouterr()
    # other prompts of the same kind: what was measured on unseen ones holds
    fresh = write_lines(tmp_path / "fresh.jsonl", list(prompts(700, seed=9)))
    code, out, _ = run(capsys, policy, fresh, "--json")
    found = json.loads(out)
    assert found["scored"] > 650
    assert found["curve"]["beats_chance"]
    assert found["curve"]["apgr"] == pytest.approx(claimed["curve"]["apgr"], abs=0.15)
    errors = [report["classifiers"]["embedded"]["calibration_error"]["before"] for report in (claimed, found)]
    assert errors[0] == pytest.approx(errors[1], abs=0.06)


def test_a_head_needs_texts_and_enough_of_them(policy, tmp_path, capsys):
    code, _, err = run(capsys, policy, make_run(tmp_path / "run"), "--train", tmp_path / "h.json")
    assert code == 2
    assert "0 of 300 graded requests have their prompt's text" in err
    assert not (tmp_path / "h.json").exists()


@pytest.mark.timeout(300)
def test_a_head_that_learned_nothing_is_not_written(policy, tmp_path, capsys):
    random = Random(4)
    lines = [{**line, "small_ok": random.random() < 0.6, "big_ok": random.random() < 0.8} for line in prompts(600)]
    code, out, _ = run(capsys, policy, write_lines(tmp_path / "p.jsonl", lines), "--train", tmp_path / "h.json", "--share", 0.5)
    assert code == 4
    assert "no better than chance" in out
    assert not (tmp_path / "h.json").exists()
