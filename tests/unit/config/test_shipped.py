"""The policies of the repository, the schema file, and the sketch of the file's names that other tools build on."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from switchyard.cli.check import find_warnings
from switchyard.config.load import load_policy
from switchyard.config.policy import Policy
from switchyard.config.schema import policy_schema, schema_text
from switchyard.config.vocabulary import PROTOCOLS, REQUEST_CLASSES, SIGNALS

from ..build import MINIMAL, policy_of

ROOT = Path(__file__).parents[3]
POLICIES = sorted((ROOT / "policies").glob("*.yaml"))
SCHEMA = json.loads((ROOT / "schemas/policy.schema.json").read_text())

SKETCH = """\
version: 1
server:
  host: 127.0.0.1
  port: 4000
  api_keys_env: SWITCHYARD_API_KEYS
  admin_key_env: SWITCHYARD_ADMIN_KEY
  max_body_mb: 64
  drain_delay_s: 0
  drain_s: 30
  session_ttl_s: 3600
  state: memory
pools:
  qwen:
    model: Qwen/Qwen3.8-Flash-Next-NVFP4
    replicas:
      - http://10.0.0.1:8000
      - http://10.0.0.3:8000
      - {url: http://10.0.0.5:8000, name: qwen-3, weight: 1, nodes: [s5, s6]}
    balance: prefix
    api_key_env: QWEN_KEY
    context: auto
    accepts: [tools, structured_output]
    max_output_tokens: pass
    usage: pass
    speaks: auto
    limits: {in_flight: 48, queue: 200, queue_timeout_s: 30}
    timeouts: {connect_s: 2, first_byte_s: 600, idle_s: 120, total_s: 3600}
    health: {path: /health, every_s: 2, stall_s: 20}
  minicpm:
    model: openbmb/MiniCPM5-2B
    replicas: [http://10.0.0.7:8000, http://10.0.0.8:8000]
routes:
  auto:
    aliases: [claude-*, gpt-*]
    decide_per: user_turn
    rules:
      - {when: {images: true}, use: qwen, why: the small model is blind}
      - {when: {request_class: title}, use: minicpm}
      - {when: {tool_errors_in_a_row: {at_least: 2}}, use: qwen, for: 5 turns}
    classify:
      - {type: embedded}
      - {type: model, pool: minicpm, deadline_ms: 300}
    choose:
      - {p_at_least: 0.62, use: minicpm}
      - {use: qwen}
    check:
      tool_calls: escalate
    share: {pool: qwen, at_most: 0.5}
    otherwise: qwen
  big: {use: qwen}
  small: {use: minicpm}
"""


def test_the_sketch_loads_as_it_is_written():
    policy = policy_of(SKETCH)
    assert [r.label for r in policy.pools["qwen"].replicas] == ["10.0.0.1:8000", "10.0.0.3:8000", "qwen-3"]
    auto = policy.routes["auto"]
    assert auto.pools == ("minicpm", "qwen")
    assert (auto.rules[2].for_, auto.rules[0].why) == ("5 turns", "the small model is blind")
    assert [c.type for c in auto.classify] == ["embedded", "model"]
    assert policy.routes["big"].default_pool == "qwen"
    jsonschema.validate(yaml.safe_load(SKETCH), SCHEMA)


def test_everything_with_a_default_may_be_left_out():
    full, short = policy_of(SKETCH), policy_of(MINIMAL)
    given, default = full.pools["qwen"], short.pools["small"]
    for name in ("limits", "timeouts", "health", "balance", "context", "accepts", "max_output_tokens", "usage", "speaks"):
        assert getattr(given, name) == getattr(default, name), name
    assert short.server.model_dump() == {**full.server.model_dump(), "api_keys_env": None, "admin_key_env": None}


def test_a_policy_is_immutable():
    with pytest.raises(ValueError, match="frozen"):
        policy_of(MINIMAL).pools["small"].model = "other"


def test_there_are_policies_to_copy():
    assert len(POLICIES) >= 3


@pytest.mark.parametrize("path", POLICIES, ids=lambda p: p.name)
def test_a_shipped_policy_loads_and_editors_know_its_schema(path):
    policy = load_policy(path)
    first_line = path.read_text().splitlines()[0]
    marker, _, schema = first_line.partition("$schema=")
    assert marker == "# yaml-language-server: "
    assert (path.parent / schema).resolve() == (ROOT / "schemas/policy.schema.json").resolve()
    jsonschema.validate(yaml.safe_load(path.read_text()), SCHEMA)
    keys = {v: "k" for v in (policy.server.api_keys_env, policy.server.admin_key_env) if v}
    assert list(find_warnings(policy, str(path), keys)) == []


def test_the_schema_file_is_what_the_command_prints():
    assert (ROOT / "schemas/policy.schema.json").read_text() == schema_text()
    assert schema_text().endswith("}\n")
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_every_key_has_a_description_in_the_schema():
    schema = policy_schema()
    blocks = [schema, *(part for block in schema["$defs"].values() for part in block.get("anyOf", [block]))]
    fields = [(name, field) for block in blocks for name, field in block.get("properties", {}).items()]
    assert len(fields) > 60
    for name, field in fields:
        target = schema["$defs"].get(field.get("$ref", "").rpartition("/")[2], {})
        assert field.get("description") or target.get("description"), f"{name} has no description"


REFUSED_BY_SCHEMA = [
    {"version": 1},
    {"version": 2, "pools": {"a": {"model": "m", "replicas": ["http://h:1"]}}},
    {"version": 1, "pools": {"a": {"model": "m", "replicas": []}}},
    {"version": 1, "pools": {"a": {"model": "m", "replicas": ["http://h:1"], "balnce": "prefix"}}},
    {"version": 1, "pools": {"a": {"model": "m", "replicas": ["http://h:1"], "balance": "prefx"}}},
    {"version": 1, "pools": {"a": {"model": "m", "replicas": ["http://h:1"]}}, "server": {"port": "80"}},
]


@pytest.mark.parametrize("data", REFUSED_BY_SCHEMA, ids=range(len(REFUSED_BY_SCHEMA)))
def test_the_schema_refuses_what_the_loader_refuses(data):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, SCHEMA)


def test_the_catalogue_of_signals_is_complete():
    assert all(spec.meaning.endswith(".") and spec.kind in {"bool", "int", "float", "text"} for spec in SIGNALS.values())
    assert {"chat", "responses", "messages"} <= set(PROTOCOLS)
    assert REQUEST_CLASSES == ("main", "title", "compaction", "subagent", "count")
    assert Policy.model_fields["version"].is_required()
