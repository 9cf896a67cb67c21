"""How a text looks: in which script it is, and whether a line of it is code."""

from __future__ import annotations

import re

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
SCRIPTS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("han", re.compile(r"[\u4e00-\u9fff]")),
    ("kana", re.compile(r"[\u3040-\u30ff]")),
    ("hangul", re.compile(r"[\uac00-\ud7af]")),
    ("cyrillic", re.compile(r"[\u0400-\u04ff]")),
    ("arabic", re.compile(r"[\u0600-\u06ff]")),
    ("devanagari", re.compile(r"[\u0900-\u097f]")),
    ("greek", re.compile(r"[\u0370-\u03ff]")),
    ("hebrew", re.compile(r"[\u0590-\u05ff]")),
    ("latin", re.compile(r"[A-Za-z]")),
)


def looks_like_code(line: str) -> bool:
    """Whether a line, stripped and not empty, is code rather than prose."""
    if line[-1] in "{};" or "()" in line or "=>" in line or "::" in line or "==" in line or "</" in line:
        return True
    first = line.split(None, 1)[0]
    return first in _CODE_WORDS and line[-1] not in ".?!"  # a sentence may begin with "if" or "use"
