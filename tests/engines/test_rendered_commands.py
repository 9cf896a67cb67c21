"""Every command line that any target of any example renders is read by vLLM's own parser, and means what was planned.

Run by `make test-vllm`, in the environment that `vllm_env` builds.
"""

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from unit.cluster.make import EXAMPLES
from unit.cluster.render.sources import example_source
from vllm_env import ensure

from switchyard.cluster.render.bundle import render

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
PARSER = Path(__file__).parent / "parse_serve.py"


def read_all(lines: list[list[str]]) -> list[dict[str, Any]]:
    """What vLLM makes of command lines that begin with `vllm serve`."""
    assert all(line[:2] == ["vllm", "serve"] for line in lines)
    asked = subprocess.run(
        [str(ensure().python), str(PARSER)],
        input=json.dumps([line[2:] for line in lines]),
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[dict[str, Any]] = json.loads(asked.stdout.splitlines()[-1])
    return found


def compose_lines(name: str) -> list[list[str]]:
    source = example_source(name)
    found = []
    for path, text in render("compose", source).items():
        if path.endswith("compose.yaml"):
            services = yaml.safe_load(text)["services"]
            services.pop("gateway", None)
            lines = [[*(s["entrypoint"] if s["entrypoint"] == ["vllm"] else []), *s["command"]] for s in services.values()]
            found += [[word.replace("$$", "$") for word in line] for line in lines]
    return found


def kubernetes_lines(name: str) -> list[list[str]]:
    """With the variables that LeaderWorkerSet sets."""
    found = []
    for path, text in render("leaderworkerset", example_source(name)).items():
        for document in yaml.safe_load_all(text) if path.endswith(".yaml") else ():
            for template in document["spec"]["leaderWorkerTemplate"].values() if document["kind"] == "LeaderWorkerSet" else ():
                if isinstance(template, dict):
                    (container,) = template["spec"]["containers"]
                    words = container.get("command", [])
                    if words[:1] == ["/bin/sh"]:
                        script = container["args"][0].replace("$LWS_WORKER_INDEX", "1").replace("$LWS_LEADER_ADDRESS", "head")
                        words = shlex.split(script)
                        words = words[words.index("vllm") :]
                    found.append(words)
    return found


def systemd_lines(name: str) -> list[list[str]]:
    found = []
    for path, text in render("systemd", example_source(name)).items():
        for line in re.findall(r"^ExecStart=((?:.*\\\n)*.*)$", text, re.MULTILINE) if path.endswith(".service") else ():
            words = shlex.split(line.replace("\\\n", " "))
            if "vllm" in words:
                at = words.index("vllm")
                found.append(["vllm", *(words[at + 2 :] if words[at - 1] == "--entrypoint" else words[at + 1 :])])
    return found


def sparkrun_lines(name: str) -> list[list[str]]:
    """As sparkrun fills them in."""
    found = []
    source = example_source(name)
    for pool in source.cluster.pools:
        recipe = yaml.safe_load(render("sparkrun", source)[f"{pool}.yaml"])
        command = recipe["command"]
        for key, value in {"model": recipe["model"], **recipe["defaults"]}.items():
            command = command.replace(f"{{{key}}}", str(value))
        found.append(shlex.split(command.replace("\\\n", " ")))
    return found


LINES = {"compose": compose_lines, "leaderworkerset": kubernetes_lines, "systemd": systemd_lines, "sparkrun": sparkrun_lines}


@pytest.fixture(scope="module")
def parsed() -> dict[tuple[str, str], list[dict[str, Any]]]:
    """All of them at once: vLLM takes seconds to load."""
    cases = [(target, name) for target in LINES for name in EXAMPLES]
    lines = [LINES[target](name) for target, name in cases]
    answers = iter(read_all([line for group in lines for line in group]))
    return {case: [next(answers) for _ in group] for case, group in zip(cases, lines, strict=True)}


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("target", LINES)
def test_vllm_reads_what_is_rendered(parsed, target, name):
    found = parsed[target, name]
    assert found
    assert [answer["error"] for answer in found if "error" in answer] == []
    pools = {pool.model: pool for pool in example_source(name).cluster.pools.values()}
    for answer in found:
        pool = pools[(answer["served_model_name"] or [answer["model_tag"]])[0]]
        assert answer["tensor_parallel_size"] == pool.tensor_parallel
        assert answer["port"] == pool.port
        assert answer["kv_cache_memory_bytes"] == int(float(pool.engine["kv_cache_memory_gb"]) * 2**30)  # type: ignore[arg-type]
        assert answer["max_model_len"] == pool.engine["max_model_len"]
        assert answer["tool_call_parser"] == pool.engine["tool_call_parser"]
        assert answer["enable_auto_tool_choice"] is True
        if target != "sparkrun":  # which adds these by itself
            assert answer["nnodes"] == pool.nodes_per_replica
            assert answer["headless"] == (answer["node_rank"] > 0)


def test_ranks_of_the_reference(parsed):
    ranks = [(a["node_rank"], a["master_addr"]) for a in parsed["compose", "cluster"] if a["nnodes"] == 2]
    assert ranks == [(i % 2, f"192.168.100.{2 * (i // 2) + 1}") for i in range(6)]


def test_the_parser_would_say_something():
    (answer,) = read_all([["vllm", "serve", "m", "--tensor-paralel-size", "2"]])
    assert "unrecognized arguments: --tensor-paralel-size" in str(answer["error"])
