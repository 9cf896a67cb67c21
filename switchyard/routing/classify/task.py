"""What a model is shown of a request: the human's words and the names of the tools, cut to a length.

Never the whole body: system text, tool results and reminders of the harness are tens of thousands of tokens and not the
human's ask. The last message alone would not do either: "yes, do it" means what was said before.
"""

from __future__ import annotations

from switchyard.routing.harness import clean
from switchyard.routing.request import content_parts
from switchyard.routing.signals import BYTES_PER_TOKEN, Signals

EARLIER_TURNS = 2
LONG_CONTENT_BYTES = 256 * 1024  # an earlier message with pictures in it is not read again for its few words
_EARLIER_SHARE = 4  # a quarter of the length for all earlier turns together
_TOOLS_SHARE = 8


def earlier_texts(signals: Signals, most: int = EARLIER_TURNS) -> list[str]:
    """What humans said before the last message of theirs, oldest first, without the harness's additions."""
    found: list[str] = []
    for item in reversed(signals.view.items):
        if item.role != "user" or len(memoryview(item.content)) > LONG_CONTENT_BYTES:
            continue
        text = clean("\n".join(p.text for p in content_parts(item.content) if p.text))
        if text:
            found.append(text)
        if len(found) > most:
            break
    return found[:0:-1]


def describe_task(signals: Signals, most_tokens: int) -> str:
    """The human's last words, with a few of those before and the tools' names where there are any.

    Args:
        signals: of a request with text by a human.
        most_tokens: about how long it may get, in the estimate of `signals.BYTES_PER_TOKEN`.
    """
    last = signals.last_human_text
    left = budget = characters_for(last, most_tokens)
    tools = ""
    if signals.view.tool_names:
        tools = f"\n\nTools it may call: {shorten(', '.join(signals.view.tool_names), budget // _TOOLS_SHARE)}"
        left -= len(tools)
    before = ""
    if earlier := earlier_texts(signals):
        each = budget // _EARLIER_SHARE // len(earlier)
        said = "\n".join(f"- {' '.join(shorten(text, each).split())}" for text in earlier)
        before = f"Said before:\n{said}\n\nSaid now:\n"
        left -= len(before)
    return f"{before}{shorten(last, max(64, left))}{tools}"


def plain_task(signals: Signals, most_tokens: int) -> str:
    """The human's words alone, oldest first: for a classifier that was trained on prompts, not on descriptions."""
    last = signals.last_human_text
    budget = characters_for(last, most_tokens)
    earlier = earlier_texts(signals)
    each = budget // _EARLIER_SHARE // max(1, len(earlier))
    pieces = [shorten(text, each) for text in earlier]
    left = budget - sum(len(p) + 1 for p in pieces)
    return "\n".join([*pieces, shorten(last, max(64, left))])


def characters_for(text: str, tokens: int) -> int:
    """So many characters of this text are about so many tokens: a script with longer characters has fewer."""
    size = len(text.encode(errors="replace"))
    return tokens * BYTES_PER_TOKEN * len(text) // size if size else tokens * BYTES_PER_TOKEN


def shorten(text: str, characters: int) -> str:
    """Beginning and end of a text that is too long, with a mark between."""
    if len(text) <= characters:
        return text
    half = characters // 2 - 3
    return f"{text[:half]}\n...\n{text[-half:]}" if half > 0 else text[:characters]
