"""What is known of one engine, what a pool makes of it, and what its probes read."""

import pytest

from switchyard.config.vocabulary import PROTOCOLS
from switchyard.pools.serves import NATIVE, read_context, read_protocols

from .make import pool_of


@pytest.mark.parametrize(("state", "healthy"), [("unknown", True), ("ready", True), ("loading", False), ("down", False)])
def test_states(state, healthy):
    replica = pool_of(n=1).replicas[0]
    replica.mark("ready")
    assert replica.mark(state, "why") is (state != "ready")
    assert replica.mark(state, "other") is False
    assert (replica.healthy, replica.available, replica.problem) == (healthy, healthy, "other")
    replica.in_flight = replica.limit
    assert replica.available is False


def test_a_pool_holds_what_its_shortest_engine_holds():
    pool = pool_of(n=3)
    assert pool.context_tokens is None
    for replica, tokens in zip(pool.replicas, (8192, None, 4096), strict=True):
        replica.context_tokens = tokens
    pool.learn()
    assert pool.context_tokens == 4096


def test_a_context_in_the_policy_is_believed():
    pool = pool_of(n=1, more=", context: 1000")
    pool.replicas[0].context_tokens = 4096
    pool.learn()
    assert pool.context_tokens == 1000


def test_a_pool_speaks_everything_until_its_engines_have_said():
    pool = pool_of(n=2)
    assert all(pool.speaks(p) for p in PROTOCOLS)
    pool.replicas[0].protocols = frozenset({"chat"})
    pool.learn()
    assert pool.speaks("chat")
    assert not pool.speaks("messages")


def test_protocols_in_the_policy_are_believed():
    pool = pool_of(n=1, more=", speaks: [chat]")
    pool.replicas[0].protocols = NATIVE
    pool.learn()
    assert not pool.speaks("messages")


@pytest.mark.parametrize(
    ("more", "refuses", "declares", "clamps"),
    [
        ("", ("images", "audio"), False, False),
        (", accepts: [tools, images], max_output_tokens: clamp", ("audio", "structured_output"), True, True),
        (", accepts: []", ("images", "audio", "structured_output", "tools"), True, False),
    ],
)
def test_what_deciding_may_know(more, refuses, declares, clamps):
    pool = pool_of(n=1, more=more)
    assert (tuple(pool.refuses), pool.declares, pool.clamps) == (refuses, declares, clamps)


VLLM = {"object": "list", "data": [{"id": "smollm2", "object": "model", "max_model_len": 2048, "root": "/m"}]}
LLAMA = {"data": [{"id": "smollm2", "meta": {"n_vocab": 49152, "n_ctx": 4096, "n_ctx_train": 8192}}], "models": [{}]}


@pytest.mark.parametrize(
    ("models", "tokens"),
    [
        (VLLM, 2048),
        (LLAMA, 4096),
        ({"data": [{"id": "lora", "max_model_len": 1}, {"id": "smollm2", "max_model_len": 2}]}, 2),
        ({"data": [{"id": "other", "max_model_len": 7}]}, 7),
        ({"data": [{"id": "smollm2"}]}, None),
        ({"data": [{"id": "smollm2", "max_model_len": "2048", "meta": []}]}, None),
        ({"data": [{"id": "smollm2", "max_model_len": 0}]}, None),
        ({"data": [None, 3]}, None),
        ({"data": {}}, None),
        ([], None),
        (None, None),
    ],
)
def test_context_from_an_engines_models(models, tokens):
    assert read_context(models, "smollm2") == tokens


@pytest.mark.parametrize(
    ("openapi", "found"),
    [
        ({"paths": {"/v1/chat/completions": {}, "/v1/messages": {}, "/health": {}}}, {"chat", "messages"}),
        ({"paths": {"/health": {}}}, NATIVE),
        ({"paths": []}, NATIVE),
        ({}, NATIVE),
        (None, NATIVE),
    ],
)
def test_protocols_from_an_engines_openapi(openapi, found):
    assert read_protocols(openapi) == found


def test_the_words_for_protocols_agree():
    assert frozenset(PROTOCOLS) == NATIVE
