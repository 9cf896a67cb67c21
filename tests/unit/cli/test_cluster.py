"""`switchyard cluster check`, `plan` and `render`: exit codes, JSON, files."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from switchyard.cli.cluster.render import TARGETS
from switchyard.cli.main import main
from switchyard.cluster.render.bundle import MAKERS
from unit.cluster.make import DEPLOY, EXAMPLES, SPARKS

REFERENCE = str(DEPLOY / "cluster.yaml")


@pytest.fixture
def sparks(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.yaml"
    path.write_text(SPARKS)
    return path


def test_check_a_good_cluster(sparks, capsys):
    assert main(["cluster", "check", str(sparks)]) == 0
    said = capsys.readouterr().out
    assert "big, TP2 over 2 nodes: 126.0 GiB / 2 + 20.0 GiB KV + 6 GiB = 89.0 GiB a GPU" in said
    assert said.endswith(f"{sparks} is good\n")


def test_check_says_all_problems_with_their_lines(sparks, capsys):
    sparks.write_text(SPARKS.replace("size_gib: 126", "size_gib: 160").replace("kind: switch", "kind: none"))
    assert main(["cluster", "check", str(sparks)]) == 1
    said = capsys.readouterr().out
    assert f"{sparks}:5:5: nodes[0]: big-1 106.0 = 106.0 GiB" in said
    assert f"{sparks}:14:5: pools.big.nodes_per_replica: 2 nodes need a network" in said
    assert "does not fit, 8.6 GiB short" in said


def test_check_as_json(sparks, capsys):
    assert main(["cluster", "check", str(sparks), "--json"]) == 0
    good = json.loads(capsys.readouterr().out)
    assert good["good"] is True
    assert good["memory"][0]["kv_gib"] == 20
    sparks.write_text(SPARKS.replace("replicas: 1", "replica: 1"))
    assert main(["cluster", "check", str(sparks), "--json"]) == 1
    bad = json.loads(capsys.readouterr().out)
    assert [p["key"] for p in bad["problems"]] == ["pools.big.replicas", "pools.big.replica"]
    assert bad["memory"] == []


def test_check_reads_the_policy_that_is_named(sparks, capsys):
    sparks.write_text(SPARKS.replace("pools:\n", "gateway: {policy: policy.yaml}\npools:\n"))
    assert main(["cluster", "check", str(sparks)]) == 3
    assert f"policy.yaml: No such file or directory (gateway.policy of {sparks}" in capsys.readouterr().err
    (sparks.parent / "policy.yaml").write_text("version: 1\n")
    assert main(["cluster", "check", str(sparks)]) == 1
    assert "policy.yaml:1:1: pools: the key pools is missing" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["check", "plan", "render --target pools --out x"])
def test_a_file_that_is_not_there(command, tmp_path, capsys):
    name, *flags = command.split()
    assert main(["cluster", name, str(tmp_path / "no.yaml"), *flags]) == 3
    assert f"switchyard cluster {name}: can't read" in capsys.readouterr().err


def test_targets():
    assert tuple(MAKERS) == TARGETS


def test_wrong_use(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["cluster"])
    assert caught.value.code == 2
    with pytest.raises(SystemExit) as caught:
        main(["cluster", "render", REFERENCE, "--out", "x", "--target", "helm"])
    assert caught.value.code == 2
    assert main(["cluster", "plan", REFERENCE, "--mix", "2"]) == 2
    assert main(["cluster", "plan", REFERENCE, "--prompt-tokens", "0"]) == 2
    assert "--mix: shares are between 0 and 1" in capsys.readouterr().err


def test_plan_for_people(capsys):
    assert main(["cluster", "plan", REFERENCE, "--mix", "0.25"]) == 0
    said = capsys.readouterr().out
    assert "  s1        [#################=====++  |      ]  89.0 of 97.4 GiB   qwen-1" in said
    assert "  3.00 times as many requests, as long as qwen is full first. That rests on:" in said
    assert "a minicpm replica doing at least 4.50 times the requests of a qwen replica" in said
    assert "with 10% of the other requests escalating: 2.31 times" in said
    assert "with one qwen replica lent: 2.00 times" in said
    assert "BUT by the rates above, of which some are only scaled, minicpm is full first: 2.02 requests/s, 0.78 times" in said
    assert "2 x qwen + 4 x minicpm: minicpm is full first: 4.03 requests/s, 1.56 times" in said


def test_plan_says_when_routing_is_slower(capsys):
    assert main(["cluster", "plan", REFERENCE, "--mix", "0.8"]) == 0
    assert "0.94 times as many requests: SLOWER than without routing" in capsys.readouterr().out


@pytest.mark.parametrize("name", EXAMPLES)
def test_plan_as_json_for_every_example(name, capsys):
    assert main(["cluster", "plan", str(DEPLOY / f"{name}.yaml"), "--mix", "0.25", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["unplaced"] == {}
    assert all(max(node["gpus"]) <= node["usable_gib"] for node in plan["nodes"])
    assert {p["origin"] for p in plan["pools"]} <= {"measured", "fitted", "scaled", None}
    assert plan["routed"]["shares"]


def test_plan_draws(tmp_path, capsys):
    picture = tmp_path / "plan.svg"
    assert main(["cluster", "plan", REFERENCE, "--svg", str(picture)]) == 0
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")
    assert main(["cluster", "plan", REFERENCE, "--svg", str(tmp_path)]) == 3
    assert "can't write" in capsys.readouterr().err


def test_plan_of_what_has_no_place(sparks, capsys):
    sparks.write_text(SPARKS.replace("    placement: [[s1, s2]]\n", "").replace("size_gib: 126", "size_gib: 300"))
    assert main(["cluster", "plan", str(sparks)]) == 1
    assert "big: no place. big needs 1 x 2 nodes; 0 of 4 active nodes have room" in capsys.readouterr().out


@pytest.mark.parametrize("target", ["pools", "compose", "systemd", "leaderworkerset", "sparkrun"])
def test_render_twice_changes_nothing(target, tmp_path, capsys):
    render = ["cluster", "render", REFERENCE, "--target", target, "--out", str(tmp_path / "out")]
    assert main([*render, "--check"]) == 1
    assert "is missing" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
    assert main(render) == 0
    assert "wrote" in capsys.readouterr().out
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert main(render) == 0
    said = capsys.readouterr().out
    assert "wrote" not in said
    assert " files, 0 changed; next:" in said
    assert before == {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in before}
    assert main([*render, "--check"]) == 0


def test_render_says_what_differs_and_what_is_left_over(sparks, tmp_path, capsys):
    out = tmp_path / "out"
    render = ["cluster", "render", str(sparks), "--target", "compose", "--out", str(out)]
    assert main(render) == 0
    (out / "s1" / "compose.yaml").write_text("edited")
    (out / "s1" / ".env").write_text("SWITCHYARD_API_KEYS=mine\n")  # theirs: it stands beside the example
    (out / "s1" / "old.yaml").write_text("from an earlier render")
    capsys.readouterr()
    assert main([*render, "--check"]) == 1
    said = capsys.readouterr().out
    assert said.splitlines() == [f"{out}/s1/compose.yaml is stale", f"{out}/s1/old.yaml is not from this render"]
    assert main(render) == 0
    caught = capsys.readouterr()
    assert f"wrote {out}/s1/compose.yaml\n" in caught.out
    assert f"{out}/s1/old.yaml is not from this render: remove it" in caught.err
    assert (out / "s1" / ".env").read_text() == "SWITCHYARD_API_KEYS=mine\n"


def test_render_refuses_a_cluster_with_errors(sparks, tmp_path, capsys):
    sparks.write_text(SPARKS.replace("size_gib: 126", "size_gib: 160"))
    assert main(["cluster", "render", str(sparks), "--target", "compose", "--out", str(tmp_path / "out")]) == 1
    assert "has errors: nothing was rendered" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_render_where_nothing_can_be_written(sparks, tmp_path, capsys):
    (tmp_path / "out").write_text("a file")
    assert main(["cluster", "render", str(sparks), "--target", "pools", "--out", str(tmp_path / "out")]) == 3
    assert "can't write" in capsys.readouterr().err


def test_schemas(capsys):
    assert main(["schema", "cluster"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "Switchyard cluster"
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "Switchyard policy"
