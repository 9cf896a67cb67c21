"""Markdown as the reference pages use it: the same text on every Python version and terminal width."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Sequence

WIDTH = 120
NOTE = "<!-- Written by docs/generate.py from the code; change the code, then run `make docs`. -->"

Rows = Sequence[Sequence[str]]


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
