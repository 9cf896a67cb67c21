"""What the embedded classifier may speak about: which texts are like those that were learned from, and which are trivial."""

from __future__ import annotations

import re

from switchyard.routing.classify.reading import CHOICES, NUMBERS, Reading, split_words
from switchyard.routing.classify.scorer import known_shares

LONGEST = 3_000  # characters; of the texts learned from, one in a thousand is longer
TOO_LONG = f"over {LONGEST} characters"
CODE = "there is code in it"
WORK = "it asks for a text or a change, not for a short answer"
NO_QUESTION = "it is no question"
UNKNOWN_WORDS = "too few of its words were learned from"
LEAST_KNOWN_WORDS = 0.7
LEAST_KNOWN_PAIRS = 0.2

TRIVIAL_CHARACTERS = 60

_SENTENCES = re.compile(r"[.?!:;,\n]+")


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_WORK = _set(
    """
    add adjust analyse analyze answer apply ask automate brainstorm build change check clean compare compose configure
    convert create critique debug define delete deploy derive describe design develop discuss document draft edit elaborate
    evaluate examine expand explain extract fix format generate give help implement improve inspect install integrate
    investigate make merge migrate modify move optimise optimize organise organize outline paraphrase plan port prepare
    produce propose prove provide read recommend refactor remove rename reorganise reorganize replace resolve review
    rewrite run search set setup show simplify sketch summarise summarize suggest tell test transform translate try update
    upgrade use verify walk write
    """
)
"""What asks for a text or a change begins with. Nothing was learned about those."""
_LEADS = _set(
    """
    please and then now also just to you i i'd we kindly let's lets ok okay so can could would will should do how want need
    like me us hi hello hey
    """
)
"""What may stand before such a verb: "can you please", "how do I"."""
_ASKING = _set("what which who whom whose when where why how is are was were do does did can could would should will has have")
_CODE_MARKS = ("`", "{", "}", "()", "::", "->", "=>", "==", "!=", "</", " ./", "~/")
_PATH = re.compile(r"(?:^|\s)/\w")
_FILE_NAME = re.compile(r"\.(?:py|js|ts|tsx|rs|go|c|h|cpp|java|json|ya?ml|toml|md|sh|sql|html|css)\b")
_COMPUTING = _set("calculate compute determine find solve")  # with numbers in it, that is a question as well
_LEANING = _set(
    """
    it its this that these those they them their he she him his her here there again else same above before more another
    other both either instead why
    """
)
"""What a text needs the conversation for."""
_COURTESY = _set(
    """
    hi hello hey thanks thank thx you very so much a lot that this it helps helped works worked is was great good perfect
    nice cool awesome excellent wonderful bye goodbye morning afternoon evening night day have see later cheers there all
    again for the your help
    """
)
_COURTESY_HEART = _set("hi hello hey thanks thank thx bye goodbye cheers morning afternoon evening")
_FEW = _set("a an one two three four five some 1 2 3 4 5")


def trivial(text: str) -> bool:
    """Whether this is a courtesy, or an ask for a few words that no model could get wrong. A prior, not learned.

    "Thanks, that helps." and "List three colours." are; "yes", "commit it" and "List the tests" are not.
    """
    if len(text) > TRIVIAL_CHARACTERS or "\n" in text or not text.isascii():
        return False
    words = split_words(text)
    if not words:
        return False
    if _COURTESY.issuperset(words):
        return not _COURTESY_HEART.isdisjoint(words)
    first = words[0]
    if first == "say":
        return 2 <= len(words) <= 7 and _WORK.isdisjoint(words)
    return first in {"list", "name"} and 3 <= len(words) <= 4 and words[1] in _FEW


def why_not(text: str, reading: Reading) -> str:
    """Why the learned part has nothing to say about a text without code, by its form; empty when it may have."""
    if reading.kind == CHOICES:
        return ""
    if asks_for_work(text, reading):
        return WORK
    return "" if asks(text, reading) else NO_QUESTION


def too_few_known(reading: Reading, sums: tuple[int, int]) -> bool:
    """Whether too little of a text was learned from."""
    words, pairs = known_shares(reading, sums)
    return words < LEAST_KNOWN_WORDS or pairs < LEAST_KNOWN_PAIRS


def has_code(text: str) -> bool:
    """Whether there are marks of code, a path or a file's name in it."""
    for mark in _CODE_MARKS:
        if mark in text:
            return True
    return _FILE_NAME.search(text) is not None or ("/" in text and _PATH.search(text) is not None)


def asks(text: str, reading: Reading) -> bool:
    """Whether this is a question."""
    if "?" in text or (reading.words and reading.words[0] in _ASKING):
        return True
    return reading.kind == NUMBERS and not _COMPUTING.isdisjoint(reading.unique)


def asks_for_work(text: str, reading: Reading) -> bool:
    """Whether a sentence begins with a verb of `_WORK`, words like "can you please" aside."""
    if _WORK.isdisjoint(reading.unique):
        return False
    for sentence in _SENTENCES.split(text.lower()):
        for word in sentence.split(None, 8)[:8]:
            bare = word.strip("\"'([*-")
            if bare in _WORK:
                return True
            if bare not in _LEADS:
                break
    return False


def leans(reading: Reading) -> bool:
    """Whether it may mean something that was said before it."""
    return not _LEANING.isdisjoint(reading.unique)
