"""Does a request match a rule? Comparing signals with what a policy wants; pure."""

from __future__ import annotations

import re
from typing import Any

from switchyard.config.rule import Rule, Test
from switchyard.routing.signals import Signals


def matches(rule: Rule, signals: Signals) -> bool:
    """Whether all conditions of the rule hold."""
    for name, condition in rule.when.items():  # noqa: SIM110  # all() with a generator takes twice as long, for each rule
        if not holds(condition, signals.get(name)):
            return False
    return True


def holds(condition: Any, value: Any) -> bool:
    """Whether one signal's value is what the condition wants."""
    if isinstance(condition, tuple):
        return value in condition
    if isinstance(condition, Test):
        return (
            (condition.at_least is None or value >= condition.at_least)
            and (condition.at_most is None or value <= condition.at_most)
            and (condition.is_not is None or value != condition.is_not)
            and (condition.matches is None or re.search(condition.matches, value) is not None)
        )
    return bool(value == condition)


def describe(rule: Rule, signals: Signals) -> str:
    """The rule as a reason: its own words, or what matched."""
    return rule.why or ", ".join(f"{name} is {_short(signals.get(name))}" for name in rule.when)


def turns_to_hold(rule: Rule) -> int:
    """The number in `for: 5 turns`; 0 when left out."""
    return int(rule.for_.partition(" ")[0]) if rule.for_ else 0


def _short(value: Any) -> str:
    text = {True: "true", False: "false"}.get(value, str(value)) if isinstance(value, bool) else str(value)
    return text if len(text) <= 40 else text[:37] + "..."
