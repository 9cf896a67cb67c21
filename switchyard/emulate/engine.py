"""An engine that lives in time: the clockwork of `cluster/engine.py` on a loop's clock, with faults. It knows no HTTP.

The loop's clock may be real, for emulation (`vllm.py` puts sockets around it), or virtual, for simulation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from switchyard.cluster.engine import Engine, Event, Job
from switchyard.emulate.faults import Fault
from switchyard.emulate.pace import Pace

OFTEN_S = 0.01
"""Real seconds between two writes to an engine's streams: under compressed time, several tokens come at once. First and last
tokens come when they are due: a place that is free later than it should be is throughput that no engine would lose."""
AT_LEAST_S = 1e-6
"""A clock that runs slow rounds: a moment that is all but there must not be waited for in steps of nothing."""
PEER_DEAD_S = 0.06
"""How fast a request fails when a rank other than the head's is dead, as seen with vLLM over two nodes."""


class Listener(Protocol):
    """Who asked for a job, and is told how it goes."""

    @property
    def streams(self) -> bool:
        """Whether it wants to hear of each token, and not only of the first and the last."""

    def begin(self, job: Job) -> None:
        """The first token is there."""

    def more(self, tokens: int) -> None:
        """So many tokens are there."""

    def end(self, job: Job) -> None:
        """The last token is there."""

    def lose(self, why: str) -> None:
        """It will not be finished."""


class LivingEngine:
    """An engine at work.

    Args:
        engine: how its time passes.
        pace: its clock.
        when_dead: called when its process ends.
        when_back: called when its process is started anew.

    Attributes:
        fault: what is wrong with it; None when nothing is.
        alive: whether its process is there.
    """

    def __init__(self, engine: Engine, pace: Pace) -> None:
        self.engine = engine
        self.pace = pace
        self.fault: Fault | None = None
        self.alive = True
        self.when_dead: Callable[[], None] = lambda: None
        self.when_back: Callable[[], None] = lambda: None
        self._jobs: dict[Job, Listener] = {}
        self._streams = 0
        self._streamed_s = 0.0
        self._wake: asyncio.TimerHandle | None = None
        self._recovery: asyncio.TimerHandle | None = None

    # ---- jobs ----

    def submit(self, job: Job, listener: Listener) -> None:
        """Take a request, and tell its listener how it goes. Only while `alive`."""
        self._jobs[job] = listener
        self._streams += listener.streams
        self._tell(self.engine.submit(job, self.pace.now_s()))
        if self.fault is not None and self.fault.kind == "rank":
            asyncio.get_running_loop().call_later(PEER_DEAD_S / self.pace.speedup, self._miss_peer)
        self._plan_wake()

    def leave(self, job: Job) -> bool:
        """Its listener is gone; False when the job had ended before."""
        listener = self._jobs.pop(job, None)
        if listener is None:
            return False
        self._streams -= listener.streams
        self._tell(self.engine.cancel(job, self.pace.now_s()))
        self._plan_wake()
        return True

    def look(self) -> None:
        """Let time pass until now, and tell all listeners."""
        self._tell(self.engine.advance(self.pace.now_s()))
        if self._streams:
            self._streamed_s = asyncio.get_running_loop().time()
            for job, listener in self._jobs.items():
                if listener.streams and (tokens := self.engine.tokens_of(job)):
                    listener.more(tokens)

    def _plan_wake(self) -> None:
        """Come back when there is something to tell: the next first or last token, or, where tokens stream, a step's end."""
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        if self.engine.next_s is None or self.engine.step_end_s is None:
            return
        delay_s = self.pace.real_s_until(self.engine.next_s)
        step_s = self.pace.real_s_until(self.engine.step_end_s)
        if delay_s is None or step_s is None:
            return
        loop = asyncio.get_running_loop()
        if self._streams:
            delay_s = min(delay_s, max(step_s, self._streamed_s + OFTEN_S - loop.time()))
        self._wake = loop.call_later(max(delay_s, AT_LEAST_S), self._on_wake)

    def _on_wake(self) -> None:
        self._wake = None
        if self._streams and asyncio.get_running_loop().time() >= self._streamed_s + OFTEN_S:
            self.look()
        else:
            self._tell(self.engine.advance(self.pace.now_s()))
        self._plan_wake()

    def _tell(self, events: list[Event]) -> None:
        for event in events:
            listener = self._jobs.get(event.job)
            if listener is None:
                continue
            if event.kind == "first":
                listener.begin(event.job)
            else:
                del self._jobs[event.job]
                self._streams -= listener.streams
                listener.end(event.job)

    # ---- faults ----

    def suffer(self, fault: Fault) -> None:
        """Let a fault happen; the one before it is over."""
        self.recover()
        self.look()
        self.fault = fault
        match fault.kind:
            case "kill":
                self._die("the engine's process is gone")
            case "oom":
                self._die("CUDA out of memory")
            case "hang":
                self.pace.set_rate(0.0)
            case "slow":
                self.pace.set_rate(1 / fault.factor)
            case "rank" | "loading":
                pass  # seen when somebody asks
        if fault.for_s:
            self._recovery = asyncio.get_running_loop().call_later(fault.for_s / self.pace.speedup, self.recover)
        self._plan_wake()

    def recover(self) -> None:
        """All is well again; a process that died is started anew, with an empty cache."""
        if self._recovery is not None:
            self._recovery.cancel()
            self._recovery = None
        if self.fault is None:
            return
        self.fault = None
        self.pace.set_rate(1.0)
        if not self.alive:
            self.alive = True
            self.when_back()
        self._plan_wake()

    def end(self) -> None:
        """End for good."""
        for handle in (self._wake, self._recovery):
            if handle is not None:
                handle.cancel()
        if self.alive:
            self._die("the engine was stopped")

    def _miss_peer(self) -> None:
        """The head learns of a dead rank when it needs it: all it works on fails, then it ends."""
        if self.alive and self.fault is not None and self.fault.kind == "rank":
            self._die("EngineCore encountered an issue. See stack trace for the root cause.")

    def _die(self, why: str) -> None:
        self.alive = False
        self.engine.stop()
        lost, self._jobs = self._jobs, {}
        self._streams = 0
        for listener in lost.values():
            listener.lose(why)
        self.when_dead()
