"""Where a request is sent, and who is next when that fails."""

import asyncio
from unittest.mock import Mock

import pytest

from switchyard.errors import Unreachable
from switchyard.pools.pool import Pool
from switchyard.pools.replica import Lease
from switchyard.routing.decision import Decision
from switchyard.sending import Outgoing, Sender
from switchyard.telemetry.record import Record
from switchyard.telemetry.tracing import PassedOn
from switchyard.upstream.pool import ConnectFailed
from switchyard.upstream.retry import RetryBudget

from .build import signals_of
from .pools.make import pool_of, settle


def outgoing() -> Outgoing:
    signals = signals_of({"model": "p", "messages": []})
    record = Record("id", "/v1/chat/completions", "chat", 0.0)
    return Outgoing(b"POST", b"/v1/chat/completions", [], signals.view, signals, "s", record, PassedOn({}))


def test_who_is_next_in_the_queue_does_not_get_the_place_where_no_connection_came_up(run):
    async def body() -> None:
        pool: Pool = pool_of(n=2)
        fails = asyncio.Event()

        async def send(request, fresh=False):
            await fails.wait()
            raise ConnectFailed(Unreachable("r0 can't be reached"))

        sender = Sender({"p": pool}, lambda pool, replica: Mock(send=send, host_header=b"h"), {}, RetryBudget(), Mock())
        sending = asyncio.create_task(sender.send(outgoing(), Decision("", "p", (), "named", ("asked",))))
        await settle()
        (other,) = [await pool.admit("t", 1)]
        assert isinstance(other, Lease)
        waiting = asyncio.create_task(pool.admit("u", 1))
        await settle()
        fails.set()
        await settle()
        assert not waiting.done(), "it keeps its place in the queue"
        other.release()
        lease = await waiting
        assert lease is not None
        assert lease.replica is other.replica
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        lease.release()

    run(body())


def test_every_pool_that_was_tried_is_named_with_its_own_replica(run):
    """The last replica of the second pool is no replica of the first."""

    async def body() -> None:
        pools = {name: pool_of(n=n, name=name) for name, n in (("small", 1), ("mid", 1), ("big", 2))}
        pools["mid"].list_replicas([])

        def connections_to(pool, replica):
            async def send(request, fresh=False):
                raise ConnectFailed(Unreachable(f"{replica.full_name} can't be reached"))

            return Mock(send=send, host_header=b"h")

        sender = Sender(pools, connections_to, {}, RetryBudget(), Mock())
        with pytest.raises(Unreachable) as failed:
            await sender.send(outgoing(), Decision("auto", "small", ("mid", "big"), "score", ("p",)))
        with pytest.raises(Unreachable) as lost:
            await sender.send(outgoing(), Decision("auto", "big", (), "held", ("stored",), only_replica="r1"))
        assert lost.value.message.endswith("on a replica that can't be reached: pool big: r1 can't be reached")
        small, mid, big = failed.value.message.split("; pool ")
        assert small == "pool small: r0 can't be reached"
        assert mid == "mid has no replica any more"
        assert big.startswith("big: none of its 2 replicas can be reached; last: r")

    run(body())
