"""The connections to one engine: what is on its way while a connection is still coming up."""

import asyncio
from unittest.mock import Mock

import pytest

from switchyard.config.pool import Timeouts
from switchyard.upstream.pool import ConnectionPool


@pytest.mark.parametrize("comes_up", [True, False])
def test_a_connection_that_comes_up_is_work_and_none_is_left_when_its_request_is_cancelled(run, comes_up):
    async def body() -> None:
        transport = Mock(**{"is_closing.return_value": False})
        go_on = asyncio.Event()

        async def connect(make_protocol, host, port) -> None:
            if comes_up:
                make_protocol().connection_made(transport)
            await go_on.wait()

        asyncio.get_running_loop().create_connection = connect
        pool = ConnectionPool("http://h:1", "r", Timeouts())
        sending = asyncio.create_task(pool.send(b"request"))
        await asyncio.sleep(0)
        assert pool.busy, "one whose replica is gone is not closed under it"
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert not pool.busy
        assert transport.abort.called is comes_up

    run(body())
