"""From the model name that a client asks for to a route: exact names first, then aliases with `*`, in the file's order."""

from __future__ import annotations

import re
from collections.abc import Mapping

from switchyard.config.policy import Policy
from switchyard.config.route import Route


class Names:
    """All names of a policy. A name is looked up, never interpreted."""

    def __init__(self, policy: Policy) -> None:
        self._exact: dict[str, tuple[str, Route]] = {}
        self._patterns: list[tuple[re.Pattern[str], tuple[str, Route]]] = []
        for pool in policy.pools:
            self._exact[pool] = ("", Route(use=pool))
        for name, route in policy.routes.items():
            self._exact[name] = (name, route)
        for name, route in policy.routes.items():
            for alias in route.aliases:
                if "*" in alias:
                    parts = map(re.escape, alias.split("*"))
                    self._patterns.append((re.compile("[^\\s]*".join(parts)), (name, route)))
                else:
                    self._exact.setdefault(alias, (name, route))

    def find(self, model: str) -> tuple[str, Route] | None:
        """Name of the route (empty for a pool) and the route; None for an unknown name."""
        found = self._exact.get(model)
        if found is not None or len(model) > 256:
            return found
        return next((target for pattern, target in self._patterns if pattern.fullmatch(model)), None)

    @property
    def listed(self) -> Mapping[str, tuple[str, Route]]:
        """Every exact name, aliases included."""
        return self._exact
