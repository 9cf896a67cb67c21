"""The model names of the policy in force: what each means here, and the card that clients are shown of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from switchyard.config.policy import Policy
from switchyard.config.route import Route
from switchyard.deciding import Target
from switchyard.pools.pool import Pool
from switchyard.routing.lookup import Names


class Catalogue:
    """Routes, pools and aliases by the names that clients ask for.

    Args:
        policy: the policy in force.
        pools: by name.
        created_s: when the gateway began, Unix time; a card has to say when its model was created.
    """

    def __init__(self, policy: Policy, pools: Mapping[str, Pool], created_s: int) -> None:
        self._policy = policy
        self._pools = pools
        self._created_s = created_s
        self._names = Names(policy)
        self._targets = {model: _target(*found) for model, found in self._names.listed.items()}

    def find(self, model: str) -> Target | None:
        """What a model name means; None for a strange one."""
        target = self._targets.get(model)
        if target is None and (found := self._names.find(model)) is not None:  # by a pattern
            return _target(*found)
        return target

    def cards(self) -> dict[str, dict[str, Any]]:
        """Cards of all routes, pools and exact aliases."""
        names = dict.fromkeys([*self._policy.routes, *self._policy.pools, *self._names.listed])
        return {name: card for name in names if (card := self.card(name)) is not None}

    def card(self, name: str) -> dict[str, Any] | None:
        """The card of a name. `max_model_len` is the largest context that a request can get: longer pools take over."""
        found = self._names.find(name)
        if found is None:
            return None
        route_name, route = found
        pools = [self._pools[p] for p in route.pools]
        known = [p.context_tokens for p in pools if p.context_tokens]
        takes = {c for p in pools for c in p.settings.accepts}
        card: dict[str, Any] = {"id": name, "object": "model", "created": self._created_s, "owned_by": "switchyard"}
        if known:
            card["max_model_len"] = max(known)
        card["modalities"] = ["text", *(c for c in ("images", "audio") if c in takes)]
        card["switchyard"] = {"kind": "route" if route_name else "pool", "pools": [p.name for p in pools]}
        return card


def _target(name: str, route: Route) -> Target:
    return Target(name, route, route.pools)
