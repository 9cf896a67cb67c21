"""The command line, from its parsers and its modules' docstrings."""

from __future__ import annotations

import argparse
import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import cast

from pages.markdown import WIDTH, code, doc, fenced, fill, item, page
from switchyard.cli.main import COMMANDS, make_parser


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
