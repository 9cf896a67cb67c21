"""The body: bytes stay as they came, single values are replaced in place, duplicate keys and broken JSON are refused."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from switchyard.errors import InvalidRequest
from switchyard.routing.request import Body

from ..json_text import FIELDS, OBJECTS, SPACE, VALUES, Text, spelled, write

MODEL = b'"Qwen/Qwen3"'


def patched_by_hand(text: Text, changes: dict[str, bytes]) -> bytes:
    """What patching should give, from the spans that the writer knows."""
    raw = text.raw
    for start, end, name in sorted(((*text.spans[n], n) for n in changes if n in text.spans), reverse=True):
        raw = raw[:start] + changes[name] + raw[end:]
    missing = [(n, t) for n, t in changes.items() if n not in text.spans]
    close = raw.rindex(b"}")
    added = b",".join(json.dumps(n, ensure_ascii=False).encode() + b":" + t for n, t in missing)
    comma = b"," if missing and text.spans else b""
    return raw[:close] + comma + added + raw[close:]


@given(OBJECTS)
def test_spans_are_where_the_values_stand(text):
    body = Body(text.raw)
    assert set(body.fields) == set(text.spans)
    for name, (start, end) in text.spans.items():
        assert body.size({name}) == end - start
    assert body.size(text.spans) == sum(end - start for start, end in text.spans.values())


@given(OBJECTS)
@example(Text(b"{}", {}))
@example(Text(b" { } ", {}))
@example(Text(b'{"mod\\u0065l":1e999}', {"model": (14, 19)}))
def test_only_the_value_of_model_changes(text):
    found = Body(text.raw).patched({"model": MODEL})
    if "model" in text.spans:
        start, end = text.spans["model"]
        assert found[:start] == text.raw[:start]
        assert found[start : start + len(MODEL)] == MODEL
        assert found[start + len(MODEL) :] == text.raw[end:]
    assert found == patched_by_hand(text, {"model": MODEL})
    assert Body(found).text("model") == "Qwen/Qwen3"


CHANGES = st.dictionaries(
    st.sampled_from(["model", "max_tokens", "stream", "stream_options", "a", "näme"]), st.sampled_from([b"1", MODEL, b"{}"])
)


@given(OBJECTS, CHANGES)
def test_several_values_change_at_once_and_missing_ones_are_added(text, changes):
    found = Body(text.raw).patched(changes)
    assert found == patched_by_hand(text, changes)
    after = Body(found)
    for name, value in changes.items():
        assert bytes(after.fields[name]) == value


@given(OBJECTS)
def test_no_change_gives_the_same_bytes(text):
    assert Body(text.raw).patched({}) == text.raw


@given(FIELDS.filter(bool), st.data())
def test_a_key_given_twice_is_refused_at_any_place_in_any_spelling(fields, data):
    name = json.loads(data.draw(st.sampled_from(fields))[1])
    again = (data.draw(SPACE), data.draw(spelled(st.just(name))), b"", data.draw(SPACE), data.draw(VALUES), b"")
    fields = [*fields]
    fields.insert(data.draw(st.integers(0, len(fields))), again)
    with pytest.raises(InvalidRequest, match="twice"):
        Body(write(fields).raw)


@pytest.mark.parametrize(
    "raw",
    [
        rb'{"model":"a","model":"a"}',
        rb'{"model":"a","mod\u0065l":"b"}',
        rb'{"\u006dodel":"a","x":1,"model":"a"}',
        rb'{"a":12,"a":1}',
        rb'{"a":1,"a":12}',
        rb'{"a":1,"b":2,"a":1}',
        rb'{"a":{"b":1},"b":1,"b":1}',
        rb'{"":1,"":1}',
        rb'{"a":"\ud83d","a":2}',
    ],
)
def test_known_ways_to_hide_a_second_model(raw):
    with pytest.raises(InvalidRequest, match="twice"):
        Body(raw)


def test_a_repeated_key_further_in_is_the_engines_to_judge():
    assert Body(b'{"a":{"b":1,"b":2}}').patched({"a": b"0"}) == b'{"a":0}'


NOT_AN_OBJECT = [b"", b" \n", b"[]", b"null", b'"text"', b"1", b"{}{}", b'{"a":1}x', b"\xef\xbb\xbf{}", b"\0", b'{"a":1}\0']
MALFORMED = [
    b"{", b'{"a"}', b'{"a":}', b'{"a":1,}', b'{,"a":1}', b'{"a" 1}', b"{a:1}", b"{'a':1}", b'{"a":01}', b'{"a":1.}', b'{"a":-}',
    b'{"a":NaN}', b'{"a":tru}', b'{"a":"\x01"}', b'{"a":"\\x"}', b'{"a":"\\ud83"}', b'{"a":"open', b'{"a":[1}',
    b'{"a":1 "b":2}',    b'{"a\xff":1}', b'{"a":' + b"[" * 100_000, b'{"a":' + b"[" * 5_000 + b"]" * 5_000 + b"}",
]  # fmt: skip


@pytest.mark.parametrize("raw", NOT_AN_OBJECT + MALFORMED, ids=lambda raw: repr(raw[:20]))
def test_anything_but_one_json_object_is_refused(raw):
    with pytest.raises(InvalidRequest) as caught:
        Body(raw)
    assert caught.value.status == 400
    assert "body" in caught.value.message


@given(st.binary(max_size=60))
def test_no_bytes_raise_anything_else(raw):
    _read(raw)


def _read(raw: bytes) -> Body | None:
    try:
        return Body(raw)
    except InvalidRequest:
        return None


def _judge(raw: bytes) -> bool | None:
    """Python's verdict on the same bytes; None where it can't be compared."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return None  # broken UTF-8 inside a value is the engine's to judge

    def no_constant(name: str) -> None:
        raise ValueError(name)

    def no_repeat(pairs: list) -> dict:
        return dict(pairs)

    try:
        return isinstance(json.loads(text, parse_constant=no_constant, object_pairs_hook=no_repeat), dict)
    except ValueError:
        return False


@given(
    OBJECTS,
    st.integers(0, 200),
    st.sampled_from([b"", b'"', b"{", b"}", b",", b":", b"\\", b"0", b"\xff", b" "]),
    st.booleans(),
)
def test_after_one_wrong_byte_the_verdict_is_pythons(text, at, byte, replace):
    at %= len(text.raw)
    raw = text.raw[:at] + byte + text.raw[at + replace :]
    judged, body = _judge(raw), _read(raw)
    if judged is False:
        assert body is None
    elif body is None and judged:
        with pytest.raises(InvalidRequest, match="twice"):
            Body(raw)


@given(OBJECTS)
def test_values_are_what_python_reads(text):
    body = Body(text.raw)
    read = json.loads(text.raw)
    for name in body.fields:
        if b"1e999" not in text.raw and name in read and "\\ud" not in text.raw.decode().lower():
            assert body.value(name) == read[name]


def test_a_lone_half_of_a_surrogate_pair_passes_and_is_read_as_a_replacement():
    raw = rb'{"model":"a\ud83d","b":"\ud83d\ude00","c":"\\ud83d","d":"\ude00\ud83d"}'
    body = Body(raw)
    assert body.text("model") == "a\ufffd"
    assert body.text("b") == "\U0001f600"
    assert body.text("c") == "\\ud83d"
    assert body.text("d") == "\ufffd\ufffd"
    assert body.patched({"model": b'"x"'}) == raw.replace(rb'"a\ud83d"', b'"x"')


def test_broken_utf8_is_refused_only_where_it_is_read():
    body = Body(b'{"model":"a","x":"\xff"}')
    assert body.patched({"model": b'"b"'}) == b'{"model":"b","x":"\xff"}'
    with pytest.raises(InvalidRequest) as caught:
        body.value("x")
    assert caught.value.param == "x"


@pytest.mark.parametrize("value", [b"1e999", b"-1e999"])
def test_a_number_that_no_float_holds_is_refused_for_what_it_is(value):
    body = Body(b'{"max_tokens":' + value + b"}")
    assert body.patched({"model": b"0"}) == b'{"max_tokens":' + value + b',"model":0}'
    with pytest.raises(InvalidRequest) as caught:
        body.value("max_tokens")
    assert "UTF-8" not in caught.value.message
