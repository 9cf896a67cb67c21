"""What an operator does to a replica by hand: drain, undrain, eject, readmit.

`drain` takes a replica out until somebody says otherwise, for maintenance. `eject` treats it as broken: it comes back by
itself, as after any ejection, once its back-off is over and a real completion works. Each action may be repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Literal, get_args

from switchyard.errors import InvalidRequest, LastReplica, UnknownReplica
from switchyard.pools.pool import Pool
from switchyard.pools.replica import Replica

Action = Literal["drain", "undrain", "eject", "readmit"]
ACTIONS: tuple[str, ...] = get_args(Action)
BY_HAND = "drained by hand"

log = logging.getLogger("switchyard.pools")


def find_replica(pools: Mapping[str, Pool], pool_name: str, label: str) -> tuple[Pool, Replica]:
    """A replica by the names of the policy.

    Raises:
        UnknownReplica: there is none; the message lists what there is.
    """
    pool = pools.get(pool_name)
    if pool is None:
        raise UnknownReplica(f"there is no pool {pool_name[:128]!r} here; known: {', '.join(pools)}")
    for replica in pool.replicas:
        if replica.label == label:
            return pool, replica
    known = ", ".join(r.label for r in pool.replicas) or "none"
    raise UnknownReplica(f"pool {pool.name} has no replica {label[:128]!r}; known: {known}")


def act(pool: Pool, replica: Replica, action: str, now_s: float, force: bool = False) -> bool:
    """Do it; gives whether anything changed.

    Args:
        pool: the replica's pool.
        replica: one of its replicas.
        action: one of `ACTIONS`.
        now_s: the loop's time.
        force: take it out even when it is the last one of its pool that gets requests.

    Raises:
        InvalidRequest: there is no such action.
        LastReplica: it is the last one that gets requests.
    """
    if action not in ACTIONS:
        raise InvalidRequest(f"there is no action {action[:32]!r}; known: {', '.join(ACTIONS)}")
    before = (replica.draining, replica.ejected)
    if action in {"drain", "eject"} and not force:
        _keep_the_last(pool, replica, action)
    if action == "drain":
        replica.draining = replica.draining or BY_HAND
    elif action == "undrain":
        replica.draining = ""
    elif action == "eject" and not replica.ejected:
        back_off_s = replica.evidence.eject(now_s)
        replica.ejected = f"ejected by hand, tried again after {back_off_s:.0f} s"
    elif action == "readmit" and replica.ejected:
        pool.readmit(replica, now_s)
        replica.evidence.ejections = 0
    changed = before != (replica.draining, replica.ejected)
    if changed:
        log.warning("pool %s: replica %s: %s by hand; it is %s now", pool.name, replica.full_name, action, replica.state)
        pool.wake()
    return changed


def _keep_the_last(pool: Pool, replica: Replica, action: str) -> None:
    if replica.healthy and not any(r.healthy for r in pool.replicas if r is not replica):
        raise LastReplica(
            f"{replica.label} is the last replica of pool {pool.name} that gets requests: after this they go to a larger pool "
            f"or fail; to {action} it all the same, add ?force=true (switchyard pools: --force)"
        )
