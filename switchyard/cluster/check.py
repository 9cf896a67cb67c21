"""Everything that is wrong with a cluster, or odd about it, and the memory arithmetic behind its verdicts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from switchyard.cluster.checks.engines import check_engines, check_heads
from switchyard.cluster.checks.finding import Finding
from switchyard.cluster.checks.memory import Verdict, check_memory, memory_verdicts
from switchyard.cluster.checks.network import check_fabric, check_gateway, check_nodes, check_ports
from switchyard.cluster.checks.placement import check_images, check_placements
from switchyard.cluster.checks.policy import check_policy
from switchyard.cluster.place import Layout, lay_out
from switchyard.cluster.spec import Cluster
from switchyard.config.policy import Policy


@dataclass(frozen=True, slots=True)
class Report:
    """What `check` found."""

    findings: tuple[Finding, ...]
    verdicts: tuple[Verdict, ...]
    layout: Layout

    @property
    def errors(self) -> tuple[Finding, ...]:
        """What keeps the cluster from running."""
        return tuple(f for f in self.findings if f.severity == "error")


def check(cluster: Cluster, now: datetime, policy: Policy | None = None) -> Report:
    """Look at everything.

    Args:
        cluster: as the file says.
        now: with a time zone; leases are compared with it.
        policy: the gateway's, where the file names one.
    """
    layout = lay_out(cluster)
    found = [*_findings(cluster, layout, now), *(check_policy(cluster, layout, policy) if policy is not None else ())]
    return Report(tuple(dict.fromkeys(found)), tuple(memory_verdicts(cluster, layout)), layout)


def _findings(cluster: Cluster, layout: Layout, now: datetime) -> Iterator[Finding]:
    yield from check_nodes(cluster, now)
    yield from check_fabric(cluster)
    yield from check_placements(cluster, layout)
    yield from check_ports(cluster, layout)
    yield from check_engines(cluster)
    yield from check_heads(cluster)
    yield from check_images(cluster, layout)
    yield from check_memory(cluster, layout)
    yield from check_gateway(cluster)
