"""The JSON Schema of a policy, for editors and for `switchyard schema`."""

from __future__ import annotations

import json
from typing import Any

from switchyard.config.policy import Policy
from switchyard.config.pool import Replica


def policy_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a policy file, shorthands included."""
    schema = Policy.model_json_schema(by_alias=True)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "Switchyard policy"
    replica = schema["$defs"][Replica.__name__]
    schema["$defs"][Replica.__name__] = {
        "description": replica.get("description", ""),
        "anyOf": [{"type": "string", "description": "URL of the engine, like http://10.0.0.1:8000"}, replica],
    }
    return schema


def schema_text() -> str:
    """The schema as the file `schemas/policy.schema.json` holds it."""
    return json.dumps(policy_schema(), indent=2, ensure_ascii=False) + "\n"
