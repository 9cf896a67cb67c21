"""The checking part of the request path: a small pool's tool calls are looked at before the client sees them.

`check/` knows what a bad call is and how one answer goes on from another; here the larger pool is asked, and the two are
put together. On a bad call the same turn goes to the next larger pool, and the client sees one well-formed answer.
"""

from __future__ import annotations

from msgspec.structs import replace

from switchyard.check.continuation import Continuation
from switchyard.check.gate import StreamGate
from switchyard.check.tools import GivenTools
from switchyard.check.whole import check_answer, merge_usage
from switchyard.errors import BadToolCall, BrokenStream, GatewayError
from switchyard.pools.replica import Lease
from switchyard.routing.decision import Decision
from switchyard.routing.request import RequestView
from switchyard.sending import Outgoing, Sender
from switchyard.upstream.connection import Response
from switchyard.upstream.relay import Client, HideUsage, Relay, Step
from switchyard.upstream.sse import AnswerReader

CHECKED = frozenset({"chat", "messages", "responses"})
MAX_ANSWER_BYTES = 32 * 1024 * 1024  # of an answer without a stream; one that is announced as longer passes unchecked


def larger_decision(decision: Decision, served_by: str, problem: str) -> Decision | None:
    """Where the turn goes after a bad call; None when no larger pool is left."""
    order = (decision.pool, *decision.fallbacks)
    larger = order[order.index(served_by) + 1 :] if served_by in order else ()
    if not larger:
        return None
    reasons = (f"{served_by}: {problem}", *decision.reasons)
    return replace(decision, pool=larger[0], fallbacks=larger[1:], reasons=reasons)


class Escalation:
    """One checked answer. Holds at most one place of a second replica; `release` gives it back.

    Args:
        sender: asks the larger pool.
        outgoing: the request.
        decision: where it went first.
    """

    def __init__(self, sender: Sender, outgoing: Outgoing, decision: Decision) -> None:
        self._sender = sender
        self._outgoing = outgoing
        self._decision = decision
        self._first_pool = outgoing.record.pool
        self._tools = GivenTools.read(outgoing.view.protocol, outgoing.view.body.fields)
        self._lease: Lease | None = None
        self._response: Response | None = None

    @property
    def second_lease(self) -> Lease | None:
        """The larger pool's place, where it came to that."""
        return self._lease

    def release(self) -> None:
        """Give back what the second attempt holds."""
        if self._response is not None:
            self._response.abandon()
        if self._lease is not None:
            self._lease.release()

    async def whole(self, response: Response, lease: Lease) -> tuple[Decision, Response, bytes]:
        """Read and check an answer without a stream; gives what the client gets.

        Raises:
            BadToolCall: the call was bad and no larger pool could take over.
        """
        protocol = self._outgoing.view.protocol
        body = await response.read(MAX_ANSWER_BYTES)
        if len(body) >= MAX_ANSWER_BYTES:
            raise BrokenStream(f"the answer is longer than {MAX_ANSWER_BYTES >> 20} MiB, too long to be checked")
        problem = check_answer(protocol, body, self._tools)
        if problem is None:
            return self._decision, response, body
        lease.release()
        decision, second = await self._ask_larger(problem)
        if second.status >= 300:
            raise self._failure(problem)
        return decision, second, merge_usage(protocol, body, await second.read(MAX_ANSWER_BYTES))

    async def stream(
        self, client: Client, response: Response, reader: AnswerReader, lease: Lease, hide_usage: bool
    ) -> tuple[GatewayError | None, AnswerReader]:
        """Pass on a stream through the gate; after a bad call, the larger pool's as its continuation.

        Returns:
            The error when the client's answer broke off, and who has read the answer that ended it.
        """
        protocol = self._outgoing.view.protocol
        gate = StreamGate(protocol, self._tools)
        hiding: list[Step] = [HideUsage()] if hide_usage else []
        broken = await Relay(client, reader, [gate, *hiding], lambda: gate.problem is not None).run(response)
        problem = gate.problem
        if broken is not None or problem is None:
            return broken, reader
        response.abandon()
        lease.release()
        try:
            _, second = await self._ask_larger(problem)
            if second.status >= 300 or not second.is_stream:
                raise self._failure(problem)
        except GatewayError as error:
            failure = error if isinstance(error, BadToolCall) else self._failure(f"{problem}; {error.message}")
            client.break_off(failure, True, reader.tail)
            return failure, reader
        second_reader = AnswerReader(protocol, True)
        hiding = [HideUsage()] if hide_usage or "usage" in self._outgoing.record.changed else []
        broken = await Relay(client, second_reader, [Continuation(protocol, gate.carried), *hiding]).run(second)
        return broken, second_reader

    async def _ask_larger(self, problem: str) -> tuple[Decision, Response]:
        record = self._outgoing.record
        record.escalation = f"{self._first_pool}: {problem}"
        decision = larger_decision(self._decision, self._first_pool, problem)
        if decision is None:
            raise self._failure(problem)
        first = record.sent_s, record.first_byte_s
        try:
            self._lease, self._response = await self._sender.send(self._outgoing, decision)
        finally:
            record.sent_s, record.first_byte_s = first  # the client's first byte and token are the first attempt's
        return decision, self._response

    def _failure(self, problem: str) -> BadToolCall:
        return BadToolCall(f"pool {self._first_pool}: {problem}, and no larger pool could take over")


def worth_checking(view: RequestView, decision: Decision, served_by: str, response: Response) -> bool:
    """Whether an answer can have a tool call, and a larger pool is there to take over a bad one."""
    larger = larger_decision(decision, served_by, "")
    fits = response.length is None or response.length < MAX_ANSWER_BYTES
    return larger is not None and view.protocol in CHECKED and view.tool_count > 0 and fits
