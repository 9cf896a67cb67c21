"""What a session had before: remembered for a time, bounded, and held when the policy says so."""

import pytest
from msgspec.structs import replace

from switchyard.routing.session import Pin, Pins, Session, held_pool


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def named(key: str) -> Session:
    return Session(key, "x-session-id")


def test_a_pin_is_found_on_its_route_only():
    pins = Pins(60, Clock())
    pins.put("auto", named("a"), Pin("big", 1))
    assert pins.get("auto", named("a")) == Pin("big", 1, seen_s=1000)
    assert pins.get("other", named("a")) is None
    assert pins.get("auto", named("b")) is None
    assert len(pins) == 1


@pytest.mark.parametrize(("silent_s", "there"), [(0, True), (60, True), (60.1, False), (1e9, False)])
def test_a_session_is_forgotten_after_a_silence(silent_s, there):
    clock = Clock()
    pins = Pins(60, clock)
    pins.put("auto", named("a"), Pin("big", 1))
    clock.now_s += silent_s
    assert (pins.get("auto", named("a")) is not None) is there


def test_a_session_that_talks_is_not_forgotten():
    clock = Clock()
    pins = Pins(60, clock)
    for _ in range(5):
        pins.put("auto", named("a"), Pin("big", 1))
        clock.now_s += 50
        assert pins.get("auto", named("a")) is not None


def test_looking_a_pin_up_is_a_sign_of_life():
    """A held session is only looked up, never put again."""
    clock = Clock()
    pins = Pins(60, clock)
    pins.put("auto", named("a"), Pin("big", 1))
    for _ in range(5):
        clock.now_s += 50
        assert pins.get("auto", named("a")) is not None


def test_when_it_is_full_the_longest_unused_goes():
    clock = Clock()
    pins = Pins(1e6, clock, limit=3)
    for key in ("a", "b", "c", "a", "d", "e"):
        pins.put("auto", named(key), Pin("big", 1))
        clock.now_s += 1
    assert [key for key in "abcde" if pins.get("auto", named(key)) is not None] == ["a", "d", "e"]


def test_memory_is_bounded_under_many_sessions():
    pins = Pins(1e6, Clock(), limit=100)
    for n in range(10_000):
        pins.put("auto", named(str(n)), Pin("big", 1))
    assert len(pins) == 100


PIN = Pin("small", turn=3)
RULE = Pin("small", turn=3, until_turn=6, held_pool="big")
COMPACTED = Pin("small", turn=20, low_turn=2)
LOOP = Pin("small", turn=3, loop_pool="big", loop_turn=4)
# pin, decide_per, turn, tool_loop, certain, the pool that is held
HELD = [
    (None, "user_turn", 3, True, True, None),
    # a tool loop is never split, whatever the policy says and however the session was recognised
    (PIN, "request", 3, True, True, "small"),
    (PIN, "request", 3, True, False, "small"),
    (PIN, "user_turn", 3, True, False, "small"),
    (PIN, "session", 3, True, False, "small"),
    (PIN, "user_turn", 4, True, True, None),  # a loop of a later turn, whose beginning was not seen here
    # per request: otherwise always anew
    (PIN, "request", 3, False, True, None),
    (PIN, "request", 4, False, True, None),
    # per turn
    (PIN, "user_turn", 3, False, True, "small"),
    (PIN, "user_turn", 4, False, True, None),
    (PIN, "user_turn", 2, False, True, "small"),  # after compaction the history is shorter
    # per session
    (PIN, "session", 4, False, True, "small"),
    (PIN, "session", 99, False, True, "small"),
    # only a hint who it is
    (PIN, "user_turn", 3, False, False, None),
    (PIN, "session", 4, False, False, None),
    # a rule that holds for some turns, then back to what the session had
    (RULE, "user_turn", 5, False, True, "big"),
    (RULE, "request", 5, False, True, "big"),
    (RULE, "session", 5, False, True, "big"),
    (RULE, "user_turn", 6, False, True, None),
    (RULE, "session", 6, False, True, "small"),
    (RULE, "user_turn", 3, True, True, "big"),
    # compacted: the same work goes on, and what the human says next is new
    (COMPACTED, "user_turn", 2, False, True, "small"),
    (COMPACTED, "user_turn", 1, False, True, "small"),
    (COMPACTED, "user_turn", 3, False, True, None),
    (COMPACTED, "user_turn", 3, True, True, "small"),
    (COMPACTED, "user_turn", 20, False, True, "small"),  # not compacted after all: somebody else's short history
    (COMPACTED, "session", 3, False, True, "small"),
    # compacted while a rule holds it for three turns: so many are left, not all up to where it was
    (replace(RULE, turn=20, until_turn=23), "user_turn", 1, False, True, "big"),
    (replace(RULE, turn=20, until_turn=23, low_turn=1), "user_turn", 3, False, True, "big"),
    (replace(RULE, turn=20, until_turn=23, low_turn=1), "user_turn", 4, False, True, None),
    # a loop of another pool than the session's own: it alone
    (LOOP, "user_turn", 4, True, True, "big"),
    (LOOP, "request", 4, True, False, "big"),
    (LOOP, "user_turn", 4, False, True, None),
    (LOOP, "user_turn", 5, True, True, None),
    (LOOP, "user_turn", 3, True, True, "small"),
    # nothing but a loop is known
    (Pin("", 0, loop_pool="big", loop_turn=1), "user_turn", 1, True, True, "big"),
    (Pin("", 0, loop_pool="big", loop_turn=1), "session", 1, False, True, None),
    (Pin("", 0, loop_pool="big", loop_turn=1), "session", 0, True, True, None),
]


@pytest.mark.parametrize(("pin", "decide_per", "turn", "tool_loop", "certain", "pool"), HELD, ids=range(len(HELD)))
def test_what_a_session_keeps(pin, decide_per, turn, tool_loop, certain, pool):
    held = held_pool(pin, decide_per, turn, tool_loop, certain)
    assert (held[0] if held else None) == pool
    assert held is None or held[1]


def test_who_only_looks_keeps_no_session_alive() -> None:
    now = [0.0]
    pins, session = Pins(100, lambda: now[0]), Session("a", "x-session-id")
    pins.put("auto", session, Pin("big", 1))
    now[0] = 90
    assert pins.get("auto", session, use=False) is not None
    now[0] = 101
    assert pins.get("auto", session) is None
