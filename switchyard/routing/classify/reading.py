"""A text as the embedded classifier reads it: words, pairs of neighbouring words, and a few numbers. Pure.

Training (`tools/train_embedded`) reads with this, so that it can't read a text in another way than serving does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import log

from switchyard.routing.lazy import lazy

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
        numbers: runs of digits.
        kind: PLAIN, NUMBERS (two or more of them) or CHOICES (answers to choose from).
    """

    def __init__(self, text: str) -> None:
        if not text.isascii():
            for curly, plain in _QUOTES:
                text = text.replace(curly, plain)
        words = self.words = split_words(text)
        self.unique = set(words)
        half = PAIRED_WORDS // 2
        self.paired = words if len(words) <= PAIRED_WORDS else words[:half] + words[-half:]
        self._text = text
        self._raw = text.encode("latin-1", "replace")
        self.numbers = len(self._raw.translate(_DIGIT_BYTES).split())
        self.kind = CHOICES if has_choices(text) else NUMBERS if self.numbers > 1 else PLAIN

    @lazy
    def surface(self) -> tuple[float, ...]:
        """See `SURFACE`. Most texts are turned away before anybody asks for it."""
        text, raw = self._text, self._raw
        length, many = len(text) or 1, len(self.words) or 1
        count = text.count
        return (
            log(length + 1),
            log(many),
            length / many,
            (length - len(raw.translate(None, _DIGITS))) / length,
            log(self.numbers + 1),
            count("?") / many,
            count(",") / many,
            count(".") / many,
            count('"') / many,
            count("$") / many,
            (count("=") + count("+") + count("*") + count("/") + count("^")) / many,
            count("(") / many,
            (length - len(raw.translate(None, _CAPITALS))) / length,
            float(count("\n")),
            len(self.unique) / many,
            count("_") / many,
        )

    @property
    def pairs(self) -> Iterator[tuple[str, str]]:
        """Neighbouring words."""
        return zip(self.paired, self.paired[1:], strict=False)


def has_choices(text: str) -> bool:
    """Whether a text gives answers to choose from."""
    return "\n" in text and _CHOICES.search(text) is not None


def split_words(text: str) -> list[str]:
    """Runs of letters, digits, `_` and `'`, in lower case; letters beyond Latin-1 part words."""
    return text.lower().encode("latin-1", "replace").translate(_WORD_BYTES).decode("latin-1").split()


def text_size(reading: Reading) -> int:
    """How many words and pairs a text's scores are spread over."""
    return len(reading.unique) + len(reading.paired) or 1
