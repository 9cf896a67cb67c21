"""The keys that a policy names by environment variables. Their values are never logged, never part of a policy."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from switchyard.config.policy import Policy
from switchyard.config.problem import PolicyError, Problem


@dataclass(frozen=True)
class Secrets:
    """The values behind a policy's `*_env` keys. Never logged, never part of a policy."""

    api_keys: tuple[str, ...] = ()
    admin_key: str | None = None
    pool_keys: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Secrets({len(self.api_keys)} API keys, {len(self.pool_keys)} pool keys)"


def read_secrets(policy: Policy, file: str, environment: Mapping[str, str] = os.environ) -> Secrets:
    """Fetch the keys that a policy names.

    Raises:
        PolicyError: for every variable that is unset or empty.
    """
    problems: list[Problem] = []

    def value(key: str, variable: str) -> str:
        found = environment.get(variable, "").strip()
        if not found:
            state = "empty" if variable in environment else "not set"
            message = f"the environment variable {variable} is {state}"
            problems.append(Problem(file, 1, 1, key, message, f"export {variable}=..., or leave the key out"))
        elif not found.strip(" ,"):
            problems.append(Problem(file, 1, 1, key, f"{variable} holds commas and no key", "separate keys with single commas"))
        elif not found.isascii() or not found.isprintable():
            problems.append(Problem(file, 1, 1, key, f"{variable} holds characters that no header can carry", "use ASCII"))
        return found

    server = policy.server
    keys = value("server.api_keys_env", server.api_keys_env) if server.api_keys_env else ""
    admin = value("server.admin_key_env", server.admin_key_env) if server.admin_key_env else None
    pools = {n: value(f"pools.{n}.api_key_env", p.api_key_env) for n, p in policy.pools.items() if p.api_key_env}
    api_keys = tuple(k.strip() for k in keys.split(",") if k.strip())
    unknown = [name for name in server.limits.keys if not 1 <= int(name.removeprefix("key-")) <= len(api_keys)]
    if unknown and not problems:
        there = f"{server.api_keys_env} holds {len(api_keys)} keys" if server.api_keys_env else "server.api_keys_env is not set"
        message = f"there is no {unknown[0]}: {there}"
        problems.append(Problem(file, 1, 1, "server.limits.keys", message, "key-1 is the first key, key-2 the second"))
    if problems:
        raise PolicyError(problems)
    return Secrets(api_keys, admin, pools)
