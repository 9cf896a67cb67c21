"""One engine as a clockwork: continuous batching, chunked prefill, prefix cache, KV memory. Pure; time comes in.

Emulation runs it against the real clock, simulation on virtual time: both see the same engine. It works in steps, as vLLM
does: in a step each running request gets one token, and the oldest requests that are still reading get up to `step_tokens`
tokens of their prompts read. Requests join and leave between steps only. A step takes what `EngineSpeed` says for its
tokens and, on top, for its prompt tokens: while somebody's long prompt is read, everybody's tokens come slower.

Not modelled: preemption (a request is let in only when its whole answer has room in the KV cache), speculative decoding,
the cost of reading a long KV cache while decoding.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from switchyard.cluster.prefix_cache import PrefixCache
from switchyard.cluster.speed import EngineSpeed

STEP_TOKENS = 8192
"""Prompt tokens that one step reads at most (vLLM's --max-num-batched-tokens; 8,192 is what it takes by itself)."""


@dataclass(eq=False, slots=True)
class Job:
    """A request inside an engine.

    Attributes:
        prompt_tokens: at least 1.
        answer_tokens: tokens after which it ends by itself; at least 1.
        blocks: keys of the prompt's full cache blocks, each standing for all before it, too.
        answer_blocks: keys of the blocks that the answer fills on top.
        cached_tokens: of the prompt, found in the cache; known once it is read.
        began_s: when its prompt began to be read; None while it waits.
        first_token_s: when its first token was there.
        ended_s: when it had all its tokens.
    """

    prompt_tokens: int
    answer_tokens: int
    blocks: Sequence[Hashable] = ()
    answer_blocks: Sequence[Hashable] = ()
    cached_tokens: int = 0
    began_s: float | None = None
    first_token_s: float | None = None
    ended_s: float | None = None
    left: bool = False
    _unread: int = field(default=0, init=False)
    _joined: int = field(default=0, init=False)

    @property
    def kv_tokens(self) -> int:
        """Its place in the KV cache."""
        return self.prompt_tokens + self.answer_tokens


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a job: its first token came, or its last."""

    at_s: float
    kind: Literal["first", "last"]
    job: Job


class Engine:
    """An engine at work.

    Args:
        speed: how fast it is.
        max_running: requests that it works on at once (--max-num-seqs).
        kv_cache_tokens: tokens that its KV cache holds.
        block_tokens: tokens of a cache block.
        step_tokens: prompt tokens that one step reads at most.
        caching: whether it keeps prefixes.

    Attributes:
        prompt_tokens: read so far, the cached ones not counted.
        generated_tokens: made so far.
        asked_tokens: prompt tokens looked for in the prefix cache.
        hit_tokens: found there.
        busy_s: seconds in which a step ran.
    """

    def __init__(
        self,
        speed: EngineSpeed,
        max_running: int,
        kv_cache_tokens: int,
        block_tokens: int = 16,
        step_tokens: int = STEP_TOKENS,
        caching: bool = True,
    ) -> None:
        self.speed = speed
        self.max_running = max_running
        self.kv_cache_tokens = kv_cache_tokens
        self._step_tokens = step_tokens
        self._cache = PrefixCache(kv_cache_tokens if caching else 0, block_tokens)
        self._waiting: deque[Job] = deque()
        self._reading: deque[Job] = deque()
        self._running: list[tuple[int, int, Job]] = []  # heap: by the step of the last token
        self._kv_used = 0
        self._order = 0
        self._now_s = 0.0
        self._steps = 0
        self._step_end_s: float | None = None
        self._chunk: list[tuple[Job, int]] = []
        self._decoding = 0  # requests that get a token in the step that runs
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self.asked_tokens = 0
        self.hit_tokens = 0
        self.busy_s = 0.0

    # ---- what it says about itself ----

    @property
    def running(self) -> int:
        """Requests that it works on."""
        return len(self._reading) + len(self._running)

    @property
    def waiting(self) -> int:
        """Requests in its own queue."""
        return len(self._waiting)

    @property
    def kv_usage(self) -> float:
        """Share (0..1) of the KV cache that running requests have."""
        return self._kv_used / self.kv_cache_tokens

    def tokens_of(self, job: Job) -> int:
        """Tokens that a job has got so far."""
        if job.ended_s is not None:
            return job.answer_tokens
        return 0 if job.first_token_s is None else 1 + self._steps - job._joined

    def jobs(self) -> Iterator[Job]:
        """All that wait or run."""
        yield from self._waiting
        yield from self._reading
        yield from (job for _, _, job in self._running if not job.left)

    @property
    def next_s(self) -> float | None:
        """When the next thing happens that `advance` would tell of or act on; None when it idles. Call after `advance`."""
        if self._step_end_s is None:
            return None
        if self._chunk or not self._running:
            return self._step_end_s
        more = self._running[0][0] - self._steps - 1
        return self._step_end_s + (more * self.speed.step_s(self._decoding) if more > 0 and not self._waits_to_read() else 0.0)

    @property
    def step_end_s(self) -> float | None:
        """When the step that runs is over, and each running request has a token more; None when it idles."""
        return self._step_end_s

    # ---- what happens to it ----

    def submit(self, job: Job, now_s: float) -> list[Event]:
        """Take a request; tells what happened until now."""
        events = self.advance(now_s)
        self._waiting.append(job)
        if self._step_end_s is None:
            self._now_s = now_s
            self._begin_step(now_s)
        return events

    def cancel(self, job: Job, now_s: float) -> list[Event]:
        """Drop a request; tells what happened until now. Its part of the step that runs is lost work."""
        events = self.advance(now_s)
        if job.ended_s is not None or job.left:
            return events
        job.left = True
        if job in self._waiting:
            self._waiting.remove(job)
            return events
        self._kv_used -= job.kv_tokens
        if job in self._reading:
            self._reading.remove(job)
        else:  # out of the heap at once: how many run decides how long a step is
            self._running = [entry for entry in self._running if entry[2] is not job]
            heapq.heapify(self._running)
        return events

    def stop(self) -> list[Job]:
        """Drop everything, and the cache with it, as an engine that dies does; gives the jobs that were lost."""
        lost = list(self.jobs())
        for job in lost:
            job.left = True
        self._waiting.clear()
        self._reading.clear()
        self._running.clear()
        self._chunk.clear()
        self._cache.clear()
        self._kv_used = 0
        self._step_end_s = None
        return lost

    def advance(self, until_s: float) -> list[Event]:
        """Let time pass; tells what happened."""
        events: list[Event] = []
        while self._step_end_s is not None and self._step_end_s <= until_s:
            self._end_step(self._step_end_s, events)
            self._begin_step(until_s)
        return events

    # ---- steps ----

    def _waits_to_read(self) -> bool:
        return bool(self._reading) or (bool(self._waiting) and self._has_room(self._waiting[0]))

    def _has_room(self, job: Job) -> bool:
        return self.running < self.max_running and (self._kv_used + job.kv_tokens <= self.kv_cache_tokens or not self.running)

    def _begin_step(self, until_s: float) -> None:
        """Let in who has room, and begin a step; of steps that are all alike, as many as end before `until_s` pass at once."""
        while self._waiting and self._has_room(self._waiting[0]):
            self._let_in(self._waiting.popleft())
        self._decoding = len(self._running)
        self._chunk.clear()
        if not self.running:
            self._step_end_s = None
            return
        chunk_tokens = 0
        for job in self._reading:
            take = min(job._unread, self._step_tokens - chunk_tokens)
            if take <= 0:
                break
            self._chunk.append((job, take))
            chunk_tokens += take
        if self._chunk:
            took_s = self.speed.prefill_s(chunk_tokens)
            took_s = took_s + self.speed.step_s(self._decoding) if self._decoding else max(took_s, self.speed.step_s(1))
        else:
            took_s = self.speed.step_s(self._decoding)
            alike = min(self._running[0][0] - self._steps - 1, math.floor((until_s - self._now_s) / took_s) - 1)
            if alike > 0:
                self._pass(alike, alike * took_s)
        self._step_end_s = self._now_s + took_s

    def _let_in(self, job: Job) -> None:
        job.began_s = self._now_s
        job.cached_tokens = min(self._cache.find(job.blocks), job.prompt_tokens - 1)
        job._unread = job.prompt_tokens - job.cached_tokens
        self.asked_tokens += job.prompt_tokens
        self.hit_tokens += job.cached_tokens
        self._kv_used += job.kv_tokens
        self._reading.append(job)

    def _pass(self, steps: int, took_s: float) -> None:
        self._steps += steps
        self._now_s += took_s
        self.busy_s += took_s
        self.generated_tokens += steps * self._decoding

    def _end_step(self, end_s: float, events: list[Event]) -> None:
        self._pass(1, end_s - self._now_s)
        self._now_s = end_s
        while self._running and self._running[0][0] <= self._steps:
            job = heapq.heappop(self._running)[2]
            self._finish(job, end_s, events)
        for job, tokens in self._chunk:
            if job.left:
                continue
            job._unread -= tokens
            self.prompt_tokens += tokens
            if not job._unread:
                self._reading.remove(job)
                self._start_answer(job, end_s, events)

    def _start_answer(self, job: Job, end_s: float, events: list[Event]) -> None:
        self._cache.keep(job.blocks)
        job.first_token_s = end_s
        job._joined = self._steps
        self.generated_tokens += 1
        events.append(Event(end_s, "first", job))
        if job.answer_tokens <= 1:
            self._finish(job, end_s, events)
            return
        self._order += 1
        heapq.heappush(self._running, (self._steps + job.answer_tokens - 1, self._order, job))

    def _finish(self, job: Job, end_s: float, events: list[Event]) -> None:
        job.ended_s = end_s
        self._kv_used -= job.kv_tokens
        self._cache.keep(job.answer_blocks)
        events.append(Event(end_s, "last", job))
