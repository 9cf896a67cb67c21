"""From a cluster file and a policy to a simulation, and the loop it runs in."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, replace

from switchyard.cluster.engine import Engine
from switchyard.cluster.place import Replica, lay_out
from switchyard.cluster.spec import Cluster
from switchyard.cluster.traffic import BLOCK_TOKENS
from switchyard.config.load import parse_policy
from switchyard.config.policy import Policy
from switchyard.emulate.cluster import engine_of
from switchyard.emulate.faults import Fault
from switchyard.emulate.policy import policy_for
from switchyard.emulate.vllm import Card
from switchyard.simulate.clock import VirtualLoop
from switchyard.simulate.outcome import Results
from switchyard.simulate.run import Simulation

MOST_NOTES = 100


@dataclass(frozen=True)
class Stage:
    """Everything that a simulation needs. Its engines are used up by one run.

    Attributes:
        policy: with the cluster's replicas.
        engines: card and engine by the replica's URL.
        replicas: those that run.
    """

    policy: Policy
    engines: dict[str, tuple[Card, Engine]]
    replicas: tuple[Replica, ...]

    @property
    def places(self) -> int:
        """Requests that all engines together work on at once."""
        return sum(engine.max_running for _, engine in self.engines.values())

    def on_node(self, node: str) -> list[str]:
        """The replicas that have a rank there."""
        return [r.name for r in self.replicas if node in r.nodes]


def set_stage(cluster: Cluster, policy: Policy | None, without: Collection[str] = ()) -> Stage:
    """Put the cluster's replicas behind the policy; those with a rank on a node of `without` are left out.

    Raises:
        Undetermined: the file doesn't tell how fast an engine is.
        ValueError: policy and cluster don't fit together, or a pool has no replica left.
        PolicyError: the policy isn't good with these replicas.
    """
    whole = lay_out(cluster)
    running = tuple(r for r in whole.replicas if r.running and not set(r.nodes) & set(without))
    urls = {r.name: f"http://127.0.0.1:{port}" for port, r in enumerate(running, 10_000)}  # names only: nobody listens
    engines = {urls[r.name]: engine_of(cluster, r, BLOCK_TOKENS) for r in running}
    document = policy_for(cluster, replace(whole, replicas=running), policy, lambda r: urls[r.name])
    return Stage(parse_policy(json.dumps(document).encode(), "policy", {}), engines, running)


def run(
    stage: Stage,
    play: Callable[[Simulation], Awaitable[Results]],
    faults: Iterable[tuple[str, float, Fault]] = (),
    escalate: float = 0.0,
    seed: int = 0,
) -> Results:
    """Simulate; `play` says with what traffic.

    Raises:
        ValueError: a fault is of a replica that isn't there.
    """

    async def act() -> Results:
        simulation = Simulation(stage.policy, stage.engines, escalate, seed)
        simulation.plan_faults(faults)
        try:
            return await play(simulation)
        finally:
            await simulation.close()

    loop = VirtualLoop()
    heard = _Heard(loop)
    gateway = logging.getLogger("switchyard")
    level = gateway.level
    gateway.addHandler(heard)
    gateway.setLevel(logging.INFO)
    try:
        results = loop.run_until_complete(act())
    finally:
        gateway.removeHandler(heard)
        gateway.setLevel(level)
        loop.close()
    results.notes += heard.notes
    return results


class _Heard(logging.Handler):
    """Keeps what the gateway says in its log, with the virtual time."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__(logging.INFO)
        self._loop = loop
        self.notes: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if len(self.notes) < MOST_NOTES:
            self.notes.append(f"{self._loop.time():,.1f} s: {record.getMessage()}")
