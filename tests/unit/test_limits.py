"""Limits of API keys: the sliding minute, the ledger of a process, and what a policy may say."""

from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.arriving import estimate_tokens, used_tokens
from switchyard.config.problem import PolicyError
from switchyard.config.secrets import read_secrets
from switchyard.config.server import KeyLimits, ServerLimits
from switchyard.state.base import Claim, Refusal
from switchyard.state.memory import Ledger, MemoryStore
from switchyard.state.window import Window

from .build import MINIMAL, policy_of, problems_of, signals_of
from .telemetry.records import record_of


def claim(tokens: int = 10, key: str = "k", **limits: int) -> Claim:
    return Claim(key, KeyLimits(**limits), tokens, "id")


# ---- the window ----


@given(
    limit=st.integers(1, 20),
    steps=st.lists(st.tuples(st.floats(0, 30), st.integers(1, 5)), max_size=60),
)
def test_never_more_than_the_limit_within_any_minute(limit, steps):
    window, now_s, taken = Window(), 1000.0, []
    for pause_s, amount in steps:
        now_s += pause_s
        if amount > limit:
            continue
        if window.total(now_s) + amount <= limit:
            window.add(amount, now_s)
            taken.append((now_s, amount))
        else:
            after_s = window.room_in_s(amount, limit, now_s)
            assert 1 <= after_s <= 61
            assert deepcopy(window).total(int(now_s) + after_s) + amount <= limit, "what was said about later is true"
        assert sum(n for at_s, n in taken if now_s - at_s < 60) <= limit
        assert window.total(now_s) >= sum(n for at_s, n in taken if now_s - at_s < 60)


def test_a_steady_rate_just_below_the_limit_is_never_refused():
    window = Window()
    for n in range(1000):
        now_s = n * 61 / 60
        assert window.total(now_s) < 60 + 1
        window.add(1, now_s)


def test_what_is_taken_back_no_longer_counts_and_what_is_gone_can_t_be():
    window = Window()
    window.add(10, 100.5)
    window.add(5, 101.5)
    window.take_back(4, 100)
    assert window.total(102) == 11
    window.take_back(50, 101)
    assert window.total(102) == 6
    assert window.total(161) == 0
    window.take_back(3, 100)
    window.add(1, 170)
    assert window.total(170) == 1


# ---- the ledger ----


def test_requests_per_minute():
    ledger = Ledger()
    assert [ledger.claim(claim(requests_per_minute=2), 100 + n) for n in range(3)] == [
        None,
        None,
        Refusal("requests_per_minute", 59),
    ]
    assert ledger.claim(claim(key="other", requests_per_minute=2), 102) is None
    assert ledger.claim(claim(requests_per_minute=2), 161) is None


def test_concurrent_requests():
    ledger = Ledger()
    first = claim(concurrent_requests=1)
    assert ledger.claim(first, 0) is None
    assert ledger.claim(claim(concurrent_requests=1), 1) == Refusal("concurrent_requests", 1)
    ledger.settle(first, 0, None, 2)
    assert ledger.claim(claim(concurrent_requests=1), 2) is None


def test_tokens_are_reserved_and_corrected():
    ledger = Ledger()
    first = claim(80, tokens_per_minute=100)
    assert ledger.claim(first, 10) is None
    assert ledger.claim(claim(30, tokens_per_minute=100), 11) == Refusal("tokens_per_minute", 60)
    ledger.settle(first, 10, 40, 11)
    second = claim(30, tokens_per_minute=100)
    assert ledger.claim(second, 12) is None
    ledger.settle(second, 12, 90, 13)  # more than was thought: 130 in all, over the limit
    assert ledger.claim(claim(1, tokens_per_minute=100), 14) == Refusal("tokens_per_minute", 57)
    assert ledger.claim(claim(1, tokens_per_minute=100), 71) is None


def test_one_request_over_the_whole_limit_never_fits():
    assert Ledger().claim(claim(101, tokens_per_minute=100), 0) == Refusal("tokens_per_minute", None)


def test_a_refused_claim_takes_nothing_of_any_limit():
    ledger = Ledger()
    both = {"requests_per_minute": 1, "tokens_per_minute": 100}
    assert ledger.claim(claim(90, tokens_per_minute=100), 0) is None
    assert ledger.claim(claim(20, **both), 0) == Refusal("requests_per_minute", 61)
    assert ledger.claim(claim(20, requests_per_minute=2, tokens_per_minute=100), 0) == Refusal("tokens_per_minute", 61)
    assert ledger.claim(claim(10, requests_per_minute=2, tokens_per_minute=100), 0) is None


@given(st.lists(st.tuples(st.sampled_from("ab"), st.booleans(), st.integers(0, 30)), max_size=60))
def test_no_place_of_a_key_is_lost_or_given_twice(steps):
    store_clock = [0.0]
    ledger, running = Ledger(), {"a": [], "b": []}
    for key, ends, used in steps:
        store_clock[0] += 0.5
        if ends and running[key]:
            done = running[key].pop()
            ledger.settle(done, done.second, used, store_clock[0])
        else:
            wanted = claim(5, key, concurrent_requests=3)
            refusal = ledger.claim(wanted, store_clock[0])
            assert (refusal is None) == (len(running[key]) < 3)
            if refusal is None:
                running[key].append(wanted)


def test_a_store_in_memory_asks_nobody(run):
    store = MemoryStore(lambda: 100.0)
    assert not store.shared
    known = run(store.arrive(claim(requests_per_minute=1), "s", "r"))
    assert (known.refusal, known.session, known.place) == (None, None, None)
    assert run(store.arrive(claim(requests_per_minute=1), "s", "r")).refusal == Refusal("requests_per_minute", 61)


# ---- tokens ----


def test_an_estimate_is_the_prompt_and_a_modest_answer():
    body = {"model": "m", "messages": [{"role": "user", "content": "word " * 400}]}
    prompt = signals_of(body).prompt_tokens
    assert estimate_tokens(signals_of(body)) == prompt + 1024
    assert estimate_tokens(signals_of({**body, "max_tokens": 100})) == prompt + 100
    assert estimate_tokens(signals_of({**body, "max_tokens": 32_000})) == prompt + 1024
    embedding = signals_of({"model": "m", "input": "word " * 400}, "embeddings")
    assert estimate_tokens(embedding) == embedding.prompt_tokens


@pytest.mark.parametrize(
    ("how", "used"),
    [
        ({}, 52),
        ({"output_tokens": None}, 40),
        ({"input_tokens": None, "output_tokens": None}, None),
        ({"outcome": "client_left", "input_tokens": None, "output_tokens": None}, None),
        ({"outcome": "engine_error", "input_tokens": None, "output_tokens": None}, 0),
        ({"outcome": "refused", "sent_s": 0.0}, 0),
    ],
)
def test_what_counts_in_the_end(how, used):
    assert used_tokens(record_of(**how)) == used


# ---- the policy ----


def test_a_key_s_own_limits_over_those_of_all():
    limits = ServerLimits.model_validate(
        {
            "default": {"requests_per_minute": 60, "concurrent_requests": 4},
            "keys": {"key-2": {"requests_per_minute": 600, "concurrent_requests": None}, "key-3": {"tokens_per_minute": 1000}},
        }
    )
    assert limits.of("key-1") == KeyLimits(requests_per_minute=60, concurrent_requests=4)
    assert limits.of("key-2") == KeyLimits(requests_per_minute=600)
    assert limits.of("key-3") == KeyLimits(requests_per_minute=60, concurrent_requests=4, tokens_per_minute=1000)
    assert ServerLimits().of("key-1") is None


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("server: {limits: {default: {requests_per_minute: 0}}}", "server.limits.default.requests_per_minute"),
        ("server: {limits: {default: {requests_per_min: 5}}}", "server.limits.default.requests_per_min"),
        ("server: {limits: {keys: {alice: {requests_per_minute: 5}}}}", "server.limits.keys.alice"),
        ("server: {limits: {keys: {key-0: {requests_per_minute: 5}}}}", "server.limits.keys.key-0"),
    ],
)
def test_mistakes_are_found(text, key):
    (problem,) = problems_of(MINIMAL + text + "\n")
    assert problem.key == key
    assert problem.line == 9


@pytest.mark.parametrize(("keys", "bad"), [("one,two", True), ("one,two,three", False), (None, True)])
def test_a_limit_for_a_key_that_is_not_there(keys, bad):
    named = "" if keys is None else "api_keys_env: KEYS, "
    policy = policy_of(MINIMAL + f"server: {{{named}limits: {{keys: {{key-3: {{requests_per_minute: 5}}}}}}}}\n")
    environment = {} if keys is None else {"KEYS": keys}
    if bad:
        with pytest.raises(PolicyError, match="there is no key-3"):
            read_secrets(policy, "p.yaml", environment)
    else:
        assert len(read_secrets(policy, "p.yaml", environment).api_keys) == 3
