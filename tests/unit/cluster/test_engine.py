"""The clockwork of an engine: times of single requests, batches, prompts beside answers, cache, memory, leaving."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.cluster.engine import Engine, Event, Job
from switchyard.cluster.prefix_cache import PrefixCache
from switchyard.cluster.speed import EngineSpeed

SPEED = EngineSpeed(((1, 0.05), (10, 0.14)), prefill_tokens_s=1000, origin="measured", note="")


def make(max_running: int = 8, kv: int = 100_000, **more: int) -> Engine:
    return Engine(SPEED, max_running, kv, **more)


def run(engine: Engine, until_s: float = 1e9) -> list[Event]:
    return engine.advance(until_s)


def test_one_request_alone() -> None:
    engine, job = make(), Job(1000, 21)
    engine.submit(job, 5.0)
    events = run(engine)
    assert [e.kind for e in events] == ["first", "last"]
    assert job.first_token_s == pytest.approx(6.0)  # 1,000 tokens at 1,000 a second
    assert job.ended_s == pytest.approx(7.0)  # 20 more at 50 ms
    assert engine.busy_s == pytest.approx(2.0)
    assert (engine.prompt_tokens, engine.generated_tokens, engine.running) == (1000, 21, 0)


def test_short_prompt_still_takes_a_step() -> None:
    engine, job = make(), Job(1, 1)
    engine.submit(job, 0.0)
    run(engine)
    assert job.first_token_s == job.ended_s == pytest.approx(0.05)


def test_tokens_come_a_step_at_a_time() -> None:
    engine, job = make(), Job(100, 10)
    engine.submit(job, 0.0)
    for now_s, tokens in ((0.09, 0), (0.11, 1), (0.16, 2), (0.21, 3), (0.24, 3)):
        engine.advance(now_s)
        assert engine.tokens_of(job) == tokens
    assert engine.step_end_s == pytest.approx(0.25)
    assert engine.next_s == pytest.approx(0.1 + 9 * 0.05)
    run(engine)
    assert engine.tokens_of(job) == 10
    assert engine.next_s is None


def test_a_batch_is_slower_for_each_and_faster_in_all() -> None:
    engine = make(max_running=10)
    jobs = [Job(1, 101) for _ in range(10)]
    for job in jobs:
        engine.submit(job, 0.0)
    run(engine)
    ended = max(job.ended_s or 0 for job in jobs)
    assert ended == pytest.approx(100 * 0.14, rel=0.02)
    assert 10 * 101 / ended > 3 * 20  # alone: 20 tokens a second


def test_long_prompt_slows_down_who_is_answered() -> None:
    engine = make(step_tokens=500)
    first, second = Job(1, 100), Job(2000, 1)
    engine.submit(first, 0.0)
    engine.submit(second, 1.01)
    engine.advance(1.06)
    before = engine.tokens_of(first)
    engine.advance(1.06 + 4 * 0.55)
    assert engine.tokens_of(first) - before == 4  # four steps of 500 tokens and 50 ms each
    assert second.first_token_s == pytest.approx(1.05 + 4 * 0.55)


def test_places_and_memory_make_requests_wait() -> None:
    engine = make(max_running=2, kv=1000)
    jobs = [Job(100, 100), Job(100, 100), Job(100, 100)]
    for job in jobs:
        engine.submit(job, 0.0)
    assert (engine.running, engine.waiting) == (1, 2)  # others join when the step is over
    engine.advance(0.3)
    assert (engine.running, engine.waiting) == (2, 1)
    run(engine)
    assert jobs[2].began_s == pytest.approx(jobs[0].ended_s)
    narrow = make(kv=300)
    for job in (waits := [Job(100, 100), Job(100, 100)]):
        narrow.submit(job, 0.0)
    narrow.advance(0.3)
    assert (narrow.running, narrow.waiting) == (1, 1)
    assert narrow.kv_usage == pytest.approx(200 / 300)
    run(narrow)
    assert all(job.ended_s for job in waits)
    assert narrow.kv_usage == 0


def test_known_beginnings_are_not_read_again() -> None:
    engine = make(block_tokens=100)
    first = Job(1000, 10, blocks=range(10), answer_blocks=(10,))
    engine.submit(first, 0.0)
    run(engine, 100)
    again = Job(1150, 10, blocks=range(11))
    engine.submit(again, 100.0)
    run(engine)
    assert again.cached_tokens == 1100
    assert again.first_token_s == pytest.approx(100.05)
    assert (engine.asked_tokens, engine.hit_tokens) == (2150, 1100)
    whole = Job(1100, 1, blocks=range(11))
    engine.submit(whole, 200.0)
    run(engine)
    assert whole.cached_tokens == 1099  # one token is always computed


def test_cache_forgets_the_longest_unused() -> None:
    cache = PrefixCache(300, 100)
    cache.keep(["a", "b", "c"])
    assert cache.find(["a"]) == 100
    cache.keep(["d"])
    assert [cache.find([key]) for key in "abcd"] == [100, 0, 100, 100]
    cache.clear()
    assert cache.find(["a"]) == 0


def test_without_cache_nothing_is_found() -> None:
    engine = Engine(SPEED, 8, 1000, caching=False)
    for _ in range(2):
        engine.submit(Job(100, 1, blocks=range(6)), 0.0)
        run(engine, 0.0)
    run(engine)
    assert engine.hit_tokens == 0


def test_leaving_at_any_time_frees_the_place() -> None:
    engine = make(max_running=2)
    running, reading, waiting = Job(1, 1000), Job(5000, 10), Job(1, 1)
    engine.submit(running, 0.0)
    engine.submit(reading, 1.0)
    engine.submit(waiting, 1.0)
    engine.advance(1.2)
    for job in (waiting, reading, running, running):
        engine.cancel(job, 1.3)
    assert run(engine) == []
    assert (engine.running, engine.waiting, engine.kv_usage) == (0, 0, 0)


def test_a_dead_engine_loses_all_and_begins_anew() -> None:
    engine = make(max_running=1)
    jobs = [Job(100, 100, blocks=range(6)), Job(1, 1)]
    for job in jobs:
        engine.submit(job, 0.0)
    assert set(engine.stop()) == set(jobs)
    assert run(engine) == []
    late = Job(100, 2, blocks=range(6))
    engine.submit(late, 50.0)
    run(engine)
    assert late.cached_tokens == 0
    assert late.first_token_s == pytest.approx(50.1)


@pytest.mark.parametrize(("prompt", "answer", "places"), [(2000, 200, 8), (500, 300, 3), (8000, 50, 8)])
def test_full_places_give_the_rate_that_planning_expects(prompt: int, answer: int, places: int) -> None:
    engine = make(max_running=places, kv=10**6)
    jobs = [Job(prompt, answer) for _ in range(150)]
    for job in jobs:
        engine.submit(job, 0.0)
    run(engine)
    ends = sorted(job.ended_s or 0.0 for job in jobs)
    rate = 80 / (ends[119] - ends[39])
    assert rate == pytest.approx(SPEED.requests_s(places, prompt, answer), rel=0.05)


arrivals = st.lists(
    st.tuples(st.floats(0, 20), st.integers(1, 3000), st.integers(1, 60), st.integers(0, 3)), min_size=1, max_size=12
)


@given(arrivals, st.lists(st.floats(0, 60), max_size=20), st.integers(1, 4))
def test_looking_often_changes_nothing(arriving: list[tuple[float, int, int, int]], looks: list[float], places: int) -> None:
    def play(at: list[float]) -> list[tuple[float, str, int]]:
        engine = make(max_running=places, block_tokens=100)
        jobs, events = [], []
        times = sorted([(t, None) for t in at] + [(a[0], a) for a in arriving], key=lambda x: x[0])
        for now_s, arrival in times:
            if arrival is None:
                events += engine.advance(now_s)
                continue
            _, prompt, answer, family = arrival
            jobs.append(Job(prompt, answer, blocks=[(family, i) for i in range(prompt // 100)]))
            events += engine.submit(jobs[-1], now_s)
        events += run(engine)
        assert engine.kv_usage == engine.running == engine.waiting == 0
        assert engine.generated_tokens == sum(job.answer_tokens for job in jobs)
        assert [e.kind for e in events].count("last") == len(jobs)
        return sorted((round(e.at_s, 6), e.kind, jobs.index(e.job)) for e in events)

    once, often = play([]), play(looks)
    assert [e[1:] for e in once] == [e[1:] for e in often]
    assert [e[0] for e in once] == pytest.approx([e[0] for e in often], abs=1e-5)


@given(arrivals)
def test_next_is_when_something_happens(arriving: list[tuple[float, int, int, int]]) -> None:
    engine = make(max_running=3)
    for at_s, prompt, answer, _ in sorted(arriving):
        engine.submit(Job(prompt, answer), at_s)
    turns = 0
    while (next_s := engine.next_s) is not None:
        turns += 1
        assert engine.advance(next_s - 1e-6) == []
        engine.advance(next_s + 1e-9)
        assert turns < 100
