"""What agents put around the human's words, and how to take it out. Each harness marks it with tags of its own."""

from __future__ import annotations

import re

SEEN_TEXT_CHARACTERS = 4_000  # of the human's last text: enough for any surface feature
_HARNESS = re.compile(
    r"<(system-reminder|environment_context|environment_details|user_instructions|command-[a-z-]+|local-command-[a-z]+)>"
)
BILLING = re.compile(r"^x-anthropic-billing-header:[^\n]*\n?")
BILLING_PART = re.compile(rb'x-anthropic-billing-header:(?:[^"\\]|\\[^n])*')


def clean(text: str) -> str:
    """Without the harness's additions; of a long text the beginning and, where the question often stands, the end."""
    text = _both_ends(text, 8 * SEEN_TEXT_CHARACTERS)
    if "<" in text:
        text = _without_harness(text)
    return _both_ends(text.strip(), SEEN_TEXT_CHARACTERS)


def _without_harness(text: str) -> str:
    """Take out what stands between a harness's tags. In one pass: an expression over both tags is quadratic."""
    kept: list[str] = []
    never_closed: set[str] = set()
    at = 0
    for opening in _HARNESS.finditer(text):
        tag = opening[1]
        if opening.start() < at or tag in never_closed:
            continue
        closing = f"</{tag}>"
        end = text.find(closing, opening.end())
        if end < 0:
            never_closed.add(tag)
            continue
        kept.append(text[at : opening.start()])
        at = end + len(closing)
    kept.append(text[at:])
    return "".join(kept)


def _both_ends(text: str, characters: int) -> str:
    if len(text) <= characters:
        return text
    end = characters // 4
    return f"{text[: characters - end - 5]}\n...\n{text[-end:]}"
