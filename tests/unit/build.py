"""Small makers that unit tests share: policies from text, views and signals from bodies."""

import json
from typing import Any

from switchyard.config.load import parse_policy
from switchyard.config.policy import Policy
from switchyard.config.problem import PolicyError, Problem
from switchyard.routing.request import Body, RequestView
from switchyard.routing.signals import Signals

MINIMAL = """\
version: 1
pools:
  small:
    model: s
    replicas: [http://127.0.0.1:8001]
  big:
    model: b
    replicas: [http://127.0.0.1:8002]
"""
"""A good policy of eight lines; what a test appends begins on line 9."""


def policy_of(text: str) -> Policy:
    return parse_policy(text.encode(), "p.yaml")


def problems_of(text: str | bytes) -> list[Problem]:
    """The problems that the loader finds; none for a good policy."""
    try:
        parse_policy(text if isinstance(text, bytes) else text.encode(), "p.yaml")
    except PolicyError as error:
        return error.problems
    return []


def view_of(
    body: dict[str, Any] | bytes, protocol: str = "chat", headers: dict[str, str] | None = None, **how: Any
) -> RequestView:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return RequestView(protocol, Body(raw), headers or {}, **how)


def signals_of(
    body: dict[str, Any] | bytes, protocol: str = "chat", headers: dict[str, str] | None = None, hour: int = 12, **how: Any
) -> Signals:
    return Signals(view_of(body, protocol, headers, **how), hour)


def chat(*messages: tuple[str, Any] | dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A chat body: messages as (role, content) or whole."""
    whole = [m if isinstance(m, dict) else {"role": m[0], "content": m[1]} for m in messages]
    return {"model": "auto", "messages": whole, **fields}
