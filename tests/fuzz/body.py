"""Bodies of requests: refused, or read without trouble and patched exactly."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from switchyard.config.vocabulary import SIGNALS
from switchyard.errors import GatewayError, InvalidRequest
from switchyard.routing.classify.embedded import EmbeddedClassifier
from switchyard.routing.classify.scorer import Scorer, read_weights
from switchyard.routing.request import Body, RequestView
from switchyard.routing.session import identify
from switchyard.routing.signals import Signals
from switchyard.telemetry.record import Record

from .choices import PROTOCOLS, Choices

_EMBEDDED = EmbeddedClassifier(Scorer(read_weights()))


SIGNAL_NAMES = tuple(SIGNALS)


def body(data: bytes) -> None:
    """Any bytes are refused, or read without trouble and patched exactly."""
    choices = Choices(data)
    protocol = PROTOCOLS[choices.below(len(PROTOCOLS))]
    flags = choices.below(8)
    raw = choices.rest()
    carried: dict[str, str] = {}
    if flags & 1:  # the first line is the value of a header that tells the session
        line, _, raw = raw.partition(b"\n")
        name = ("x-codex-turn-metadata", "x-session-id", "user-agent", "x-claude-code-agent-id")[flags >> 1]
        carried[name] = line.decode("latin-1")
    text = raw.decode("utf-8", "surrogateescape")
    value, problem = _oracle(text)
    valid_utf8 = not re.search("[\udc80-\udcff]", text)
    try:
        found = Body(raw)
    except InvalidRequest:
        deep = raw.count(b"[") + raw.count(b"{") > 300  # where the limit of depth lies is the decoder's business
        assert problem or deep or not valid_utf8, f"refused, though it is a JSON object with unique keys: {raw!r}"
        return
    assert not problem, f"taken, though {problem}: {raw!r}"
    if value is not None:
        _check_patches(found, raw, value)
    _read_all(RequestView(protocol, found, carried, "", "127.0.0.1", protocol == "messages" and bool(flags & 4)))


class _Number(str):
    """A number as it is written."""

    __slots__ = ()


class _Pairs(list[Any]):
    """An object with its pairs in order, repeated keys included."""


def _oracle(text: str) -> tuple[dict[str, Any] | None, str]:
    """The object that the text stands for, by Python's own reader, and what is wrong with it; neither when it is too deep."""

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is no JSON")

    try:
        value = json.loads(text, parse_float=_Number, parse_int=_Number, parse_constant=refuse, object_pairs_hook=_Pairs)
    except RecursionError:
        return None, ""
    except ValueError as error:
        return None, f"it is no JSON: {error}"
    if not isinstance(value, _Pairs):
        return None, "it is no object"
    names = [_as_read(name) for name, _ in value]
    if len(set(names)) < len(names):
        return None, "a key is there twice"
    return dict(value), ""


def _as_read(name: str) -> str:
    """A name as the gateway sees it: halves of surrogate pairs that were escaped are all one."""
    return re.sub("[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]", "\ufffd", name)


CHANGES: tuple[dict[str, bytes], ...] = (
    {},
    {"model": b'"acme/small"'},
    {"model": b'"acme/small"', "max_tokens": b"16"},
    {"stream_options": b'{"include_usage":true}', "model": b'"m"'},
)


def _check_patches(found: Body, raw: bytes, value: dict[str, Any]) -> None:
    for changes in CHANGES:
        patched = found.patched(changes)
        new, problem = _oracle(patched.decode("utf-8", "surrogateescape"))
        assert not problem, problem
        if new is None:  # too deep for Python's reader from here
            continue
        wanted = dict(value)
        wanted.update({name: _oracle_value(text) for name, text in changes.items()})
        assert list(new.items()) == list(wanted.items()), (changes, patched)
        if len(changes) <= 1:  # one place changed: what is before and after it is as it was
            allowed = len(changes.get("model", b"")) + (len(b',"model":') if "model" not in value else 0)
            before = _common(raw, patched)
            after = _common(raw[::-1][: len(raw) - before], patched[::-1][: len(patched) - before])
            assert before + after >= len(patched) - allowed, (raw, patched)
    assert found.patched({}) == raw


def _oracle_value(text: bytes) -> Any:
    pairs, _ = _oracle('{"x":' + text.decode() + "}")
    assert pairs is not None
    return pairs["x"]


def _common(one: bytes, other: bytes) -> int:
    limit = min(len(one), len(other))
    if one[:limit] == other[:limit]:
        return limit
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _read_all(view: RequestView) -> None:
    """All that routing reads, each fact on its own: one that is refused keeps none of the others from being read."""
    signals = Signals(view)
    session_key = ""
    for read in _readings(view, signals):
        try:
            read()
        except GatewayError:
            continue
    try:
        session_key = identify(signals).key
        assert re.fullmatch("[0-9a-f]{16}", session_key)
        assert identify(Signals(view)).key == session_key
    except GatewayError:
        pass
    known = signals.known()
    for name, value in known.items():
        kind = {"bool": bool, "int": int, "float": float, "text": str}[SIGNALS[name].kind]
        assert type(value) is kind, (name, value)
    record = Record("req-1", "/v1/x", view.protocol, 1.0, signals=known, session=session_key)
    line = msgspec.json.encode(record.as_line())
    assert b"\n" not in line
    json.loads(line)


def _readings(view: RequestView, signals: Signals) -> Iterator[Callable[[], Any]]:
    yield lambda: view.items
    yield lambda: view.tool_names
    for name in ("model", "previous_response_id", "stream_options", "metadata"):
        yield lambda name=name: view.body.value(name)
    for name in SIGNAL_NAMES:
        yield lambda name=name: signals.get(name)
    yield lambda: signals.opening
    yield lambda: signals.last_human_text.encode()
    yield lambda: signals.system_text.encode()
    yield lambda: _run(_EMBEDDED.score(signals))


def _run(coroutine: Any) -> Any:
    """A coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    finally:
        coroutine.close()
    raise AssertionError("it waits for something")
