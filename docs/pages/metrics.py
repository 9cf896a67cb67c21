"""Metrics, from the tables that the gateway counts by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from pages.markdown import codes, fill, item, page
from switchyard.routing.decision import Kind
from switchyard.telemetry.metrics import ASKED, COUNTERS, GAUGES, HISTOGRAMS


def metrics_page() -> str:
    """Every metric of /metrics."""

    def entry(name: str, help_: str, labels: Sequence[str]) -> str:
        return item(f"**`{name}`**" + (f" ({codes(labels)})" if labels else "") + f" - {help_}")

    buckets: dict[tuple[float, ...], list[str]] = {}
    for name, (_, _, bounds) in HISTOGRAMS.items():
        buckets.setdefault(bounds, []).append(name)
    return page(
        "Metrics",
        fill(
            "`GET /metrics` gives Prometheus text. Labels hold names from the policy and words of the gateway's "
            "own, never what a client sent. The names in brackets are labels."
        ),
        "## Counters",
        "\n".join(entry(f"{name}_total", help_, labels) for name, (help_, labels) in [*COUNTERS.items(), *ASKED.items()]),
        "## Histograms",
        fill("Each has `_bucket`, `_sum` and `_count`. All are in seconds."),
        "\n".join(entry(name, help_, labels) for name, (help_, labels, _) in HISTOGRAMS.items()),
        "Buckets:",
        "\n".join(item(f"{', '.join(f'{b:g}' for b in bounds)}: {codes(names)}") for bounds, names in buckets.items()),
        "## Gauges",
        "\n".join(entry(name, help_, labels) for name, (help_, labels) in GAUGES.items()),
        "## Values of labels",
        "\n".join(
            [
                item("`status`: `2xx`, `4xx`, `5xx`, or `none` when no answer was sent."),
                item("`outcome`: `ok`, `refused` (by us), `engine_error`, `broken` (in mid-answer), `client_left`."),
                item(f"`kind`: what settled the decision: {codes(get_args(Kind))}; see "
                     "[reading decisions](../how-to/read-decisions.md)."),
                item("`result`: `good` or `refused`."),
                item("`code`: a code of [errors](errors.md)."),
                item("`route` is empty for a pool asked for by its name; `pool` is empty when it never came to one."),
            ]
        ),
    )  # fmt: skip
