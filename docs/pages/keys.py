"""Keys of the policy and of a cluster file, from their JSON Schemas."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pages.markdown import code, codes, fill, item, page
from switchyard.cluster.spec import Cluster
from switchyard.config.policy import Policy


def cluster_page() -> str:
    """Every key of a cluster file, in the order of the file."""
    schema = Cluster.model_json_schema(by_alias=True)
    sections = list(policy_sections("Top level", schema, schema["$defs"], ""))
    return page(
        "Cluster file",
        fill(
            "One YAML file, read as strictly as [a policy](policy.md): unknown keys are refused, `${NAME}` is replaced by "
            "the environment variable, and all problems are named at once by `switchyard cluster check FILE`. The same "
            "reference as a JSON Schema: `switchyard schema cluster`. What the arithmetic is: [throughput and "
            "memory](../explanation/throughput.md); from machines to a routed answer: [the how-to](../how-to/spark-cluster.md)."
        ),
        *sections,
    )


def policy_page() -> str:
    """Every key of a policy, in the order of the file."""
    schema = Policy.model_json_schema(by_alias=True)
    sections = list(policy_sections("Top level", schema, schema["$defs"], ""))
    return page(
        "Policy",
        fill(
            "One YAML file. Keys that have a default may be left out. Unknown keys are refused, and so is YAML "
            "that means something else than it looks like ([why](../decisions/0003-strict-yaml.md)). `switchyard "
            "check FILE` names every problem with its line; it also warns about keys that are accepted and have no "
            "effect in this version. The same reference as a JSON Schema: `switchyard schema`."
        ),
        fill(
            "`${NAME}` in a value is replaced by the environment variable, `${NAME:-default}` also where it is unset "
            "or empty. In flow style (`{...}`, `[...]`) such a value must be quoted, and then it is a text. Keys for "
            "clients and engines don't belong there: name their variables with `*_env`."
        ),
        *sections,
    )


def policy_sections(where: str, block: Mapping[str, Any], defs: Mapping[str, Any], prefix: str) -> Iterator[str]:
    """One section for a block, then those of the blocks inside it."""
    lines = []
    inner: list[tuple[str, str]] = []
    for name, field in block["properties"].items():
        path = f"{prefix}{name}"
        inner += blocks_inside(field, path)
        lines.append(policy_entry(name, field, name in block.get("required", ()), defs))
    yield f"## {where}"
    if block.get("description") and prefix:
        yield fill(block["description"])
    yield "\n".join(lines)
    for path, ref in inner:
        shape = defs[ref]
        constant = shape["properties"].get("type", {}).get("const")
        title = f"`{path}` with `type: {constant}`" if constant else f"`{path}`"
        yield from policy_sections(title, shape, defs, f"{path}.")


def blocks_inside(field: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    """Path and definition of each block that a key holds, be it itself, in a list or under names."""
    if "$ref" in field:
        yield path, field["$ref"].rpartition("/")[2]
    for option in (*field.get("anyOf", ()), *field.get("oneOf", ())):
        yield from blocks_inside(option, path)
    if "items" in field:
        yield from blocks_inside(field["items"], f"{path}[]")
    if isinstance(field.get("additionalProperties"), dict):
        name = "SIGNAL" if path.endswith("when") else "NAME"
        yield from blocks_inside(field["additionalProperties"], f"{path}.{name}")


def policy_entry(name: str, field: Mapping[str, Any], required: bool, defs: Mapping[str, Any]) -> str:
    """One key: type, default, description."""
    default = field.get("default")
    if required:
        state = "required"
    elif default is None or isinstance(default, dict) or default == []:
        state = "optional"
    else:
        state = f"default {code(as_yaml(default))}"
    text = field.get("description") or defs.get(field.get("$ref", "").rpartition("/")[2], {}).get("description", "")
    return item(f"**`{name}`** - {type_words(field)}; {state}." + (f" {text}" if text != field.get("const") else ""))


def as_yaml(value: Any) -> str:
    """A default as it would stand in the file."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(as_yaml, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def type_words(field: Mapping[str, Any]) -> str:
    """A JSON Schema type in words."""
    if "$ref" in field:
        return "block"
    options = [o for o in (*field.get("anyOf", ()), *field.get("oneOf", ())) if o.get("type") != "null"]
    plain = {o.get("type") for o in options}
    if {"boolean", "integer", "number", "string"} <= plain:
        options = [o for o in options if o.get("type") not in {"boolean", "integer", "number", "string"}]
        return " or ".join(["value", *map(type_words, options)])
    if plain == {"integer", "number"}:
        return "number"
    if options:
        return " or ".join(dict.fromkeys(map(type_words, options)))
    if "const" in field:
        return code(as_yaml(field["const"]))
    if "enum" in field:
        return " or ".join(code(str(v)) for v in field["enum"])
    kind = str(field.get("type"))
    if kind == "array":
        inner = field["items"]
        words = f"out of {codes(inner['enum'])}" if "enum" in inner else f"of {many(type_words(inner))}"
        return f"list {words}" + (" (at least one)" if field.get("minItems") else "")
    if kind == "object":
        return f"names, each with a {type_words(field['additionalProperties'])}"
    words = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}[kind]
    return words + limits_of(field)


def many(words: str) -> str:
    """The plural of a type."""
    return re.sub(r"^(block|value|text)\b", r"\1s", words)


def limits_of(field: Mapping[str, Any]) -> str:
    """Bounds of a number or of a text's length."""
    low, high, above = field.get("minimum"), field.get("maximum"), field.get("exclusiveMinimum")
    if above is not None:
        return f" above {above:g}" + (f", at most {high:g}" if high is not None else "")
    if low is not None and high is not None:
        return f" from {low:g} to {high:g}"
    if low is not None:
        return f", at least {low:g}"
    if field.get("maxLength"):
        return f" of at most {field['maxLength']} characters"
    return ""
