"""An engine's random life on virtual time: every request is told exactly once how it ended, and nothing is left over."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from switchyard.cluster.engine import Engine, Job
from switchyard.cluster.speed import EngineSpeed
from switchyard.emulate.engine import LivingEngine
from switchyard.emulate.faults import KINDS, make_fault
from switchyard.emulate.pace import Pace
from switchyard.simulate.clock import VirtualLoop

SPEED = EngineSpeed(((1, 0.05), (10, 0.14)), prefill_tokens_s=1000, origin="measured", note="")


class Asker:
    """A listener that notes what it is told."""

    def __init__(self, streams: bool) -> None:
        self.streams = streams
        self.told: list[str] = []
        self.tokens: list[int] = []

    def begin(self, job: Job) -> None:
        self.told.append("begin")

    def more(self, tokens: int) -> None:
        self.tokens.append(tokens)

    def end(self, job: Job) -> None:
        self.told.append("end")

    def lose(self, why: str) -> None:
        self.told.append("lose")


asks = st.lists(
    st.tuples(
        st.floats(0, 20), st.integers(1, 3000), st.integers(1, 60), st.booleans(), st.none() | st.floats(0, 5)
    ),
    min_size=1, max_size=10,
)  # fmt: skip
faults = st.lists(st.tuples(st.floats(0, 25), st.sampled_from(KINDS), st.floats(0.1, 5)), max_size=4)


@settings(max_examples=300)
@given(asks, faults)
def test_nobody_is_forgotten(asking, failing):
    loop = VirtualLoop()
    engine = Engine(SPEED, 4, 50_000)
    askers: list[tuple[Asker, bool]] = []

    async def live():
        living = LivingEngine(engine, Pace(loop.time))

        async def ask(at_s, prompt, answer, streams, leaves_after_s):
            await asyncio.sleep(at_s)
            if not living.alive:
                return
            asker, job = Asker(streams), Job(prompt, answer)
            living.submit(job, asker)
            left = False
            if leaves_after_s is not None:
                await asyncio.sleep(leaves_after_s)
                left = living.leave(job)
            askers.append((asker, left))

        for at_s, kind, for_s in failing:
            loop.call_at(at_s, living.suffer, make_fault(kind, for_s))
        await asyncio.gather(*(ask(*a) for a in asking))
        await asyncio.sleep(10_000)
        assert living.alive

    loop.run_until_complete(live())
    loop.close()
    for asker, left in askers:
        ends = [t for t in asker.told if t != "begin"]
        assert len(ends) == (0 if left else 1)
        assert asker.told.count("begin") <= 1
        assert asker.tokens == sorted(asker.tokens)
        if asker.told[-1:] == ["end"]:
            assert asker.told == ["begin", "end"]
    assert (engine.running, engine.waiting, engine.kv_usage) == (0, 0, 0)


def test_under_compressed_time_streams_are_written_seldom_and_end_on_time():
    """A step every 0.2 ms: writing after each is too much, and a place that is free later than it should be is throughput."""
    loop = VirtualLoop()
    late_s: list[float] = []

    class Stream(Asker):
        def end(self, job: Job) -> None:
            super().end(job)
            assert job.ended_s is not None
            late_s.append(loop.time() - job.ended_s / 1000)

    streams = [Stream(streams=True) for _ in range(16)]

    async def live():
        living = LivingEngine(Engine(SPEED, 16, 50_000), Pace(loop.time, 1000))
        for answer, stream in enumerate(streams, 100):
            living.submit(Job(10, answer), stream)
        await asyncio.sleep(1)

    loop.run_until_complete(live())
    loop.close()
    assert len(late_s) == len(streams)
    assert max(late_s) < 1e-4
    assert all(1 <= len(stream.tokens) <= 4 for stream in streams), [s.tokens for s in streams]
