"""Makes pools for tests."""

import asyncio
from random import Random

from switchyard.pools.pool import Pool
from switchyard.pools.replica import Lease

from ..build import policy_of


def pool_of(
    n: int = 2, in_flight: int = 1, queue: int = 10, timeout_s: float = 30, balance: str = "round_robin", more: str = "",
    name: str = "p",
) -> Pool:  # fmt: skip
    """A pool whose replicas are called r0, r1, ... and are ready."""
    replicas = ", ".join(f"{{url: http://h:{9000 + i}, name: r{i}}}" for i in range(n))
    limits = f"{{in_flight: {in_flight}, queue: {queue}, queue_timeout_s: {timeout_s}}}"
    text = f"version: 1\npools: {{p: {{model: m, replicas: [{replicas}], balance: {balance}, limits: {limits}{more}}}}}\n"
    pool = Pool(name, policy_of(text).pools["p"], Random(0))
    for replica in pool.replicas:
        replica.mark("ready")
    return pool


def labels(leases: list[Lease]) -> list[str]:
    return sorted(lease.replica.label for lease in leases)


def load(pool: Pool) -> tuple[int, int, int]:
    """Requests and tokens in flight, and requests that wait."""
    return sum(r.in_flight for r in pool.replicas), sum(r.tokens for r in pool.replicas), pool.queued


async def settle() -> None:
    """Let every task run as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)
