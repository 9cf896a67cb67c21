"""A head of the user's own: what it speaks about, how calibration enters, and files that are none."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from switchyard.routing.classify.base import calibrate
from switchyard.routing.classify.embedded import EmbeddedClassifier
from switchyard.routing.classify.scope import LONGEST
from switchyard.routing.classify.scorer import WEIGHTS, BadWeights, Scorer, encode_weights, load_scorer, read_weights

from ...build import chat, signals_of

SHIPPED = read_weights()
OWN = Scorer(structs.replace(SHIPPED, scope="own"))
QUESTION = "What is the difference between a virus and a bacterium?"
TOOL = {"type": "function", "function": {"name": "run", "parameters": {}}}


def ask(run, classifier, text, **fields):
    return run(classifier.score(signals_of(chat(("user", text), **fields))))


def test_it_speaks_where_the_shipped_one_is_silent(run):
    shipped, own = EmbeddedClassifier(Scorer(SHIPPED)), EmbeddedClassifier(OWN)
    for text, fields in ((QUESTION, {"tools": [TOOL]}), ("Write the answer to the question that is asked here", {})):
        assert ask(run, shipped, text, **fields).p is None
        outcome = ask(run, own, text, **fields)
        assert 0.02 <= outcome.p <= 0.98
        assert outcome.why == "learned from your own prompts"
    assert ask(run, own, "hi").p != 0.9, "no prior: it was learned"
    assert ask(run, own, "Grr zzxq blorf quux frobnicate").why == "too few of its words were learned from"
    assert ask(run, own, "").why.startswith("no text")
    assert ask(run, own, "the " * LONGEST).p is not None  # its beginning is read


@given(st.floats(0.1, 5), st.floats(-5, 5))
def test_calibration_acts_on_every_score(scale, bias):
    import asyncio

    async def both(text):
        signals = signals_of(chat(("user", text)))
        return [(await EmbeddedClassifier(Scorer(SHIPPED), *how).score(signals)).p for how in ((), (bias, scale))]

    for text in (QUESTION, "Thanks, that helps."):
        raw, calibrated = asyncio.run(both(text))
        assert calibrated == pytest.approx(calibrate(raw, bias, scale))


def test_the_shipped_file_is_written_as_it_is_read():
    assert encode_weights(SHIPPED) == WEIGHTS.read_bytes()
    assert b'"scope": "own"' in encode_weights(OWN.weights)


def test_a_file_that_is_known_is_not_made_again(tmp_path):
    path = tmp_path / "head.json"
    path.write_bytes(encode_weights(OWN.weights))
    known = load_scorer(str(path))
    assert load_scorer(str(path), known) is known
    path.write_bytes(encode_weights(structs.replace(OWN.weights, slope=-1.0)))
    assert load_scorer(str(path), known) is not known
    assert load_scorer(None).weights == SHIPPED


def broken():
    def change(path, value):
        fields = json.loads(WEIGHTS.read_bytes())
        at = fields
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = value
        return json.dumps(fields).encode()

    yield b""
    yield b"[]"
    yield b"{}"
    yield b"\xff\xfe"
    for path, value in (
        (("words",), "one two"), (("curve",), [1.0]), (("mean",), [0.0]), (("spread", 3), 0.0), (("only_big", 0), [1.0]),
        (("word_scores", "only_big", 0), 1 << 20), (("trees", 0, "feature", 0), 99), (("trees", 0, "left", 0), 0),
        (("trees", 0, "left", 0), 99), (("trees", 0, "leaves"), [0.1]), (("trees", 0, "leaves"), [0.1] * 20),
        (("trees", 0, "right", 0), -1), (("trees", 0, "threshold"), []), (("slope",), 1e400), (("slope",), "x"),
        (("scope",), "all"),
        (("pairs",), "a b c"),
    ):  # fmt: skip
        yield change(path, value)


@pytest.mark.parametrize("content", [*broken()], ids=lambda _: "x")
def test_what_is_no_head_is_refused_with_a_reason(tmp_path, content):
    path = tmp_path / "head.json"
    path.write_bytes(content)
    with pytest.raises(BadWeights, match=f"{path} holds no weights as `switchyard calibrate --train` writes them: "):
        load_scorer(str(path))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(BadWeights, match="can't be read: No such file"):
        load_scorer(str(tmp_path / "nope.json"))
    with pytest.raises(BadWeights, match="can't be read: Is a directory"):
        load_scorer(str(tmp_path))
