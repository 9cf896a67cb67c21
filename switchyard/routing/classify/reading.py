"""A text as the embedded classifier reads it: words, pairs of neighbouring words, and a few numbers. Pure.

Training (`tools/train_embedded`) reads with this, so that it can't read a text in another way than serving does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import log

SURFACE = (
    "length", "words", "characters a word", "share of digits", "numbers", "question marks", "commas", "full stops", "quotes",
    "dollars", "signs of arithmetic", "brackets", "share of capitals", "lines", "share of different words", "blanks",
)  # fmt: skip
"""What `Reading.surface` holds, in this order. Counts of marks are per word; lengths and numbers are logarithms."""
PLAIN, NUMBERS, CHOICES = range(3)  # kinds of text; the linear part weighs `SURFACE` differently for each
PAIRED_WORDS = 128  # of a longer text, pairs are read at the beginning and at the end

_DIGITS = b"0123456789"
_CAPITALS = bytes(range(ord("A"), ord("Z") + 1))
_WORD_BYTES = bytes(c if (chr(c).isalnum() and c < 128) or c in b"_'" or c >= 0xC0 else 32 for c in range(256))
_DIGIT_BYTES = bytes(c if c in _DIGITS else 32 for c in range(256))
_CHOICES = re.compile(r"\n\(?B[.):] ")
_QUOTES = (("\u2018", "'"), ("\u2019", "'"), ("\u201c", '"'), ("\u201d", '"'))


class Reading:
    """A text as the model sees it.

    Args:
        text: what the human asked.

    Attributes:
        words: in lower case, in order.
        unique: the same, each once.
        paired: those whose neighbours are read as well.
        surface: see `SURFACE`.
        kind: PLAIN, NUMBERS (two or more of them) or CHOICES (answers to choose from).
    """

    __slots__ = ("kind", "paired", "surface", "unique", "words")

    def __init__(self, text: str) -> None:
        if not text.isascii():
            for curly, plain in _QUOTES:
                text = text.replace(curly, plain)
        words = self.words = split_words(text)
        unique = self.unique = set(words)
        half = PAIRED_WORDS // 2
        self.paired = words if len(words) <= PAIRED_WORDS else words[:half] + words[-half:]
        length, many = len(text) or 1, len(words) or 1
        raw = text.encode("latin-1", "replace")
        count = text.count
        lines = count("\n")
        numbers = len(raw.translate(_DIGIT_BYTES).split())
        self.surface = (
            log(length + 1),
            log(many),
            length / many,
            (length - len(raw.translate(None, _DIGITS))) / length,
            log(numbers + 1),
            count("?") / many,
            count(",") / many,
            count(".") / many,
            count('"') / many,
            count("$") / many,
            (count("=") + count("+") + count("*") + count("/") + count("^")) / many,
            count("(") / many,
            (length - len(raw.translate(None, _CAPITALS))) / length,
            float(lines),
            len(unique) / many,
            count("_") / many,
        )
        if lines and _CHOICES.search(text):
            self.kind = CHOICES
        else:
            self.kind = NUMBERS if numbers > 1 else PLAIN

    @property
    def pairs(self) -> Iterator[tuple[str, str]]:
        """Neighbouring words."""
        return zip(self.paired, self.paired[1:], strict=False)


def split_words(text: str) -> list[str]:
    """Runs of letters, digits, `_` and `'`, in lower case; letters beyond Latin-1 part words."""
    return text.lower().encode("latin-1", "replace").translate(_WORD_BYTES).decode("latin-1").split()


def text_size(reading: Reading) -> int:
    """How many words and pairs a text's scores are spread over."""
    return len(reading.unique) + len(reading.paired) or 1
