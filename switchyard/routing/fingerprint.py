"""What a verdict on a route was about, as three short hashes: its pools, its classifiers, how it chooses. Pure.

Equal meaning gives equal hashes: comments, layout, the order of keys, defaults spelled out, other routes, aliases, replicas,
limits and time-outs don't matter. What an engine serves under a model's name can't be seen from here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

from switchyard.config.classifier import Classifier, EmbeddedClassifier, ModelClassifier
from switchyard.config.policy import Policy
from switchyard.config.route import Fingerprint, Route
from switchyard.routing.classify.model import DEFAULT_PROMPT

HEX_DIGITS = 12
_OF_A_POOL = {"model", "context", "accepts", "max_output_tokens", "speaks"}
_MEMORY = {"cache_size", "cache_ttl_s"}
_NOT_CHOOSING = {"use", "aliases", "classify", "evaluated", "shadow"}


def fingerprint(policy: Policy, route: Route, weights_digest: Callable[[str | None], str]) -> Fingerprint:
    """The hashes of a route as it stands in a policy.

    Args:
        policy: the whole policy.
        route: one of its routes.
        weights_digest: of the content of an embedded head's file; None for the shipped one.
    """
    pools = {
        name: policy.pools[name].model_dump(mode="json", include=_OF_A_POOL, exclude_defaults=True) for name in route.pools
    }
    classifiers = [_describe(policy, block, weights_digest) for block in route.classify]
    choosing = route.model_dump(mode="json", by_alias=True, exclude=_NOT_CHOOSING, exclude_defaults=True)
    for rule in choosing.get("rules", ()):
        rule.pop("why", None)
    choosing["otherwise"] = route.default_pool
    return Fingerprint(pools=_hash(pools), classifier=_hash(classifiers), choosing=_hash(choosing))


def _describe(policy: Policy, block: Classifier, weights_digest: Callable[[str | None], str]) -> dict[str, Any]:
    found = block.model_dump(mode="json", exclude=_MEMORY, exclude_defaults=True)
    if isinstance(block, EmbeddedClassifier):
        found["weights"] = weights_digest(block.weights)
    if isinstance(block, ModelClassifier):
        found |= {"model": policy.pools[block.pool].model, "prompt": block.prompt or DEFAULT_PROMPT}
    return found


def _hash(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:HEX_DIGITS]


def differing(then: Fingerprint, now: Fingerprint) -> list[str]:
    """Which parts changed, in words."""
    words = {"pools": "pools", "classifier": "classifiers", "choosing": "rules or thresholds"}
    return [word for part, word in words.items() if getattr(then, part) != getattr(now, part)]
