"""Does somebody wait in front of a request, or may others go first? Pure."""

from __future__ import annotations

from switchyard.routing.signals import Signals

HEADER = "x-switchyard-priority"
BACKGROUND_CLASSES = frozenset({"title", "subagent"})


def is_background(signals: Signals) -> bool:
    """Whether a request waits behind others: titles, sub-agents, and what its client calls so.

    A client can only step back with this: by the header `x-switchyard-priority: background`, or by OpenAI's
    `service_tier: flex`. Compaction counts as interactive, since its conversation stands still meanwhile.
    """
    if signals.request_class in BACKGROUND_CLASSES:
        return True
    view = signals.view
    return view.headers.get(HEADER) == "background" or view.body.text("service_tier") == "flex"
