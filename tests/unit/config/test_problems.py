"""What the loader says about keys and values: place, message, nearest name, all problems at once."""

import pytest

from switchyard.config.load import load_policy
from switchyard.config.problem import PolicyError
from switchyard.config.vocabulary import SIGNALS

from ..build import MINIMAL, policy_of, problems_of

POOL = "  third:\n    model: m\n    replicas: [http://127.0.0.1:8003]\n"  # lines 9 to 11 behind MINIMAL
ROUTE = "routes:\n  auto:\n"  # lines 9 and 10

# text behind MINIMAL, line, key, words of the message, hint
PROBLEMS = [
    # unknown keys, and the nearest that exists there
    ("sever: {port: 1}", 9, "sever", "unknown key sever", "did you mean server?"),
    ("server:\n  prot: 1", 10, "server.prot", "unknown key prot", "did you mean port?"),
    (POOL + "    replcas: 3", 12, "pools.third.replcas", "unknown key", "did you mean replicas?"),
    (POOL + "    limits: {in_flihgt: 3}", 12, "pools.third.limits.in_flihgt", "unknown key", "did you mean in_flight?"),
    (POOL + "    timeouts:\n      connect_ms: 3", 13, "pools.third.timeouts.connect_ms", "unknown key",
     "did you mean connect_s?"),
    (POOL + "    zzz: 1", 12, "pools.third.zzz", "unknown key zzz", "known: model, replicas"),
    (ROUTE + "    use: big\n    alias: [x]", 12, "routes.auto.alias", "unknown key", "did you mean aliases?"),
    (ROUTE + "    choose: [{p_atleast: 0.1, use: small}, {use: big}]", 11, "routes.auto.choose[0].p_atleast", "unknown key",
     "did you mean p_at_least?"),
    (ROUTE + "    otherwise: big\n    classify:\n      - {type: embedded, pol: x}", 13, "routes.auto.classify[0].pol",
     "unknown key", "known: bias, scale, type, weights"),
    (ROUTE + "    otherwise: big\n    rules:\n      - {when: {tools: 1}, use: big, for_: 2 turns}", 13,
     "routes.auto.rules[0].for_", "unknown key", "did you mean for?"),
    # missing keys
    ("  third: {model: m}", 9, "pools.third.replicas", "the key replicas is missing", ""),
    (ROUTE + "    otherwise: big\n    classify: [{pool: big}]", 12, "routes.auto.classify[0]", "type is missing",
     "embedded, model or local"),
    (ROUTE + "    otherwise: big\n    rules: [{use: big}]", 12, "routes.auto.rules[0].when", "the key when is missing", ""),
    # words from a list
    (POOL + "    balance: prefx", 12, "pools.third.balance", "prefix, least_tokens, p2c", "did you mean prefix?"),
    (POOL + "    accepts: [tools, image]", 12, "pools.third.accepts[1]", "not image", "did you mean images?"),
    (POOL + "    usage: asks", 12, "pools.third.usage", "pass or ask is expected", "did you mean ask?"),
    (ROUTE + "    otherwise: big\n    decide_per: turn", 12, "routes.auto.decide_per", "not turn", "did you mean user_turn?"),
    (ROUTE + "    otherwise: big\n    check: {tool_calls: escalat}", 12, "routes.auto.check.tool_calls", "pass or escalate",
     "did you mean escalate?"),
    (ROUTE + "    otherwise: big\n    classify: [{type: embeded}]", 12, "routes.auto.classify[0]", "embeded is not known",
     "embedded"),
    # units, numbers, lists, texts
    ("server: {drain_s: 500ms}", 9, "server.drain_s", "not 500ms", "the unit is in the key: write the number alone"),
    ("server: {max_body_mb: 64 MB}", 9, "server.max_body_mb", "not 64 MB", "the unit is in the key: write the number alone"),
    (POOL + "    limits: {queue_timeout_s: 30s}", 12, "pools.third.limits.queue_timeout_s", "not 30s",
     "the unit is in the key"),
    ("server: {drain_s: -1}", 9, "server.drain_s", "greater than or equal to 0, not -1", ""),
    ("server: {port: 65536}", 9, "server.port", "65535, not 65536", ""),
    ("server: {port: 1.5}", 9, "server.port", "a whole number is expected, not 1.5", ""),
    ("server: {port: '80'}", 9, "server.port", "a whole number is expected, not 80", "leave the quotes out"),
    ("server: {port: true}", 9, "server.port", "a whole number is expected, not true", ""),
    ("server: {log_prompts: 1}", 9, "server.log_prompts", "true or false is expected, not 1", ""),
    (POOL + "    limits: {in_flight: 0}", 12, "pools.third.limits.in_flight", "1, not 0", ""),
    (POOL + "    context: 0", 12, "pools.third.context", "not 0", ""),
    (POOL + "    context: 128k", 12, "pools.third.context", "auto or a whole number is expected, not 128k", ""),
    (POOL + "    accepts: tools", 12, "pools.third.accepts", "a list is expected, not tools", ""),
    (POOL + "    limits: 48", 12, "pools.third.limits", "a block of keys is expected, not 48", ""),
    (POOL + "    health: {path: 3}", 12, "pools.third.health.path", "a text is expected, not 3", ""),
    ("routes: [auto]", 9, "routes", "a block of keys is expected", ""),
    # own rules of a value
    ("server: {state: redis}", 9, "server.state", "redis://host", ""),
    ("server: {state: 'redis://'}", 9, "server.state", "redis://host", ""),
    ("server: {state: 'redis://h:99999/0'}", 9, "server.state", "redis://host", ""),
    ("server: {state: 'redis://h/zero'}", 9, "server.state", "redis://host", ""),
    ("server: {state: 'redis://h/0?db=1'}", 9, "server.state", "redis://host", ""),
    ("server: {state: 'http://h:6379'}", 9, "server.state", "redis://host", ""),
    ("server: {api_keys_env: 'sk-1 2'}", 9, "server.api_keys_env", "the name of an environment variable", ""),
    (ROUTE + "    otherwise: big\n    rules: [{when: {tools: 1}, use: big, for: 5 hours}]", 12, "routes.auto.rules[0].for",
     "like 5 turns", ""),
    (ROUTE + "    otherwise: big\n    share: {pool: big}", 12, "routes.auto.share", "exactly one of at_most and hold", ""),
    ("routes:\n  a b: {use: big}", 10, "routes.a b", "a name is 1 to 128", ""),
    # a route needs a way to go, and one only
    ("routes:\n  auto: {}", 10, "routes.auto", "say where requests go", ""),
    (ROUTE + "    use: big\n    rules: [{when: {tools: 1}, use: small}]", 10, "routes.auto", "use means always", ""),
    (ROUTE + "    use: big\n    otherwise: small", 10, "routes.auto", "use means always", ""),
    (ROUTE + "    choose: [{p_at_least: 0.5, use: small}]", 10, "routes.auto", "still has p_at_least", ""),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "key", "words", "hint"), PROBLEMS, ids=range(len(PROBLEMS)))
def test_one_mistake_is_one_problem_at_its_place(text, line, key, words, hint):
    (problem,) = problems_of(MINIMAL + text + "\n")
    assert (problem.line, problem.key) == (line, key)
    assert words in problem.message
    assert hint in problem.hint
    assert bool(hint) == bool(problem.hint)


URLS = [
    ("http://h:1/v1", "leave out /v1"),
    ("https://h:1", "like http://"),
    ("h:1", "like http://"),
    ("ftp://h", "like http://"),
    ("http://", "like http://"),
    ("http://user:secret@h:1", "api_key_env"),
    ("http://h:99999", "not a URL"),
    ("http://h:1?x=1", "only scheme, host and port"),
    ("http://h:0", ""),
    ("'http://h:'", ""),
    ("http://a b:1", ""),
]


@pytest.mark.parametrize(("url", "words"), URLS)
def test_an_engine_is_named_by_scheme_host_and_port_alone(url, words):
    problems = problems_of(MINIMAL.replace("replicas: [http://127.0.0.1:8001]", f"replicas:\n      - {url}"))
    assert [(p.line, p.key.removesuffix(".url")) for p in problems] == [(6, "pools.small.replicas[0]")]
    assert words in problems[0].message
    assert "secret" not in problems[0].message


REPLICAS = [
    ("http://10.0.0.1:8000", "http://10.0.0.1:8000", "10.0.0.1:8000"),
    ("http://node-1:8000/", "http://node-1:8000", "node-1:8000"),
    ("http://node-1", "http://node-1:80", "node-1:80"),
    ("'http://[::1]:8000'", "http://[::1]:8000", "[::1]:8000"),
    ("{url: http://h:1, name: head}", "http://h:1", "head"),
]


@pytest.mark.parametrize(("written", "url", "label"), REPLICAS)
def test_a_replica_has_a_url_and_a_label(written, url, label):
    (replica,) = policy_of(MINIMAL.replace("[http://127.0.0.1:8001]", f"[{written}]")).pools["small"].replicas
    assert (replica.url, replica.label) == (url, label)


EMPTY = [("pools: {}\nversion: 1\n", 1, "pools"), (MINIMAL.replace("[http://127.0.0.1:8001]", "[]"), 5, "pools.small.replicas")]


@pytest.mark.parametrize(("text", "line", "key"), EMPTY)
def test_an_empty_block_is_said_in_words_of_the_file(text, line, key):
    (problem,) = problems_of(text)
    assert (problem.line, problem.key) == (line, key)
    assert "tuple" not in problem.message
    assert "dictionary" not in problem.message


def test_all_problems_are_reported_at_once_in_the_order_of_the_file():
    text = """\
version: 2
server: {prot: 1, log_prompts: no}
pools:
  small: {model: s, replicas: [http://h:1], balance: rnd}
routes:
  auto:
    use: bigg
    use: small
  small: {use: small}
extra: 1
"""
    found = [(p.line, p.key) for p in problems_of(text)]
    assert found == [
        (1, "version"),
        (2, "server.prot"),
        (2, "server.log_prompts"),
        (4, "pools.small.balance"),
        (7, "routes.auto.use"),
        (8, "routes.auto.use"),
        (9, "routes.small"),
        (10, "extra"),
    ]


def test_a_problem_is_a_line_that_editors_jump_to(tmp_path):
    file = tmp_path / "p.yaml"
    file.write_text(MINIMAL + "sever: 1\n")
    with pytest.raises(PolicyError) as caught:
        load_policy(file)
    assert str(caught.value) == f"{file}:9:1: sever: unknown key sever (did you mean server?)"


def test_every_signal_may_be_named_and_a_misspelt_one_gets_the_nearest():
    for name in SIGNALS:
        rule = f"routes: {{auto: {{otherwise: big, rules: [{{when: {{{name}x: 1}}, use: big}}]}}}}\n"
        (problem,) = problems_of(MINIMAL + rule)
        assert problem.key.endswith(f"when.{name}x")
        assert problem.message == f"there is no signal {name}x"
        assert problem.hint == f"did you mean {name}?"
