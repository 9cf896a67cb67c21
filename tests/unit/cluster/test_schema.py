"""The JSON Schema of cluster files takes what the loader takes, as far as a schema can tell."""

import json

import jsonschema
import pytest
import yaml

from switchyard.cluster.spec import cluster_schema_text
from unit.cluster.make import DEPLOY, EXAMPLES, SPARKS

SCHEMA = json.loads(cluster_schema_text())


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(name):
    jsonschema.validate(yaml.safe_load((DEPLOY / f"{name}.yaml").read_text()), SCHEMA)


@pytest.mark.parametrize(
    ("was", "now"), [("kind: switch", "kind: star"), ("replicas: 1", "replica: 1"), ("memory_gb: 128", "memory_gb: much")]
)
def test_nonsense(was, now):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(SPARKS.replace(was, now, 1)), SCHEMA)
