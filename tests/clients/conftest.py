"""A gateway with keys before the fake engine, and one before real embedded engines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from integration.engine import Engine
from integration.gateway import Gateway, policy, pool

from switchyard.config.secrets import Secrets

KEY = "gateway-key"


@pytest.fixture(scope="session")
def fake_engine() -> Iterator[Engine]:
    with Engine("acme/small", key="engine-key") as engine:
        yield engine


@pytest.fixture(scope="session")
def fake_gateway(fake_engine: Engine) -> Iterator[Gateway]:
    """The pools `small` (with a short patience) and `narrow`, and the route `auto`, which SDKs know as claude-* and gpt-*."""
    block = pool(fake_engine, api_key_env="ENGINE_KEY", timeouts={"first_byte_s": 2, "idle_s": 2})
    narrow = pool(fake_engine, api_key_env="ENGINE_KEY", limits={"in_flight": 1, "queue": 0})
    choose = [{"p_at_least": 0.5, "use": "small"}, {"use": "narrow"}]
    auto = {"classify": [{"type": "embedded"}], "choose": choose, "aliases": ["claude-*", "gpt-*"]}
    keys = Secrets((KEY,), None, {"small": "engine-key", "narrow": "engine-key"})
    pools = {"small": block, "narrow": narrow}
    with Gateway(policy(pools, {"auto": auto}, api_keys_env="KEYS", max_body_mb=1), keys=keys) as gateway:
        yield gateway


@pytest.fixture
def engine(fake_engine: Engine, fake_gateway: Gateway) -> Iterator[Engine]:
    fake_engine.reset()
    yield fake_engine
    fake_gateway.close_clients()
    fake_gateway.wait_idle()
    fake_gateway.check()
