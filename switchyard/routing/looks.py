"""How a text looks: in which script it is, and whether a line of it is code."""

from __future__ import annotations

import re

SCRIPT_CHARACTERS = 500  # of the human's last text, where its script is looked for
CODE_CHARACTERS = 400  # of it, where its share of code is measured
_CODE_WORDS = frozenset(
    [
        "def",
        "class",
        "import",
        "from",
        "fn",
        "let",
        "const",
        "var",
        "return",
        "if",
        "for",
        "while",
        "#include",
        "public",
        "private",
        "func",
        "function",
        "package",
        "use",
    ]
)
RARER_SCRIPTS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("han", re.compile(r"[\u4e00-\u9fff]")),
    ("kana", re.compile(r"[\u3040-\u30ff]")),
    ("hangul", re.compile(r"[\uac00-\ud7af]")),
    ("cyrillic", re.compile(r"[\u0400-\u04ff]")),
    ("arabic", re.compile(r"[\u0600-\u06ff]")),
    ("devanagari", re.compile(r"[\u0900-\u097f]")),
    ("greek", re.compile(r"[\u0370-\u03ff]")),
    ("hebrew", re.compile(r"[\u0590-\u05ff]")),
)
_ASCII = bytes(range(128))
_LATIN = re.compile(r"[A-Za-z]")


def script_of(text: str) -> str:
    """The first script found in a text, rarer ones first; empty for none."""
    if not text.isascii():
        # Most of a text is ASCII even where some of it is not: what is left is short, and looked through eight times.
        rest = text.encode(errors="replace").translate(None, _ASCII).decode()
        for name, pattern in RARER_SCRIPTS:
            if pattern.search(rest):
                return name
    return "latin" if _LATIN.search(text) else ""


def looks_like_code(line: str) -> bool:
    """Whether a line, stripped and not empty, is code rather than prose."""
    if line[-1] in "{};" or "()" in line or "=>" in line or "::" in line or "==" in line or "</" in line:
        return True
    first = line.split(None, 1)[0]
    return first in _CODE_WORDS and line[-1] not in ".?!"  # a sentence may begin with "if" or "use"
