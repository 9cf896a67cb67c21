"""Signals: the catalogue, with how each is read from its docstring."""

from __future__ import annotations

import inspect
import re

from pages.markdown import codes, doc, fill, item, page
from switchyard.config import vocabulary
from switchyard.config.vocabulary import HEADER_PREFIX, PROTOCOLS, REQUEST_CLASSES, SIGNALS
from switchyard.routing import agents, looks, signals


def signals_page() -> str:
    """Every signal with its type, meaning and how it is read."""
    kinds = {"bool": "true or false", "int": "whole number", "float": "number", "text": "text"}
    entries = []
    for name, spec in SIGNALS.items():
        how = with_values(doc(inspect.getattr_static(signals.Signals, name, None)))
        entries.append(item(f"**`{name}`** - {kinds[spec.kind]}. {spec.meaning}" + (f" *How:* {how}" if how else "")))
    entries.append(item(f"**`{HEADER_PREFIX}NAME`** - text. {header_meaning()}"))
    clients = list(dict.fromkeys(name for _, name in agents.AGENTS))
    scripts = [*(name for name, _ in looks.RARER_SCRIPTS), "latin"]
    return page(
        "Signals",
        fill(
            "A signal is a fact about a request that is read without any model. A rule of a policy compares "
            "signals (`routes.NAME.rules[].when`, see [the policy reference](policy.md)); decision records and "
            "`switchyard explain` show them. Each is computed when something asks for it, once."
        ),
        "\n".join(entries),
        "## Values",
        "\n".join(
            [
                item(f"`client`: {codes(clients)}, or `other`. Found in the User-Agent."),
                item(f"`request_class`: {codes(REQUEST_CLASSES)}. `title` is only looked for in requests of "
                     f"{codes(sorted(agents.TITLING_CLIENTS))}, the agents that are known to make such calls."),
                item(f"`protocol`: {codes(PROTOCOLS)}."),
                item(f"`language`: {codes(scripts)}, or empty."),
            ]
        ),
        "## Estimates",
        fill(
            "Tokens are estimated from bytes, since no tokenizer runs in the gateway; they may be wrong by half. Of "
            "the human's last text only the beginning is looked at when it is long. What a harness puts around the "
            "human's words (system reminders, environment context and the like) is taken out first."
        ),
    )  # fmt: skip


def with_values(text: str) -> str:
    """A docstring with the constants that it names replaced by their values."""
    return re.sub(r"`([A-Z][A-Z_]+)`", lambda m: str(getattr(signals, m[1], m[0])), text)


def header_meaning() -> str:
    """What `header.NAME` means: the string under the constant of the vocabulary."""
    source = inspect.getsource(vocabulary)
    found = re.search(r'^HEADER_PREFIX = .*\n"""`[^`]*` is (.*?)"""', source, re.MULTILINE | re.DOTALL)
    if found is None:
        raise ValueError("HEADER_PREFIX has no description")
    return found[1][0].upper() + found[1][1:]
