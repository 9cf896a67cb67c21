"""Where a request is sent, and who is next when that fails."""

import asyncio
from unittest.mock import Mock

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

        sender = Sender({"p": pool}, lambda pool, replica: Mock(send=send, host_header=b"h"), {}, RetryBudget())
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
