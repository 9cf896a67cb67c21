"""One of three replicas dies, hangs or becomes slow under 50 requests a second, and comes back. What do clients see?"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from switchyard.demo.engine import EmbeddedEngine
from switchyard.demo.model import fetch_model

from .client import eventually
from .engine import HANG, Engine, reply
from .figures import Figures
from .gateway import Gateway, policy, pool
from .steady import Steady

Start = Callable[..., Any]
WORKS_S = 0.05
PER_S = 50
STALL_S = 1.0
FIRST_BYTE_S = 5.0
ANSWER = reply({"id": "x", "object": "chat.completion", "choices": []})


@pytest.fixture
def three(start: Start) -> tuple[Engine, Engine, Engine]:
    engines = tuple(start(Engine()) for _ in range(3))
    for engine in engines:
        engine.play([WORKS_S, *ANSWER])
    return engines


def gateway_of(start: Start, *engines: Engine, balance: str) -> Gateway:
    block = pool(
        *engines, balance=balance, limits={"in_flight": 20, "queue": 500}, timeouts={"first_byte_s": FIRST_BYTE_S},
        health={"every_s": 0.2, "stall_s": STALL_S},
    )  # fmt: skip
    return start(Gateway(policy({"small": block})))


def state_of(gateway: Gateway, url: str) -> str:
    (found,) = gateway.client().get("/admin/pools").json()["pools"]
    return next(r["state"] for r in found["replicas"] if r["url"] == url)


def comes_back_gently(engine: Engine, others: list[Engine], since_s: float, for_s: float = 3.0) -> None:
    """It has traffic again, and at no time a burst: in no half second more than most of what comes in that time."""
    time.sleep(for_s)
    arrived, everywhere = (
        [r.arrived_s for e in engines for r in e.work if r.arrived_s > since_s] for engines in ([engine], [engine, *others])
    )
    assert len(arrived) > 5, "no traffic after it came back"
    for at_s in arrived:
        here, all_ = (sum(at_s <= a < at_s + 0.5 for a in found) for found in (arrived, everywhere))
        assert here <= max(8, 0.6 * all_), f"{here} of {all_} requests of half a second"


@pytest.mark.parametrize("balance", ["prefix", "round_robin"])
def test_a_replica_is_killed(start: Start, three: tuple[Engine, Engine, Engine], balance: str) -> None:
    ill, *others = three
    gateway = gateway_of(start, *three, balance=balance)
    with Steady(gateway.port, PER_S) as traffic:
        eventually(lambda: len(ill.work) > 100, 60)  # so much traffic that the retry budget is more than it has in flight
        ill.shut()
        time.sleep(3)
        assert state_of(gateway, ill.url) in {"down", "ejected"}  # by refused connections, or by answers that broke off
        ill.listen()
        eventually(lambda: state_of(gateway, ill.url) == "ready", 10)
        comes_back_gently(ill, others, time.monotonic())
    assert traffic.failed() == [], "nobody may notice: who came later, and whose answer had not begun"


@pytest.mark.parametrize("balance", ["prefix", "least_tokens"])
@pytest.mark.parametrize("how", ["its health path goes on", "nothing goes on"])
def test_a_replica_hangs(start: Start, three: tuple[Engine, Engine, Engine], how: str, balance: str) -> None:
    ill, *others = three
    figures = Figures(step=1).attach(ill)
    gateway = gateway_of(start, *three, balance=balance)
    with Steady(gateway.port, PER_S) as traffic:
        eventually(lambda: len(ill.work) > 20)
        ill.play([HANG])
        figures.running, figures.step = 3, 0
        if how == "nothing goes on":
            for path in ("/health", "/metrics"):
                ill.play_at(path, [HANG])
        hung_s = time.monotonic()
        eventually(lambda: state_of(gateway, ill.url) == "ejected", STALL_S + FIRST_BYTE_S + 5)
        ejected_s = time.monotonic()
        time.sleep(2)
        ill.reset()
        ill.play([WORKS_S, *ANSWER])
        eventually(lambda: state_of(gateway, ill.url) == "ready", 30)
        back_s = time.monotonic()
        comes_back_gently(ill, others, back_s)
    assert traffic.failed(ejected_s) == [], "nobody who came after it was ejected"
    lost = traffic.failed()
    assert all(hung_s - FIRST_BYTE_S < s.sent_s <= ejected_s for s in lost)
    window = [s for s in traffic.sent if hung_s <= s.sent_s <= ejected_s]
    assert len(lost) <= len(window) / 2, "and in that window those that it had taken"
    assert len(lost) <= 25, "never more than it may have in flight"


def test_a_replica_becomes_twenty_times_as_slow(start: Start, three: tuple[Engine, Engine, Engine]) -> None:
    ill, *others = three
    gateway = gateway_of(start, *three, balance="prefix")
    with Steady(gateway.port, PER_S) as traffic:
        eventually(lambda: len(ill.work) > 20)
        ill.play([20 * WORKS_S, *ANSWER])
        slow_s = time.monotonic()
        time.sleep(4)
        assert state_of(gateway, ill.url) == "ready", "slow is not broken"
        ill.play([WORKS_S, *ANSWER])
        fast_s = time.monotonic()
        comes_back_gently(ill, others, fast_s)
    assert traffic.failed() == []
    meanwhile = [s for s in traffic.sent if slow_s + 1 < s.sent_s < fast_s]
    slow = [s for s in meanwhile if s.ended_s - s.sent_s > 10 * WORKS_S]
    assert len(slow) <= len(meanwhile) / 4, "the others take over most of its share"


# ---- real engines ----


@pytest.fixture(scope="module")
def real_engines() -> Iterator[list[EmbeddedEngine]]:
    model = fetch_model()
    with ExitStack() as stack:
        engines = [stack.enter_context(EmbeddedEngine(model, context_tokens=4096, slots=4)) for _ in range(3)]
        for engine in engines:
            asyncio.run(engine.wait_ready())
        yield engines


@pytest.mark.timeout(120)
def test_real_engines_are_stopped_and_killed(start: Start, real_engines: list[EmbeddedEngine]) -> None:
    """llama.cpp's server in processes: one is stopped and goes on (SIGSTOP, SIGCONT), another is killed."""
    stopped, killed, _ = real_engines
    urls = [engine.url for engine in real_engines]
    block = pool(
        *urls, model="smollm2", limits={"in_flight": 4, "queue": 500, "queue_timeout_s": 60},
        timeouts={"first_byte_s": 10}, health={"every_s": 0.5, "stall_s": 4},
    )  # fmt: skip
    gateway = start(Gateway(policy({"small": block})))
    with Steady(gateway.port, 3, limit_s=60) as traffic:
        eventually(lambda: {s.replica for s in traffic.sent} == {url.removeprefix("http://") for url in urls}, 30)
        assert stopped.pid
        assert killed.pid
        os.kill(stopped.pid, signal.SIGSTOP)
        try:
            eventually(lambda: state_of(gateway, stopped.url) == "ejected", 40)
            ejected_s = time.monotonic()
            time.sleep(2)
        finally:
            os.kill(stopped.pid, signal.SIGCONT)
        eventually(lambda: state_of(gateway, stopped.url) == "ready", 40)
        back_s = time.monotonic()
        os.kill(killed.pid, signal.SIGKILL)
        eventually(lambda: state_of(gateway, killed.url) == "down", 20)
        label = stopped.url.removeprefix("http://")
        eventually(lambda: any(s.replica == label and s.sent_s > back_s for s in traffic.sent), 30)
        time.sleep(2)
    assert traffic.failed(ejected_s) == [], "the killed one's requests had no answer yet: another took them over"
    assert len(traffic.failed()) <= 4, "what the stopped one had in flight, at most"
    assert len([s for s in traffic.sent if s.status == 200]) > 30
