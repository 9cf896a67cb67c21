"""Where state may live."""

import pytest

from ..build import MINIMAL, policy_of


@pytest.mark.parametrize(
    "url",
    ["memory", "redis://h", "redis://h:6379", "redis://h:6379/", "redis://h:6379/12", "rediss://user:p%40ss@h:6380/0", "redis://:secret@[::1]:6379/0"],
)  # fmt: skip
def test_good_ones(url):
    assert policy_of(MINIMAL + f"server: {{state: '{url}'}}\n").server.state == url


def test_a_password_from_the_environment(monkeypatch):
    monkeypatch.setenv("REDIS_PASSWORD", "p%2Fss")
    policy = policy_of(MINIMAL + "server: {state: 'redis://:${REDIS_PASSWORD}@h:6379/0'}\n")
    assert policy.server.state == "redis://:p%2Fss@h:6379/0"
