"""The policy's block `server`: the gateway process itself, and what its API keys may do."""

from __future__ import annotations

import re
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from switchyard.config.block import Block, Count, Seconds, Variable


def _key_name(value: str) -> str:
    if not re.fullmatch(r"key-[1-9][0-9]{0,5}", value):
        raise PydanticCustomError(
            "key_name", "key-1 is expected for the first key of server.api_keys_env, key-2 for the second"
        )
    return value


def _state(value: str) -> str:
    if value == "memory":
        return value
    try:
        parts = urlsplit(value)
        good = parts.scheme in {"redis", "rediss"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or not re.fullmatch(r"(/[0-9]{1,5})?", parts.path.rstrip("/")) or parts.query or parts.fragment:
        raise PydanticCustomError("state", "memory or redis://host:6379/0 is expected; a password as redis://:${NAME}@host")
    return value


KeyName = Annotated[str, AfterValidator(_key_name)]


class KeyLimits(Block):
    """What one API key may do; what is left out is not limited."""

    requests_per_minute: Count | None = None
    """Requests within any 60 s."""
    tokens_per_minute: Count | None = None
    """Tokens within any 60 s, prompts and answers together: estimated when a request comes, corrected when it ends."""
    concurrent_requests: Count | None = None
    """Requests that wait or run at the same time."""


class ServerLimits(Block):
    """Limits of the API keys; over one of them a request gets 429 and Retry-After. Without keys all clients share one."""

    default: KeyLimits = KeyLimits()
    """For every key."""
    keys: dict[KeyName, KeyLimits] = {}
    """For single ones, by the names that records show: key-1 is the first of `api_keys_env`. What an entry leaves out is
    as in `default`; null lifts it."""

    def of(self, key_name: str) -> KeyLimits | None:
        """The limits of a key; None when it has none."""
        own = self.keys.get(key_name)
        limits = self.default if own is None else self.default.model_copy(update=_given(own))
        return limits if any(value is not None for value in (limits.model_dump().values())) else None


def _given(block: Block) -> dict[str, Any]:
    return {name: getattr(block, name) for name in block.model_fields_set}


class Server(Block):
    """The gateway process itself. Flags of `switchyard serve` win over this block."""

    host: str = "127.0.0.1"
    """Address to listen on. Anything but loopback needs `api_keys_env`."""
    port: Annotated[int, Field(ge=0, le=65535)] = 4000
    """TCP port; 0 takes a free one."""
    api_keys_env: Variable | None = None
    """Environment variable with the comma-separated keys that clients may use. Left out, the gateway is open, and only
    loopback may be bound. Named but unset or empty is an error."""
    admin_key_env: Variable | None = None
    """Environment variable with the key for /admin. Left out, /admin answers only where no API keys are set."""
    max_body_mb: Annotated[int, Field(ge=1, le=1024)] = 64
    """Longest request body in MiB; longer ones get 413."""
    max_connections: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    """Client connections at the same time; more are told 503 and closed."""
    drain_delay_s: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = 0
    """On SIGTERM /readyz says 503 at once; the listener closes after this many seconds."""
    drain_s: Annotated[float, Field(ge=0, le=86400, allow_inf_nan=False)] = 30
    """How long running requests may go on after the listener closed; what is left then ends with an error."""
    limits: ServerLimits = ServerLimits()
    """What the API keys may do. Unlike the rest of this block, a change takes effect while the gateway runs."""
    session_ttl_s: Seconds = 3600
    """A conversation that was silent for so long is forgotten: its next request is decided anew."""
    state: Annotated[str, AfterValidator(_state)] = "memory"
    """Where sessions, use of limits, ejections and classifiers' answers live: memory of the process, or
    redis://host:6379/0 (rediss:// with TLS) to share them between gateways and workers. Without Redis each goes on alone."""
    state_prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:-]{0,64}$")] = "switchyard:"
    """Begins every key in Redis; gateways with the same prefix share."""
    state_budget_ms: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] = 10
    """Longest that a request waits for Redis; then it goes on with what the process knows."""
    decision_log: str | None = None
    """File to which one JSON line for each decision is appended; left out, the last 1,000 are kept in memory only."""
    log_prompts: bool = False
    """Put the human's last text into decision records. Off: no text of prompts is written anywhere."""
