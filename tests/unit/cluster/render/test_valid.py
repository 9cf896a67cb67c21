"""What is rendered is what those who read it take: Compose's and Kubernetes' schemas, systemd itself, the policy's loader."""

import json
import re
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for

from switchyard.cluster.render.bundle import render
from switchyard.cluster.render.source import Source
from switchyard.config.load import parse_policy
from unit.cluster.make import EXAMPLES, ROOT, SPARKS
from unit.cluster.render.lws_schema import LWS
from unit.cluster.render.sources import REDIS, example_source, source_from

KEYED = SPARKS.replace("    replicas: 1\n", "    replicas: 1\n    api_key_env: BIG_KEY\n")
KUBERNETES = "1.37"


def sources() -> dict[str, Source]:
    """The examples, and one with keys, Redis and what else they don't have."""
    odd = KEYED.replace("{max_model_len: 65536,", "{hf_overrides: {a: 'x $y %z \"q\"'}, seed: 5, max_model_len: 65536,")
    ring = SPARKS.replace("kind: switch", "kind: ring").replace("nodes_per_replica: 2", "nodes_per_replica: 4")
    return {name: example_source(name) for name in EXAMPLES} | {
        "redis": source_from(odd.replace("pools:\n", "gateway: {replicas: 2}\npools:\n"), REDIS),
        "ring": source_from(ring.replace("[[s1, s2]]", "[[s1, s2, s3, s4]]")),
    }


CASES = list(sources())


def documents(text: str) -> list[Any]:
    return list(yaml.safe_load_all(text))


@pytest.fixture(scope="module")
def compose() -> Validator:
    path = files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    schema = json.loads(path.read_text("utf-8"))
    return validator_for(schema)(schema)


@pytest.mark.parametrize("name", CASES)
def test_compose(name, compose):
    made = render("compose", sources()[name])
    found = [text for path, text in made.items() if path.endswith("compose.yaml")]
    assert found
    for text in found:
        (document,) = documents(text)
        compose.validate(document)
        for mount in (m for s in document["services"].values() for m in s.get("volumes", [])):
            assert mount.count(":") in {1, 2}


@pytest.mark.parametrize("name", CASES)
def test_compose_files_are_all_there(name):
    """Whatever a service wants from its directory is rendered into it."""
    made = render("compose", sources()[name])
    for path in [p for p in made if p.endswith("compose.yaml")]:
        directory = path.rpartition("/")[0]
        (document,) = documents(made[path])
        for service in document["services"].values():
            wanted = [f"{directory}/{f}" for f in service.get("env_file", [])]
            wanted += [f"{directory}/{v.split(':')[0][2:]}" for v in service.get("volumes", []) if v.startswith("./")]
            assert all(any(m == w or m.startswith(f"{w}/") for m in made) for w in wanted), wanted


def manifests(name: str) -> list[Any]:
    made = render("leaderworkerset", sources()[name])
    return [d for path, text in made.items() if path.endswith(".yaml") for d in documents(text)]


@pytest.mark.parametrize("name", CASES)
def test_kubernetes(name):
    kinds = []
    for document in manifests(name):
        kinds.append(document["kind"])
        if document["kind"] != "LeaderWorkerSet":
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
            continue
        jsonschema.validate(document, LWS)
        template = document["spec"]["leaderWorkerTemplate"]
        for part in ("leaderTemplate", "workerTemplate"):
            if part in template:
                kubernetes_validate.validate(as_pod(template[part]), KUBERNETES, strict=True)
    assert {"Namespace", "LeaderWorkerSet", "Deployment", "Service", "ConfigMap"} <= set(kinds)


def as_pod(template: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", **template["metadata"]}, "spec": template["spec"]}


@pytest.mark.parametrize("name", CASES)
def test_kubernetes_objects_fit_together(name):
    """Volumes, ConfigMaps and selectors name what is there."""
    found = manifests(name)
    maps = {d["metadata"]["name"] for d in found if d["kind"] == "ConfigMap"}
    pods = [d["spec"]["template"] for d in found if d["kind"] == "Deployment"]
    pods += [
        t
        for d in found
        if d["kind"] == "LeaderWorkerSet"
        for k, t in d["spec"]["leaderWorkerTemplate"].items()
        if k.endswith("Template")
    ]
    for pod in pods:
        volumes = {v["name"]: v for v in pod["spec"]["volumes"]} if "volumes" in pod["spec"] else {}
        for container in pod["spec"]["containers"]:
            assert {m["name"] for m in container.get("volumeMounts", [])} == set(volumes)
        assert {v["configMap"]["name"] for v in volumes.values() if "configMap" in v} <= maps
    for deployment in (d for d in found if d["kind"] == "Deployment"):
        assert (
            deployment["spec"]["selector"]["matchLabels"].items()
            <= deployment["spec"]["template"]["metadata"]["labels"].items()
        )
    spaces = {d["metadata"]["namespace"] for d in found if d["kind"] != "Namespace"}
    assert spaces == {d["metadata"]["name"] for d in found if d["kind"] == "Namespace"}


@pytest.mark.parametrize("name", CASES)
def test_systemd(name, tmp_path: Path):
    """systemd reads the units. It also wants programs to be there: true stands in for Docker and the gateway."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here: apt-get install systemd")
    made = render("systemd", sources()[name])
    units = {path: text for path, text in made.items() if "/units/" in path}
    assert units
    by_machine: dict[str, list[Path]] = {}
    for path, text in units.items():
        machine, _, unit = path.partition("/units/")
        target = tmp_path / machine / unit
        target.parent.mkdir(exist_ok=True)
        target.write_text(
            re.sub(r"(?<=[=-])(/usr/bin/docker|/opt/switchyard/bin/switchyard)(?= )", shutil.which("true") or "", text)
        )
        by_machine.setdefault(machine, []).append(target)
    for machine, paths in by_machine.items():
        asked = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", *map(str, paths)],
            capture_output=True, text=True, timeout=50, env={"SYSTEMD_UNIT_PATH": f"{tmp_path / machine}:"}, check=False,
        )  # fmt: skip
        assert (asked.returncode, asked.stderr) == (0, ""), asked.stderr


def test_systemd_verify_would_say_something(tmp_path: Path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here: apt-get install systemd")
    unit = tmp_path / "x.service"
    unit.write_text("[Service]\nExecStart=/bin/true\nRestrat=always\n")
    asked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=50, check=False
    )
    assert "'Restrat'" in asked.stderr


@pytest.mark.parametrize("name", CASES)
def test_systemd_command_lines_are_read_back_as_they_were(name):
    """Quoting: what systemd would make of ExecStart is the argv that was meant."""
    source = sources()[name]
    made = render("systemd", source)
    for launch in source.launches:
        text = made[f"{source.machine(launch.node)}/units/switchyard-{launch.name}.service"]
        (line,) = re.findall(r"^ExecStart=((?:.*\\\n)*.*)$", text, re.MULTILINE)
        words = unquote(line.replace("\\\n", " "))
        plain = list(launch.argv if launch.wide else launch.argv[1:])
        assert words[-len(plain) :] == plain


def unquote(line: str) -> list[str]:
    """systemd's reading of a command line, for the quotes that we use."""
    words = re.findall(r'"((?:[^"\\]|\\.)*)"|(\S+)', line)
    return [
        re.sub(r"\\(.)", r"\1", quoted).replace("%%", "%").replace("$$", "$") if quoted else plain for quoted, plain in words
    ]


@pytest.mark.parametrize("name", CASES)
def test_policies_are_good(name):
    source = sources()[name]
    for target in ("pools", "compose", "systemd", "sparkrun"):
        made = render(target, source)
        (text,) = [t for path, t in made.items() if path.endswith("policy.yaml")]
        parse_policy(text.encode(), environment={})
    gateway = documents(render("leaderworkerset", source)["gateway.yaml"])
    parse_policy(gateway[0]["data"]["policy.yaml"].encode(), environment={})


@pytest.mark.parametrize("name", CASES)
def test_sparkrun_recipes(name):
    """The fields that sparkrun's reference names, and a command whose placeholders have values."""
    source = sources()[name]
    made = render("sparkrun", source)
    known = {
        "recipe_version",
        "model",
        "runtime",
        "container",
        "min_nodes",
        "max_nodes",
        "defaults",
        "env",
        "metadata",
        "command",
    }
    for pool in source.cluster.pools:
        (recipe,) = documents(made[f"{pool}.yaml"])
        assert set(recipe) == known
        placeholders = set(re.findall(r"\{(\w+)\}", recipe["command"]))
        assert placeholders <= {"model", *recipe["defaults"]}
        assert all(isinstance(v, str) for v in recipe["env"].values())
        assert not re.search(r"\\ +\n", recipe["command"])


def test_redis_where_the_state_says_so():
    source = sources()["redis"]
    compose = documents(render("compose", source)["s1/compose.yaml"])[0]
    assert compose["services"]["redis"]["image"].startswith("redis:")
    assert compose["services"]["gateway"]["depends_on"] == ["redis"]
    assert "redis.yaml" in render("leaderworkerset", source)
    assert "s1/units/switchyard-redis.service" in render("systemd", source)
    assert documents(render("leaderworkerset", source)["gateway.yaml"])[1]["spec"]["replicas"] == 2
    redis = render("systemd", source)["s1/units/switchyard-redis.service"]
    assert "ExecStartPre=-/usr/bin/docker rm --force switchyard-redis" in redis  # left over from a crash of the machine


@pytest.mark.parametrize(
    ("state", "host"),
    [
        ("memory", None),
        ("redis://redis:6379/0", "redis"),
        ("redis://cache", "cache"),
        ("rediss://cache/0", None),  # ours speaks no TLS,
        ("redis://user:secret@cache/0", None),  # knows no password,
        ("redis://cache:6380/0", None),  # and listens on its usual port
        ("redis://10.0.0.9:6379/0", None),
        ("redis://redis.example.org:6379", None),
        ("redis://localhost:6379", None),
    ],
)
def test_only_a_redis_of_ours_is_started(state, host):
    assert source_from(SPARKS, REDIS.replace("redis://redis:6379/0", state)).redis_host == host


def test_the_gateway_runs_where_the_file_says_and_several_run_anywhere():
    def pod(name: str) -> dict[str, Any]:
        made = documents(render("leaderworkerset", sources()[name])["gateway.yaml"])
        (deployment,) = [d for d in made if d["kind"] == "Deployment"]
        spec: dict[str, Any] = deployment["spec"]["template"]["spec"]
        return spec

    assert pod("cluster")["nodeSelector"] == {"kubernetes.io/hostname": "s8"}
    assert "nodeSelector" not in pod("redis")
    assert pod("cluster")["containers"][0]["imagePullPolicy"] == "IfNotPresent"


@pytest.mark.parametrize("target", ["compose", "systemd", "leaderworkerset"])
def test_readmes_say_where_checkpoints_and_the_gateway_come_from(target):
    page = render(target, sources()["cluster"])["README.md"]
    assert "`HF_HUB_CACHE=/srv/models/hub hf download openbmb/MiniCPM5-2B` on s7, s8" in page
    made = "pip install" if target == "systemd" else "docker build -f deploy/Dockerfile -t switchyard-gateway:latest ."
    assert made in page


def test_the_gateway_s_image_is_made_of_files_that_are_there():
    lines = (ROOT / "deploy" / "Dockerfile").read_text().splitlines()
    copied = [word for line in lines if line.startswith("COPY ") and "--from" not in line for word in line.split()[1:-1]]
    assert {"pyproject.toml", "requirements.lock", "README.md", "switchyard"} <= set(copied)
    assert [name for name in copied if not (ROOT / name).exists()] == []


def test_readmes_name_each_node_once_with_its_own_models_directory():
    text = SPARKS.replace("fabric: 192.168.0.4", "fabric: 192.168.0.4, models_dir: /data/models")
    page = render("systemd", source_from(text))["README.md"]
    assert "`HF_HUB_CACHE=/srv/models/hub hf download org/small` on s3;" in page
    assert "`HF_HUB_CACHE=/data/models/hub hf download org/small` on s4." in page
    both = source_from(SPARKS.replace("[[s3], [s4]]", "[[s3], [s3]]"))
    assert "hf download org/small` on s3." in render("compose", both)["README.md"]
