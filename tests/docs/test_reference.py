"""Every name that users meet is in the reference: signals, error codes, metrics, keys, commands and their flags, headers."""

import argparse
import json
import re
from pathlib import Path
from typing import Any

import pytest

from switchyard.cli.main import make_parser
from switchyard.cluster.spec import cluster_schema_text
from switchyard.config.schema import policy_schema
from switchyard.config.vocabulary import SIGNALS
from switchyard.errors import LEAVES
from switchyard.telemetry.metrics import ASKED, COUNTERS, GAUGES, HISTOGRAMS

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
HEADERS = [
    "x-switchyard-pool", "x-switchyard-replica", "x-switchyard-reason", "x-switchyard-affinity", "x-switchyard-error",
    "x-switchyard-session-id", "x-switchyard-case", "x-request-id", "retry-after",
]  # fmt: skip


def page(name: str) -> str:
    return (REFERENCE / f"{name}.md").read_text()


def mentions(text: str, word: str) -> bool:
    """Whether a word stands there whole, as code or in a table."""
    return re.search(rf"(?<![\w.-]){re.escape(word)}(?![\w-])", text) is not None


def missing(name: str, words: list[str]) -> list[str]:
    text = page(name)
    return [word for word in words if not mentions(text, word)]


def test_every_signal():
    assert missing("signals", [*SIGNALS]) == []
    assert "header." in page("signals")


def test_every_error_code_with_its_status():
    assert missing("errors", [leaf.code for leaf in LEAVES]) == []
    for leaf in LEAVES:
        lines = [line for line in page("errors").splitlines() if mentions(line, leaf.code)]
        assert any(str(leaf.status) in line for line in lines), f"{leaf.code} is {leaf.status}"


def test_every_metric():
    text = page("metrics")
    names = [f"{name}_total" for name in [*COUNTERS, *ASKED]] + [*HISTOGRAMS, *GAUGES]
    assert [n for n in names if not mentions(text, n) and not mentions(text, n.removesuffix("_total"))] == []


def below(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers of a parser's commands, those of commands below them included."""
    found = {}
    for action in parser._actions:
        for name, inner in action.choices.items() if isinstance(action, argparse._SubParsersAction) else ():
            found[name] = inner
            found |= {f"{name} {word}": other for word, other in below(inner).items()}
    return found


COMMANDS = below(make_parser())


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_and_its_flags(command):
    flags = [max(action.option_strings, key=len) for action in COMMANDS[command]._actions if action.option_strings]
    (section,) = re.findall(rf"^## {command}\n(.*?)(?=^## |\Z)", page("cli"), re.MULTILINE | re.DOTALL)
    assert [flag for flag in flags if flag != "--help" and not mentions(section, flag)] == []


def keys_of(schema: dict[str, Any]) -> set[str]:
    blocks = [schema, *(part for block in schema["$defs"].values() for part in block.get("anyOf", [block]))]
    return {name for block in blocks for name in block.get("properties", {})}


def test_every_key_of_the_policy():
    assert missing("policy", sorted(keys_of(policy_schema()))) == []


def test_every_key_of_the_cluster_file():
    assert missing("cluster", sorted(keys_of(json.loads(cluster_schema_text())))) == []


def test_every_header():
    text = page("endpoints").lower()
    assert [h for h in HEADERS if not mentions(text, h)] == []
