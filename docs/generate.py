"""Write the reference pages from the code, so that they can't differ from it.

  python docs/generate.py            writes docs/reference/*.md
  python docs/generate.py --check    writes nothing; names stale pages and exits 1 when there are any

What is read: the signal catalogue, the errors, the metric tables, the policy's JSON Schema, the command line's parser,
the endpoint tables, the control plane's routes, and the arms, states and files of evals.
Prose that explains rather than lists belongs on hand-written pages.
The same code gives the same pages on every Python version and terminal width.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, cast, get_args

from fastapi.routing import APIRoute
from starlette.routing import Route as PlainRoute

import switchyard
from switchyard.api import protocol
from switchyard.api.auth import Keys
from switchyard.api.control import make_control
from switchyard.api.endpoints import ENDPOINTS, allowed_methods
from switchyard.cli.main import COMMANDS, make_parser
from switchyard.cluster.spec import Cluster
from switchyard.config import vocabulary
from switchyard.config.policy import Policy
from switchyard.config.vocabulary import HEADER_PREFIX, PROTOCOLS, REQUEST_CLASSES, SIGNALS
from switchyard.errors import LEAVES, GatewayError
from switchyard.evals.arms import ARMS
from switchyard.evals.folder import FORMAT, Finished
from switchyard.evals.suites import SUITES
from switchyard.evals.verdict import STATES
from switchyard.routing import session, signals
from switchyard.routing.decision import Kind
from switchyard.telemetry.metrics import ASKED, COUNTERS, GAUGES, HISTOGRAMS
from switchyard.telemetry.record import KEPT
from switchyard.upstream import headers as crossing

HERE = Path(__file__).resolve().parent
PAGES = HERE / "reference"
WIDTH = 120
NOTE = "<!-- Written by docs/generate.py from the code; change the code, then run `make docs`. -->"

Rows = Sequence[Sequence[str]]


# ---- Markdown ----


def fill(text: str, indent: str = "") -> str:
    """A paragraph at most `WIDTH` wide; its lines after the first are indented."""
    flat = " ".join(text.split())
    return textwrap.fill(flat, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def item(text: str) -> str:
    """A list item."""
    return fill(f"- {text}", "  ")


def table(head: Sequence[str], rows: Rows) -> str:
    """A table; a bar inside a cell is escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def code(text: str) -> str:
    """Inline code."""
    return f"`{text}`"


def codes(names: Sequence[str]) -> str:
    """A list of inline codes."""
    return ", ".join(map(code, names))


def fenced(text: str, language: str = "") -> str:
    """A block of code."""
    return f"```{language}\n{text}\n```"


def page(title: str, *parts: str) -> str:
    """A whole page."""
    text = "\n\n".join([f"# {title}", NOTE, *parts]) + "\n"
    for line in text.splitlines():
        if len(line) > WIDTH and not line.startswith(("|", "http")) and " " in line.strip():
            raise ValueError(f"a line of {title} is {len(line)} wide: {line}")
    return text


def doc(thing: object) -> str:
    """A docstring without its indentation; empty when there is none of its own."""
    return inspect.cleandoc(getattr(thing, "__doc__", None) or "")


# ---- signals ----


def signals_page() -> str:
    """Every signal with its type, meaning and how it is read."""
    kinds = {"bool": "true or false", "int": "whole number", "float": "number", "text": "text"}
    entries = []
    for name, spec in SIGNALS.items():
        how = with_values(doc(inspect.getattr_static(signals.Signals, name, None)))
        entries.append(item(f"**`{name}`** - {kinds[spec.kind]}. {spec.meaning}" + (f" *How:* {how}" if how else "")))
    entries.append(item(f"**`{HEADER_PREFIX}NAME`** - text. {header_meaning()}"))
    agents = list(dict.fromkeys(name for _, name in signals._AGENTS))
    scripts = [name for name, _ in signals._SCRIPTS]
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
                item(f"`client`: {codes(agents)}, or `other`. Found in the User-Agent."),
                item(f"`request_class`: {codes(REQUEST_CLASSES)}. `title` is only looked for in requests of "
                     f"{codes(sorted(signals._TITLING_CLIENTS))}, the agents that are known to make such calls."),
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


# ---- errors ----


def all_errors() -> list[type[GatewayError]]:
    """Every class that gives an answer of its own: the leaves, and those that other modules add."""
    known = list(LEAVES)
    pending: list[type[GatewayError]] = [GatewayError]
    while pending:
        kind = pending.pop(0)
        pending += kind.__subclasses__()
        own = "code" in vars(kind) or "status" in vars(kind)
        if own and kind not in known:
            known.append(kind)
    return sorted(known, key=lambda k: (k.status, k.code))


def meaning_of(kind: type[GatewayError]) -> str:
    """What an error means, for a client."""
    head_kib = protocol.MAX_HEAD_BYTES >> 10
    own = {
        "internal_error": "The gateway itself failed on the request; its log has the reason, under the request id.",
        "head_too_large": f"The head is longer than {head_kib} KiB or has more than {protocol.MAX_HEADERS} headers.",
        "too_many_connections": "The gateway has `server.max_connections` client connections already.",
    }
    described = doc(kind) if "__doc__" in vars(kind) else ""
    added = {"upstream_broken": " Its status is never sent: the answer has begun with the engine's own."}
    return own.get(kind.code, described or "See its message.") + added.get(kind.code, "")


def errors_page() -> str:
    """Every error of the gateway's own making."""
    kinds = all_errors()
    rows = []
    for kind in kinds:
        again = "yes" if kind.retryable else "no"
        rows.append((str(kind.status), code(kind.code), code(kind.type), code(kind.anthropic_type), again))
    meanings = {k.code: meaning_of(k) for k in kinds}
    return page(
        "Errors",
        fill(
            "What the gateway itself answers with. The code is stable; it is in the header `x-switchyard-error` "
            "and, in OpenAI's shape, in `error.code`. \"Retry\" says whether the same request may succeed later "
            "without a change."
        ),
        table(("status", "code", "OpenAI type", "Anthropic type", "retry"), rows),
        "\n".join(item(f"**`{name}`** - {text}") for name, text in meanings.items()),
        "## Shape",
        fill(
            "The body has the shape of the endpoint's protocol. On `/v1/messages` and `/v1/messages/count_tokens` "
            "that is Anthropic's, everywhere else OpenAI's:"
        ),
        fenced(
            '{"error": {"message": "...", "type": "invalid_request_error", "param": "model", "code": "..."}}\n'
            '{"type": "error", "error": {"type": "not_found_error", "message": "..."}}',
            "json",
        ),
        fill(
            "In a stream that has begun the status can't change any more. The error then is the protocol's own "
            "event: a `data:` line with the error object (chat, completions), `event: error` (Messages), `event: "
            "response.failed` (Responses). A half event before it is closed first. An answer that is no stream is "
            "cut off, so that the client sees that it is incomplete."
        ),
        "## Not in the table",
        "\n".join(
            [
                item("An engine's own error (status 400 or more) passes with its status and body when the body "
                     "has the endpoint's shape already, else its message is wrapped in that shape. It carries "
                     "`x-switchyard-pool` and `x-switchyard-replica`, and no `x-switchyard-error`. A redirect by "
                     "an engine is never followed; it becomes `upstream_unreachable`."),
                item(f"A request whose head takes more than {protocol.HEAD_LIMIT_S:g} s, or whose body pauses for "
                     f"more than {protocol.BODY_STALL_S:g} s, gets 408 with the code `request_timeout`."),
                item("Some answers come before there is a request: 408, `head_too_large`, `too_many_connections`, and "
                     "400 for bytes that are no HTTP. The connection closes after them, and they carry no "
                     "`x-switchyard-error` and no `x-request-id`."),
                item("`retry-after` (seconds) is sent with `pool_saturated`, `queue_timeout`, `draining`, and "
                     "when no replica could be reached."),
            ]
        ),
    )  # fmt: skip


# ---- metrics ----


def metrics_page() -> str:
    """Every metric of /metrics."""

    def entry(name: str, help_: str, labels: Sequence[str]) -> str:
        return item(f"**`{name}`**" + (f" ({codes(labels)})" if labels else "") + f" - {help_}")

    buckets: dict[tuple[float, ...], list[str]] = {}
    for name, (_, _, bounds) in HISTOGRAMS.items():
        buckets.setdefault(bounds, []).append(name)
    return page(
        "Metrics",
        fill(
            "`GET /metrics` gives Prometheus text. Labels hold names from the policy and words of the gateway's "
            "own, never what a client sent. The names in brackets are labels."
        ),
        "## Counters",
        "\n".join(entry(f"{name}_total", help_, labels) for name, (help_, labels) in [*COUNTERS.items(), *ASKED.items()]),
        "## Histograms",
        fill("Each has `_bucket`, `_sum` and `_count`. All are in seconds."),
        "\n".join(entry(name, help_, labels) for name, (help_, labels, _) in HISTOGRAMS.items()),
        "Buckets:",
        "\n".join(item(f"{', '.join(f'{b:g}' for b in bounds)}: {codes(names)}") for bounds, names in buckets.items()),
        "## Gauges",
        "\n".join(entry(name, help_, labels) for name, (help_, labels) in GAUGES.items()),
        "## Values of labels",
        "\n".join(
            [
                item("`status`: `2xx`, `4xx`, `5xx`, or `none` when no answer was sent."),
                item("`outcome`: `ok`, `refused` (by us), `engine_error`, `broken` (in mid-answer), `client_left`."),
                item(f"`kind`: what settled the decision: {codes(get_args(Kind))}; see "
                     "[reading decisions](../how-to/read-decisions.md)."),
                item("`result`: `good` or `refused`."),
                item("`code`: a code of [errors](errors.md)."),
                item("`route` is empty for a pool asked for by its name; `pool` is empty when it never came to one."),
            ]
        ),
    )  # fmt: skip


# ---- policy ----


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


# ---- command line ----


def cli_page() -> str:
    """Every command with its flags."""
    parts = [item(f"[`{name}`](#{name.replace(' ', '-')}) - {summary}") for name, summary, _, _ in all_commands()]
    sections: list[str] = []
    for name, summary, command, module in all_commands():
        actions = [a for a in command._actions if not isinstance(a, argparse._HelpAction)]
        below = any(isinstance(a, argparse._SubParsersAction) for a in actions)
        sections += [f"## {name}", f"{summary[0].upper()}{summary[1:]}."]
        sections.append(fenced(f"switchyard {name} COMMAND" if below else usage(name, actions)))
        sections += paragraphs(doc(module))
        if actions and not below:
            sections.append("\n".join(item(f"{code(flag_words(a))} - {flag_help(a)}") for a in actions))
    exits = doc(importlib.import_module("switchyard.cli.main")).partition("Exit codes: ")[2].rstrip(".")
    return page(
        "Command line",
        fill("`switchyard COMMAND`, or `python -m switchyard COMMAND`. `switchyard COMMAND --help` says the same."),
        "\n".join(parts),
        fill(f"Exit codes: {' '.join(exits.split())}. Ctrl-C in a command that doesn't serve gives 130."),
        *sections,
        "## Environment variables",
        "\n".join(
            [
                item("`SWITCHYARD_TRACEBACK`: set to anything, an unexpected error shows its traceback."),
                item("`SWITCHYARD_CACHE`: where `demo` keeps its model; else `switchyard` under "
                     "`XDG_CACHE_HOME`, else `~/.cache/switchyard`."),
                item("Variables that a policy names in `*_env` keys hold keys; `serve` refuses to start without them."),
                item("`OTEL_*`: see [operating](../how-to/operate.md#traces)."),
            ]
        ),
    )  # fmt: skip


def all_commands() -> Iterator[tuple[str, str, argparse.ArgumentParser, ModuleType]]:
    """Name, summary, parser and module of every command, those under `cluster` after it."""
    for name, summary in COMMANDS.items():
        module = importlib.import_module(f"switchyard.cli.{name}")
        yield name, summary, below(make_parser())[name], module
        for inner, words in getattr(module, "COMMANDS", {}).items() if name == "cluster" else ():
            of = importlib.import_module(f"switchyard.cli.{name}.{module.MODULES.get(inner, inner)}")
            yield f"{name} {inner}", words, below(below(make_parser())[name])[inner], of


def below(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """The parsers of a parser's commands."""
    (commands,) = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return cast(Mapping[str, argparse.ArgumentParser], commands.choices)


def usage(name: str, actions: Sequence[argparse.Action]) -> str:
    """The same whatever the terminal's width and Python's version; a long one is broken between its flags."""
    words = [f"switchyard {name}"]
    for action in actions:
        if action.option_strings:
            flag = f"{action.option_strings[-1]}{value_words(action)}"
            words.append(flag if action.required else f"[{flag}]")
        else:
            word = f"{action.metavar}{' ...' if action.nargs == '+' else ''}"
            words.append(f"[{word}]" if action.nargs == "?" else word)
    lines = [""]
    for word in words:
        if len(lines[-1]) + len(word) >= WIDTH:
            lines.append("   ")
        lines[-1] = f"{lines[-1]} {word}" if lines[-1] else word
    return "\n".join(lines)


def flag_words(action: argparse.Action) -> str:
    """A flag with its value, or the name of an argument."""
    return ", ".join(action.option_strings) + value_words(action) if action.option_strings else str(action.metavar)


def value_words(action: argparse.Action) -> str:
    """The value that a flag takes."""
    return "" if action.nargs == 0 else f" {action.metavar or action.dest.upper()}"


def flag_help(action: argparse.Action) -> str:
    """The help text with its placeholders filled in."""
    return f"{(action.help or '') % {'default': action.default, 'prog': 'switchyard'}}."


def paragraphs(text: str) -> Iterator[str]:
    """A module's docstring as Markdown: indented lines and bare commands become code."""
    for block in text.split("\n\n")[1:]:
        lines = block.splitlines()
        if all(line.startswith(("  ", "switchyard ")) for line in lines):
            yield fenced(inspect.cleandoc("\n" + block), "sh")
        else:
            yield fill(block)


# ---- endpoints and headers ----

HEADERS_READ: Mapping[str, str] = {
    "authorization": "`Bearer KEY`: the gateway's key. Never sent on.",
    "x-api-key": "The same, as Anthropic's clients send it. Never sent on.",
    "x-switchyard-pool": "Use this pool of the route for this request; 400 when it can't serve it. Not sent on.",
    "x-switchyard-priority": "`background`: where requests queue, this one waits behind those of people. Not sent on.",
    "x-switchyard-case": "A label, repeated as `case` in the decision record; for evaluations. Not sent on.",
    "x-switchyard-session-id": "Name of the conversation; wins over every other name for it (below). Sent on.",
    "x-request-id": "Echoed in the answer, and kept as `client_request_id` in the decision record, when it is one "
    "value of 1 to 128 plain characters. Not sent on: the engine gets an id for each attempt.",
    "x-claude-code-agent-id, x-openai-subagent, x-parent-session-id": "Mark a request as a sub-agent's; the first "
    "two also tell sub-agents of one session "
    "apart.",
    "user-agent": "Tells the client (signal `client`).",
    "traceparent, tracestate": "Go on to the engine when well formed, as the parent or with the gateway's own span.",
}
HEADERS_SENT: Mapping[str, str] = {
    "x-switchyard-pool": "The pool that answered.",
    "x-switchyard-replica": "The replica that answered.",
    "x-switchyard-affinity": "`hit` when this replica had the conversation's last request, `repin` when it had to move here, "
    "`miss` when it was not known. Only from pools with `balance: prefix`.",
    "x-switchyard-reason": "Why, for people; at most 300 characters of ASCII. Not on answers to stored responses.",
    "x-switchyard-error": "Code of an error of the gateway's own; see [errors](errors.md).",
    "x-switchyard-estimate": "On a count_tokens answer of the gateway's own, since the engine can't count: `true` for an "
    "estimate, `tokenizer` for a count by the pool's tokenizer.",
    "x-request-id": "The client's own id, else the gateway's. The decision record has both.",
    "retry-after": "Seconds, with errors that pass by themselves.",
}


def endpoints_page() -> str:
    """Paths of both planes, and headers."""
    assert_headers_listed()
    rows = []
    for endpoint in ENDPOINTS.values():
        methods = b", ".join(allowed_methods(endpoint)).decode()
        note = " (counts tokens)" if endpoint.counting else ""
        rows.append((methods, code(endpoint.path), endpoint.protocol + note))
    stored = b", ".join(allowed_methods(None)).decode()
    rows += [(stored, code(f"/v1/responses/ID{tail}"), "responses") for tail in ("", "/cancel", "/input_items")]
    limits = [
        f"request head: {protocol.MAX_HEAD_BYTES >> 10} KiB, {protocol.MAX_HEADERS} headers, {protocol.HEAD_LIMIT_S:g} s",
        f"longest pause inside a request's body: {protocol.BODY_STALL_S:g} s",
        "body: `server.max_body_mb`",
        f"idle connection: kept for {protocol.KEEP_ALIVE_S:g} s",
        f"a client that takes nothing of its answer for {protocol.WRITE_STALL_S:g} s is cut off",
    ]
    return page(
        "Endpoints and headers",
        "## Data plane",
        fill(
            "These go to engines, at the same path and with the same query. The body must be a JSON object with "
            "`model`: the name of a route, an alias, or a pool. Where keys are set, one is needed."
        ),
        table(("methods", "path", "protocol"), rows),
        fill(
            "`count_tokens` is answered with an estimate where the engine doesn't have it (404, 405 or 501). A "
            "stored response is asked of the replica that made it; the gateway forgets where that was when it "
            "restarts."
        ),
        "## Control plane",
        "\n".join(item(f"{methods} {path} - {what}" + needs) for methods, path, needs, what in control_rows()),
        fill(
            "The API key is needed only where `server.api_keys_env` is set. `/admin` needs the key of "
            "`server.admin_key_env`; without that it answers only where no API keys are set. "
            f"`/admin/decisions?limit=N` gives 100, at most {KEPT:,}; `&case=LABEL` only those whose request had this "
            "`x-switchyard-case`."
        ),
        "## Headers that are read",
        "\n".join(item(f"{codes(name.split(', '))} - {text}") for name, text in HEADERS_READ.items()),
        "### Session",
        fill(
            "The name of a conversation is the first of these that holds 1 to 256 printable ASCII characters "
            "without spaces. It is scoped to the API key, hashed before it is kept or shown, and gives nobody a "
            "right."
        ),
        "\n".join(f"{i}. {text}" for i, text in enumerate(session_sources(), 1)),
        "## Headers that are sent",
        "\n".join(item(f"`{name}` - {text}") for name, text in HEADERS_SENT.items()),
        "## Headers that don't cross",
        fill(
            f"Not to the engine: {codes(sorted(n.decode() for n in crossing._NOT_TO_ENGINE))}. The pool's own key "
            "is sent as `authorization` where `pools.NAME.api_key_env` is set."
        ),
        fill(f"Not to the client: {codes(sorted(n.decode() for n in crossing._NOT_TO_CLIENT))}."),
        fill("Both ways, headers that `Connection` names stay behind too. Everything else passes."),
        "## Limits of a connection",
        "\n".join(map(item, limits)),
    )


def session_sources() -> list[str]:
    """Where a session's name comes from, in order: the headers are the code's, the rest is read off `_named_id`."""
    source = inspect.getsource(session._named_id)
    fields = re.search(r"for name in (\(.*?\)):\n\s+if name in body", source)
    for word in ("x-codex-turn-metadata", "x-client-session-id", "user_id"):
        if word not in source:
            raise ValueError(f"sessions are no longer read from {word}")
    if fields is None:
        raise ValueError("the body fields that name a session are not found")
    return [
        *(f"header `{name}`" for name in session._HEADERS),
        "`session_id` in the JSON header `x-codex-turn-metadata`",
        "header `x-client-session-id`",
        "`session_id` in the JSON text `metadata.user_id`, or its suffix `_session_ID`",
        *(f"body field `{name}`" for name in ast.literal_eval(fields[1])),
        "nothing of these: a fingerprint of how the conversation begins, which is only a hint",
    ]


def control_rows() -> Iterator[tuple[str, str, str, str]]:
    """The control plane's routes."""
    app = make_control(cast(Any, None), Keys((), None), 1, str, cast(Any, None))
    needs = {"need_key": "API key", "need_admin": "admin key"}
    plain = {
        "/": "Name and version.",
        "/docs": "A page to try the control plane out.",
        "/openapi.json": "The control plane as an OpenAPI document.",
    }
    for route in app.routes:
        if not isinstance(route, PlainRoute | APIRoute) or route.path == "/docs/oauth2-redirect":
            continue
        path = re.sub(r"\{(\w+)(:\w+)?\}", lambda m: m[1].upper(), route.path)
        found = [needs[d.dependency.__name__] for d in getattr(route, "dependencies", []) if d.dependency is not None]
        what = plain.get(path) or " ".join(doc(route.endpoint).split())
        needs_words = f" Needs the {' and the '.join(found)}." if found else ""
        yield ", ".join(sorted(route.methods or ())), code(path), needs_words, what


def assert_headers_listed() -> None:
    """Fail when the code mentions a header of the gateway's own that this page doesn't describe."""
    root = Path(switchyard.__file__).parent
    used = {n for f in sorted(root.rglob("*.py")) for n in re.findall(r"x-switchyard-[a-z-]+", f.read_text("utf-8"))}
    missing = used - set(HEADERS_READ) - set(HEADERS_SENT)
    if missing:
        raise ValueError(f"headers without a description: {', '.join(sorted(missing))}")


# ---- evals ----


def evals_page() -> str:
    """What `switchyard eval` runs, keeps and reports."""
    fields = re.findall(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", doc(Finished).partition("Attributes:")[2], re.MULTILINE)
    if [name for name, _ in fields] != list(Finished.__struct_fields__):
        raise ValueError("the docstring of Finished doesn't describe its fields")
    return page(
        "Evals",
        fill(
            "What `switchyard eval` runs, keeps and reports. Its flags are in [the command line](cli.md#eval); a walk "
            "through is [Prove that quality held](../how-to/prove-quality.md). Suites: "
            f"{codes(list(SUITES))}; their formats and graders are in [evals/](../../evals/README.md)."
        ),
        "## Arms",
        "\n".join(item(f"**`{name}`** - {what}.") for name, what in ARMS.items()),
        fill(
            "They run in this order, each with `--concurrency` cases at a time. `random` needs `routed`, `big-again` needs "
            "`big`; the verdict needs `big` and `routed`. `random` sends as many trials to the big pool as come nearest to "
            "the routed arm's share, drawn by `--seed`."
        ),
        "## States of a trial",
        "\n".join(item(f"**`{name}`** - {meaning}.") for name, meaning in STATES.items()),
        fill("When the gateway itself goes away, the run ends with exit code 3; trials that were under way are not kept."),
        "## The run's folder",
        "\n".join(
            [
                item("`run.json` - what is run: `suite` and its `version`, `cases`, `arms`, `trials`, `margin` (a "
                     "proportion), `names` (route, big, small), `policy` and `policy_hash` (SHA-256 of the file), `settings`, "
                     "`seed`, `weights`, `concurrency`, `gateway`, `started`, `run_id`, `switchyard`, and `format`, now "
                     f"{FORMAT}."),
                item("`cases.jsonl` - a line for each finished trial."),
                item("`raw/ARM/CASE.TRIAL.json.gz` - its requests and answers, and what the grader kept. Prompts and answers "
                     "stand there in full; keys don't."),
                item("`report.html`, `report.md`, `report.json` - the report."),
                item("`gateway.yaml`, `gateway.log`, `decisions.jsonl` - with `--policy`: what was served, and the gateway's "
                     "own logs."),
            ]
        ),
        fill("A line of `cases.jsonl`:"),
        "\n".join(item(f"**`{name}`** - {meaning}") for name, meaning in fields),
        fill(
            "Each request has an id of its own (`x-request-id`), which its [decision "
            "record](../how-to/read-decisions.md#a-record) repeats as `client_request_id`. A trial is kept only with a record "
            "for every request that the gateway took; when one is missing, the run ends with exit code 3."
        ),
        "## report.json",
        fill(
            "`verdict` (`word`, `margin_points`, `why`; `settled_by` and `settled_as_seen` in cases), `comparison` (routed "
            "against big), `noise_floor`, `small`, `against_random`, `advantage` (over chance at the same share), `arms`, "
            "`categories`, `curve`, `cautions`, `problems`, `complete`. Rates, shares and scores are proportions; what ends in "
            "`_points` is in percentage points; intervals are two-sided, 90 %. An entry is null where its arms did not run."
        ),
    )  # fmt: skip


# ---- writing ----


def all_pages() -> dict[str, str]:
    """Name and text of every page."""
    return {
        "signals.md": signals_page(),
        "errors.md": errors_page(),
        "metrics.md": metrics_page(),
        "policy.md": policy_page(),
        "cluster.md": cluster_page(),
        "cli.md": cli_page(),
        "endpoints.md": endpoints_page(),
        "evals.md": evals_page(),
    }


def read(path: Path) -> str:
    """The text of a page; empty when it is not there."""
    return path.read_text("utf-8") if path.exists() else ""


def main(argv: Sequence[str] | None = None) -> int:
    """Write the pages, or say which are stale."""
    parser = argparse.ArgumentParser(description="Write docs/reference from the code.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a page is stale")
    check = parser.parse_args(argv).check
    pages = all_pages()
    stale = [name for name, text in pages.items() if read(PAGES / name) != text]
    extra = sorted(p.name for p in PAGES.glob("*.md") if p.name not in pages)
    for name in extra:
        print(f"docs/reference/{name} is written by nobody: remove it", file=sys.stderr)
    if check:
        for name in stale:
            print(f"docs/reference/{name} is stale: run `make docs`", file=sys.stderr)
        return 1 if stale or extra else 0
    PAGES.mkdir(exist_ok=True)
    for name in stale:
        (PAGES / name).write_text(pages[name], "utf-8")
        print(f"wrote docs/reference/{name}")
    return 1 if extra else 0


if __name__ == "__main__":
    sys.exit(main())
