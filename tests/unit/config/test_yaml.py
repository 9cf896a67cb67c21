"""The strict reading of YAML: what would surprise its author is refused with line, key and hint (field case F56)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.config.document import MAX_BYTES

from ..build import MINIMAL, policy_of, problems_of

SURPRISES = [
    # value, where it stands, a word of the message or hint
    ("no", "log_prompts", "truth value"),
    ("yes", "log_prompts", "truth value"),
    ("on", "log_prompts", "truth value"),
    ("Off", "log_prompts", "truth value"),
    ("True", "log_prompts", "true or false"),
    ("1:30", "drain_s", "base 60"),
    ("1_000", "max_body_mb", "without"),
    ("0123", "port", "octal"),
    ("0x1F", "port", "decimal"),
    ("0o17", "port", "decimal"),
    ("2026-01-01", "host", "date"),
    ("2026-1-1", "host", "date"),
    (".inf", "drain_s", "default"),
    ("-.INF", "drain_s", "default"),
    (".nan", "drain_s", "default"),
    ("1e3", "max_body_mb", "plain number"),
    ("5.", "drain_s", "plain number"),
    (".5", "drain_s", "plain number"),
    ("+5", "drain_s", "plain number"),
    ("NULL", "host", "null"),
    ("<<", "host", "special meaning"),
]


@pytest.mark.parametrize(("value", "key", "word"), SURPRISES)
def test_a_value_that_yaml_reads_otherwise_is_refused(value, key, word):
    (problem,) = problems_of(MINIMAL + f"server:\n  # a comment\n  {key}: {value}\n")
    assert (problem.line, problem.key) == (11, f"server.{key}")
    assert word in problem.message + problem.hint


@pytest.mark.parametrize("value", ["no", "1:30", "1_000", "0123", "2026-01-01", "1e3", ".inf", "NULL", "true", "12", "null"])
@pytest.mark.parametrize("quote", ["'", '"'])
def test_a_quoted_value_is_a_text_whatever_it_looks_like(value, quote):
    policy = policy_of(MINIMAL.replace("model: s", f"model: {quote}{value}{quote}"))
    assert policy.pools["small"].model == value


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("0", "0"),
        ("1", "1"),
        ("-3", "-3"),
        ("0.5", "0.5"),
        ("true", "true"),
        ("false", "false"),
        ("null", "nothing"),
        ("", "nothing"),
    ],
)
def test_plain_scalars_are_read_and_shown_as_they_are_written(written, shown):
    (problem,) = problems_of(MINIMAL + f"server: {{host: {written}}}\n")
    assert problem.message == f"a text is expected, not {shown}"


@pytest.mark.parametrize("key", ["on", "no", "y", "2026-01-01", "0123"])
def test_a_surprising_key_is_refused(key):
    (problem,) = problems_of(MINIMAL + f"{key}: 1\n")
    assert (problem.line, problem.key) == (9, key)
    assert "YAML reads" in problem.message


DUPLICATES = [
    (MINIMAL + "version: 1\n", 9, "version", 1),
    (MINIMAL.replace("model: s", "model: s\n    model: s2"), 5, "pools.small.model", 4),
    (MINIMAL.replace("  big:", "  small:"), 6, "pools.small", 3),
    (MINIMAL + 'server: {port: 1, "port": 2}\n', 9, "server.port", 9),
]


@pytest.mark.parametrize(("text", "line", "key", "first"), DUPLICATES)
def test_a_key_given_twice_is_refused_and_both_lines_are_named(text, line, key, first):
    (problem,) = problems_of(text)
    assert (problem.line, problem.key, problem.hint) == (line, key, f"first on line {first}")
    assert "twice" in problem.message


@pytest.mark.parametrize("text", ["a:\n\tb: 1\n", "\ta: 1\n", "a:\n  b: 1\n\tc: 2\n", "a:\n \t b: 1\n\tc: 2"])
def test_a_tab_in_the_indentation_is_named(text):
    (problem,) = problems_of(text)
    assert problem.message == "a tab in the indentation"
    assert problem.hint == "indent with spaces"
    assert "\t" in text.splitlines()[problem.line - 1]


# Broken as a whole: one problem, without a key. (text, line, words)
WHOLE = [
    ("", 1, "empty"),
    ("# only a comment\n", 1, "empty"),
    ("- version: 1\n", 1, "mapping"),
    ("just words\n", 1, "mapping"),
    ("null\n", 1, "mapping"),
    ("a: 1\n b: 2\n", 2, "not readable as YAML"),
    ("a: [1, 2\n", 2, "not readable as YAML"),
    ("a: 'open\n", 2, "not readable as YAML"),
    ("a: *nobody\n", 1, "alias"),
    ("a: 1\n---\nb: 1\n", 2, "another document"),
    ("a: \0\n", 1, "not readable as YAML"),
    ("a: &x [*x]\n", 1, "deep"),
    ("a: &x {b: *x}\n", 1, "deep"),
    ("a: " + "[" * 40 + "]" * 40, 1, "deep"),
    ("[" * 5_000, 1, "depth"),
    (b"\xff\xfea\x00:\x001\x00", 1, "UTF-8"),
    (b"version: 1\nhost: k\xf6ln\n", 1, "not UTF-8 at byte 18"),
    (b"#" * (MAX_BYTES + 1), 1, "bytes"),
]


@pytest.mark.parametrize(("text", "line", "words"), WHOLE, ids=range(len(WHOLE)))
def test_a_file_that_is_broken_as_a_whole_has_one_problem(text, line, words):
    (problem,) = problems_of(text)
    assert (problem.line, problem.key) == (line, "")
    assert words in problem.message


def test_an_alias_bomb_is_refused():
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    (problem,) = problems_of("\n".join(levels))
    assert "more than 20000 values" in problem.message
    assert problem.hint == "write aliases out"


def test_a_plain_alias_is_followed():
    policy = policy_of(MINIMAL.replace("model: s", "model: &m one").replace("model: b", "model: *m"))
    assert policy.pools["big"].model == "one"


def test_merging_keys_is_refused():
    problems = problems_of(MINIMAL + "server:\n  <<: {port: 1}\n")
    assert [(p.line, p.key) for p in problems] == [(10, "server.<<")]


@pytest.mark.parametrize("tag", ["!!python/object:os.system", "!!python/name:os.system", "!secret", "!!binary", "!!set"])
def test_tags_are_refused(tag):
    value = "{a}" if tag == "!!set" else "aGk="
    problems = problems_of(MINIMAL.replace("model: s", f"model: {tag} {value}"))
    assert [(p.line, p.key) for p in problems] == [(4, "pools.small.model")]


@pytest.mark.parametrize("key", ["[1]", "{a: 1}", "? [a]\n"])
def test_a_key_that_is_no_word_is_refused(key):
    problems = problems_of(MINIMAL + f"{key}: 2\n")
    assert [(p.line, p.message) for p in problems] == [(9, "a key must be a word")]


def test_a_byte_order_mark_is_no_part_of_the_first_key():
    assert problems_of(b"\xef\xbb\xbf" + MINIMAL.encode()) == []


def test_windows_line_ends_keep_their_lines():
    assert problems_of(MINIMAL.replace("\n", "\r\n")) == []
    (problem,) = problems_of((MINIMAL + "servr: 1\n").replace("\n", "\r\n"))
    assert problem.line == 9


@pytest.mark.parametrize("value", ["1.0", "true", "'1'", "3.10", "2"])
def test_the_version_is_the_number_1(value):
    (problem,) = problems_of(MINIMAL.replace("version: 1", f"version: {value}"))
    assert (problem.line, problem.key) == (1, "version")


WORDS = st.sampled_from(
    ["version", "pools", "routes", "server", "use", "url", "name", "small", "1", "0", "no", "1:30", "http://h"]
)
SCALARS = WORDS | st.text(max_size=8)
TREES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda v: "[" + ", ".join(v) + "]")
        | st.dictionaries(SCALARS, inner, max_size=3).map(lambda v: "{" + ", ".join(f"{k}: {x}" for k, x in v.items()) + "}")
    ),
    max_leaves=12,
)


def _parse(raw: bytes) -> None:
    assert all(p.line >= 1 and p.column >= 1 and p.message for p in problems_of(raw))


@given(st.text(max_size=200))
def test_no_text_raises_anything_else(text):
    _parse(text.encode("utf-8", "surrogatepass"))


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(raw):
    _parse(raw)


@given(st.dictionaries(WORDS, TREES, max_size=4))
def test_no_tree_raises_anything_else(tree):
    _parse("\n".join(f"{k}: {v}" for k, v in tree.items()).encode())


BLOCKS = st.sampled_from(["model", "replicas", "balance", "api_key_env", "context", "accepts", "speaks", "limits", "timeouts"])
ROUTE_KEYS = st.sampled_from(["use", "aliases", "decide_per", "rules", "classify", "choose", "check", "share", "otherwise"])


@given(BLOCKS, TREES, ROUTE_KEYS, TREES)
def test_no_value_of_any_key_raises_anything_else(key, value, route_key, route_value):
    _parse((MINIMAL + f"  third: {{model: m, replicas: [http://h:1], {key}: {value}}}\n").encode())
    _parse((MINIMAL + f"routes: {{r: {{{route_key}: {route_value}}}}}\n").encode())


@pytest.mark.parametrize("entry", ["{url: [1]}", "{url: {}}", "{url: http://h:1, name: {}}", "{name: [a], url: http://h:1}"])
def test_no_odd_replica_raises_anything_else(entry):
    problems = problems_of(MINIMAL.replace("replicas: [http://127.0.0.1:8001]", f"replicas: [{entry}]"))
    assert {p.line for p in problems} == {5}
