"""What a verdict is about: what changes a hash, and what doesn't."""

import pytest

from switchyard.routing.fingerprint import differing, fingerprint

from ..build import policy_of

BASE = """\
version: 1
pools:
  small: {model: s, replicas: [http://127.0.0.1:8001], limits: {in_flight: 4}}
  big: {model: b, replicas: [http://127.0.0.1:8002]}
  judge: {model: j, replicas: [http://127.0.0.1:8003]}
routes:
  auto:
    aliases: [gpt-*]
    rules: [{when: {images: true}, use: big, why: blind}]
    classify: [{type: embedded}, {type: model, pool: judge}]
    choose: [{p_at_least: 0.6, use: small}, {use: big}]
  other: {use: big}
"""


def hashes(text, weights="one"):
    policy = policy_of(text)
    return fingerprint(policy, policy.routes["auto"], lambda path: weights if path is None else f"content of {path}")


NOTHING = [
    ("version: 1", "# words\nversion: 1"),
    ("{p_at_least: 0.6, use: small}", "{use: small,   p_at_least: 0.60}   "),
    ("8001]", "8001, http://127.0.0.1:8009]"),
    ("in_flight: 4", "in_flight: 40"),
    ("[gpt-*]", "[claude-*]"),
    ("why: blind", "why: it sees nothing"),
    ("other: {use: big}", "other: {use: small}"),
    ("{use: big}]\n", "{use: big}]\n    otherwise: big\n"),
    ("{type: embedded}", "{type: embedded, scale: 1.0, bias: 0}"),
    ("{type: model, pool: judge}", "{type: model, pool: judge, cache_size: 7}"),
    ("aliases: [gpt-*]\n", "aliases: [gpt-*]\n    decide_per: user_turn\n"),
]
SOMETHING = [
    ("model: s,", "model: s2,", ["pools"]),
    ("{model: b,", "{model: b, context: 4096,", ["pools"]),
    ("{model: b,", "{model: b, accepts: [tools],", ["pools"]),
    ("model: j,", "model: j2,", ["classifiers"]),
    ("{type: embedded}", "{type: embedded, scale: 2}", ["classifiers"]),
    ("{type: embedded}", "{type: embedded, weights: w}", ["classifiers"]),
    ("pool: judge}", "pool: judge, prompt: 'good? {task}'}", ["classifiers"]),
    ("{type: embedded}, {type: model, pool: judge}", "{type: model, pool: judge}, {type: embedded}", ["classifiers"]),
    ("0.6,", "0.61,", ["rules or thresholds"]),
    ("images: true", "images: false", ["rules or thresholds"]),
    ("{use: big}]\n", "{use: big}]\n    otherwise: small\n", ["rules or thresholds"]),
    ("{use: big}]\n", "{use: big}]\n    share: {pool: big, hold: 0.5}\n", ["rules or thresholds"]),
    ("{use: big}]\n", "{use: big}]\n    check: {tool_calls: escalate}\n", ["rules or thresholds"]),
    ("use: small}, {use: big}", "use: big}, {use: small}", ["rules or thresholds"]),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new"), NOTHING)
def test_what_does_not_matter(old, new):
    assert old in BASE
    assert hashes(BASE.replace(old, new, 1)) == hashes(BASE)


@pytest.mark.parametrize(("old", "new", "words"), SOMETHING)
def test_what_matters_and_which_part_it_is(old, new, words):
    assert old in BASE
    assert differing(hashes(BASE), hashes(BASE.replace(old, new, 1))) == words


def test_weights_count_by_their_content():
    assert differing(hashes(BASE, "one"), hashes(BASE, "two")) == ["classifiers"]


def test_the_hashes_are_the_same_in_every_process_and_version():
    """They stand in users' files: a change here makes every verdict look outdated."""
    assert hashes(BASE).model_dump() == {
        "pools": "8d2879ea7cb0", "classifier": "2c52d6704766", "choosing": "2c584e440b7e",
    }  # fmt: skip
