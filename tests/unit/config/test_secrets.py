"""The values behind `*_env` keys: fetched or refused, never shown."""

import pytest

from switchyard.config.problem import PolicyError
from switchyard.config.secrets import Secrets, read_secrets

from ..build import MINIMAL, policy_of

SERVER = "server: {api_keys_env: KEYS, admin_key_env: ADMIN}\n"
POLICY = policy_of(MINIMAL.replace("model: s", "model: s\n    api_key_env: SMALL_KEY") + SERVER)
GOOD = {"KEYS": "one", "ADMIN": "root", "SMALL_KEY": "engine"}


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ("one", ("one",)),
        ("one,two", ("one", "two")),
        (" one , two ,", ("one", "two")),
        (",one,,two", ("one", "two")),
        ("one\n", ("one",)),
    ],
)
def test_keys_are_separated_by_commas(keys, found):
    secrets = read_secrets(POLICY, "p.yaml", {**GOOD, "KEYS": keys})
    assert secrets == Secrets(found, "root", {"small": "engine"})


@pytest.mark.parametrize(
    ("variable", "key"),
    [("KEYS", "server.api_keys_env"), ("ADMIN", "server.admin_key_env"), ("SMALL_KEY", "pools.small.api_key_env")],
)
@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "is not set"),
        ("", "is empty"),
        ("  ", "is empty"),
        ("schlüssel", "no header"),
        ("a\x00b", "no header"),
        ("a\nb", "no header"),
    ],
)
def test_a_key_that_is_named_must_be_there_and_fit_a_header(variable, key, value, words):
    environment = {k: v for k, v in {**GOOD, variable: value}.items() if v is not None}
    with pytest.raises(PolicyError) as caught:
        read_secrets(POLICY, "p.yaml", environment)
    (problem,) = caught.value.problems
    assert (problem.file, problem.key) == ("p.yaml", key)
    assert variable in problem.message
    assert words in problem.message
    assert problem.hint
    assert value is None or not value.strip() or value not in str(caught.value)


@pytest.mark.parametrize("keys", [",", " , ", ",,,"])
def test_commas_alone_are_no_keys(keys):
    with pytest.raises(PolicyError, match="KEYS"):
        read_secrets(POLICY, "p.yaml", {**GOOD, "KEYS": keys})


def test_all_that_are_missing_are_told_at_once():
    with pytest.raises(PolicyError) as caught:
        read_secrets(POLICY, "p.yaml", {})
    assert [p.key for p in caught.value.problems] == ["server.api_keys_env", "server.admin_key_env", "pools.small.api_key_env"]


def test_a_policy_without_keys_needs_no_environment():
    assert read_secrets(policy_of(MINIMAL), "p.yaml", {}) == Secrets()


def test_secrets_show_nothing():
    secrets = Secrets(("hush-1", "hush-2"), "hush-3", {"small": "hush-4"})
    assert "hush" not in f"{secrets} {secrets!r}"
    assert repr(secrets) == "Secrets(2 API keys, 1 pool keys)"
