"""Counting a prompt's tokens with a model's own tokenizer, where the estimate can't tell whether it fits.

What is counted are the texts that become prompt, as the body has them: messages, system text, tools. A chat template adds a
few tokens to each message, which are allowed for. So a count is near the engine's, and rather below it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from functools import partial
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from switchyard.errors import GatewayError
from switchyard.routing.media import MEDIA_KINDS, MEDIA_TOKENS
from switchyard.routing.request import RequestView
from switchyard.routing.signals import PROMPT_FIELDS

Count = Callable[[Sequence[str]], int]
"""Tokens of some texts together. May take a while: called in a thread."""
MESSAGE_TOKENS = 3  # of a chat template around each message: its beginning, its role, its end
_NO_TEXT = frozenset({"role", "type", "id", "call_id", "tool_call_id", "tool_use_id", "status", "signature", "cache_control"})
_AS_JSON = frozenset({"tools", "input_schema", "input", "parameters"})  # templates write these out as JSON


def why_no_tokenizer(path: str) -> str | None:
    """What keeps a pool's `tokenizer` from being used here, as a line with what to do; None when nothing does."""
    if find_spec("tokenizers") is None:
        return "a tokenizer needs the package tokenizers: pip install 'switchyard-gateway[tokenizer]'"
    if not Path(path).is_file():
        return f"{path} is not there: name the tokenizer.json of the pool's model"
    return None


class FileCount:
    """A `Count` by a `tokenizer.json`.

    Args:
        encode: gives the tokens of each text.
        digest: of the file's content.
    """

    def __init__(self, encode: Callable[[list[str]], Sequence[Sized]], digest: str) -> None:
        self._encode = encode
        self.digest = digest

    def __call__(self, texts: Sequence[str]) -> int:
        """Tokens of the texts together."""
        return sum(map(len, self._encode(list(texts))))


def load_tokenizer(path: str, known: FileCount | None = None) -> FileCount:
    """A count by a file.

    Args:
        path: of a `tokenizer.json`.
        known: made from it before; it is given back while the file is the same.

    Raises:
        ValueError: the file is none, or can't be read.
    """
    from tokenizers import Tokenizer

    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"{path} can't be read: {error.strerror}") from None
    digest = blake2b(raw).hexdigest()
    if known is not None and known.digest == digest:
        return known
    try:
        tokenizer = Tokenizer.from_buffer(raw)
    except Exception as error:  # noqa: BLE001  # the package raises nothing narrower
        raise ValueError(f"{path} is no tokenizer.json: {error}") from None
    return FileCount(partial(tokenizer.encode_batch, add_special_tokens=False), digest)


def count_prompt(view: RequestView, count: Count) -> int:
    """Tokens of a request's prompt."""
    texts: list[str] = []
    extra = 0
    for name in PROMPT_FIELDS:
        if name not in view.body.fields:
            continue
        try:
            value = view.body.value(name)
        except GatewayError:  # unreadable in a way that the engine has to judge
            continue
        if name == "tools":
            texts += map(_as_json, value if isinstance(value, list) else [value])
            continue
        if isinstance(value, list):
            extra += MESSAGE_TOKENS * len(value)
        for found in _texts(value):
            if found is None:
                extra += MEDIA_TOKENS
            else:
                texts.append(found)
    return count(texts) + extra


def _texts(value: Any) -> Iterator[str | None]:
    """Every text in a value, in any order; None for an image or a sound."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            if value:
                yield value
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            if str(value.get("type")) in MEDIA_KINDS:
                yield None
                continue
            for name, inner in value.items():
                if name in _AS_JSON and isinstance(inner, dict):
                    yield _as_json(inner)
                elif name not in _NO_TEXT:
                    waiting.append(inner)


def _as_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
