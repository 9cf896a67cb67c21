"""Images and sounds in a message: which kinds there are, where they can stand, what they weigh."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from switchyard.routing.request import NULL, is_list, raw_parts

MEDIA_DEPTH = 8  # a tool result in a message is one; no protocol nests deeper
MEDIA_TOKENS = 1_000  # a mid-sized picture; models differ between 250 and 1,600
MEDIA_KINDS = {
    "image_url": "image", "image": "image", "input_image": "image",
    "input_audio": "audio", "audio": "audio", "audio_url": "audio",
}  # fmt: skip
_MEDIA_MARK = re.compile(rb'"type"\s*:\s*"(?:image_url|image|input_image|input_audio|audio|audio_url)"')


def find_media(content: msgspec.Raw, depth: int = 0) -> Iterator[tuple[str, int]]:
    """Kind and bytes of each media part of a message's content, those inside tool results included."""
    if not is_list(content) or depth > MEDIA_DEPTH or not _MEDIA_MARK.search(memoryview(content)):
        return
    for raw, part in raw_parts(content):
        if part.type in MEDIA_KINDS:
            yield MEDIA_KINDS[part.type], len(memoryview(raw))
        elif part.content is not NULL:
            yield from find_media(part.content, depth + 1)
