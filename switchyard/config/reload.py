"""What changes between two policies, in words; and noticing that a file has changed. Who installs one is `reloading.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from switchyard.config.policy import Policy
from switchyard.config.rule import Rule


def describe_changes(old: Policy, new: Policy) -> list[str]:
    """Every difference as a line for people; empty when the two mean the same."""
    return list(_changes(old, new))


def _changes(old: Policy, new: Policy) -> Iterator[str]:
    differing = _differing(old.server, new.server)
    if "limits" in differing:
        differing.remove("limits")
        yield f"server: limits are {_short(new.server.limits)}, were {_short(old.server.limits)}"
    if differing:
        yield f"server: {', '.join(differing)} changed; that takes effect at the next start"
    for name in _gone(old.pools, new.pools):
        yield f"pool {name} is gone: what runs on it may end"
    for name in _gone(new.pools, old.pools):
        block = new.pools[name]
        yield f"pool {name} is new: {block.source or f'{len(block.listed)} replicas'} of {block.model}"
    for name in (n for n in new.pools if n in old.pools):
        yield from _pool_changes(name, old, new)
    for name in _gone(old.routes, new.routes):
        yield f"route {name} is gone"
    for name in _gone(new.routes, old.routes):
        yield f"route {name} is new"
    if [name for name in old.routes if name in new.routes] != [name for name in new.routes if name in old.routes]:
        yield "routes are in another order, which is the one in which aliases with * are tried"
    for name in (n for n in new.routes if n in old.routes):
        yield from _route_changes(name, old, new)


def _pool_changes(name: str, old: Policy, new: Policy) -> Iterator[str]:
    before, after = old.pools[name], new.pools[name]
    if after.source != before.source:
        yield f"pool {name}: its replicas are those of {after.source or 'the policy'} now"
    labels_before = {r.label for r in before.listed}
    labels_after = {r.label for r in after.listed}
    for label in sorted(labels_after - labels_before):
        yield f"pool {name}: replica {label} is new"
    for label in sorted(labels_before - labels_after):
        yield f"pool {name}: replica {label} is drained: it gets nothing new, and what runs on it may end"
    were = {r.label: r for r in before.listed}
    for replica in after.listed:
        old_replica = were.get(replica.label)
        if old_replica is not None and old_replica != replica:
            keys = ", ".join(f"{k} is {_short(getattr(replica, k))}" for k in _differing(old_replica, replica))
            yield f"pool {name}: replica {replica.label}: {keys}"
    for key in _differing(before, after):
        if key != "replicas":
            yield f"pool {name}: {key} is {_short(getattr(after, key))}, was {_short(getattr(before, key))}"


def _route_changes(name: str, old: Policy, new: Policy) -> Iterator[str]:
    before, after = old.routes[name], new.routes[name]
    for key in _differing(before, after):
        if key == "choose":
            yield f"route {name}: thresholds are {_steps(after.choose)}, were {_steps(before.choose)}"
        elif key == "rules":
            yield from _rule_changes(name, before.rules, after.rules)
        else:
            yield f"route {name}: {key} is {_short(getattr(after, key))}, was {_short(getattr(before, key))}"


def _rule_changes(name: str, before: tuple[Rule, ...], after: tuple[Rule, ...]) -> Iterator[str]:
    gone = [rule for rule in before if rule not in after]
    new = [rule for rule in after if rule not in before]
    yield from (f"route {name}: a rule is gone: {_short(rule)}" for rule in gone)
    yield from (f"route {name}: a rule is new, number {after.index(rule) + 1}: {_short(rule)}" for rule in new)
    if not gone and not new:
        yield f"route {name}: its rules are in another order, or one stands twice"


def _gone(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [name for name in before if name not in after]


def _differing(before: BaseModel, after: BaseModel) -> list[str]:
    return [key for key in type(before).model_fields if getattr(before, key) != getattr(after, key)]


def _steps(choose: Any) -> str:
    return ", ".join(f"{s.use} from {s.p_at_least}" if s.p_at_least is not None else s.use for s in choose)


def _short(value: Any) -> str:
    if value is None:
        return "left out"
    if isinstance(value, BaseModel):
        return str(value.model_dump(exclude_defaults=True, by_alias=True) or "as by default")
    if isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
        return str([v.model_dump(exclude_defaults=True, by_alias=True) for v in value])
    return str(list(value) if isinstance(value, tuple) else value)


class PolicyFile:
    """A file that may change under a running gateway: says when it looks different from what was read last.

    Args:
        path: the file.
        overrides: keys of its `server` block that flags of the command line have set; they win at every reading.
    """

    def __init__(self, path: Path, overrides: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self._overrides = dict(overrides or {})
        self._seen = self._latest = self._look()

    def with_overrides(self, policy: Policy) -> Policy:
        """The policy as the command line changes it."""
        return policy.model_copy(update={"server": policy.server.model_copy(update=self._overrides)})

    def changed(self) -> bool:
        """Whether the file differs from what was read last, and nobody has written to it since the call before this one.

        So a file that is being written slowly is not read half.
        """
        before, self._latest = self._latest, self._look()
        if self._latest in (None, self._seen) or self._latest != before:
            return False
        self._seen = self._latest
        return True

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = self.path.stat()
        except OSError:  # just being replaced
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
