"""What an emulated engine reads of a request: its text, how long its answer will be, and the keys of its cache blocks. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from hashlib import blake2b
from random import Random
from typing import Any

import msgspec

NATURAL_TOKENS = 200
"""Median length of an answer that ends by itself; a request's own text decides how long it is."""
SPREAD = 0.6
"""Of those lengths: standard deviation of their logarithm."""


class Asked(msgspec.Struct):
    """The fields of a request that an emulated engine looks at."""

    model: str = ""
    messages: Any = None
    system: Any = None
    prompt: Any = None
    input: Any = None
    instructions: Any = None
    tools: Any = None
    stream: bool | None = False
    stream_options: dict[str, Any] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = False

    @property
    def limit_tokens(self) -> int | None:
        """The most tokens that the client wants."""
        return self.max_completion_tokens or self.max_output_tokens or self.max_tokens

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with usage."""
        return bool((self.stream_options or {}).get("include_usage"))

    def text(self) -> str:
        """The whole prompt as one text that the next turn of the conversation goes on from."""
        return "\n".join(_texts([self.tools, self.system, self.instructions, self.messages, self.prompt, self.input]))


def read_asked(body: bytes) -> Asked:
    """Read a request.

    Raises:
        msgspec.MsgspecError: it is no request.
    """
    asked: Asked = _DECODER.decode(body)
    return asked


_DECODER = msgspec.json.Decoder(Asked)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def answer_length(asked: Asked, text: bytes, room: int) -> tuple[int, bool]:
    """Tokens of the answer, and whether it ends at a limit: the same request always gets the same."""
    limit = max(1, min(asked.limit_tokens or room, room))
    if asked.ignore_eos:
        return limit, True
    seed = int.from_bytes(blake2b(text, digest_size=8).digest(), "big")
    natural = max(1, asked.min_tokens or 1, round(math.exp(Random(seed).gauss(math.log(NATURAL_TOKENS), SPREAD))))
    return (limit, True) if natural >= limit else (natural, False)


def block_keys(text: bytes, size: int) -> list[bytes]:
    """A key for each full block of a prompt, which stands for all before it, too."""
    keys: list[bytes] = []
    digest = blake2b(digest_size=16)
    for begin in range(0, len(text) - size + 1, size):
        digest.update(text[begin : begin + size])
        keys.append(digest.digest())
    return keys
