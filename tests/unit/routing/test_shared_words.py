"""What one gateway writes for others, another one reads: pins, places, readings; and what nobody can read does no harm."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.pools.affinity import Places
from switchyard.routing.classify.flight import Flight
from switchyard.routing.classify.model import Reading, SharedReadings
from switchyard.routing.session import Pin, Pins, Session
from switchyard.routing.stored import MAX_STORED, StoredResponses

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._/:-]{0,20}", fullmatch=True)


TURNS = st.integers(0, 9999)


@given(st.builds(Pin, st.just("") | NAMES, TURNS, TURNS, st.just("") | NAMES, st.just("") | NAMES, TURNS, TURNS))
def test_a_pin(pin):
    assert Pin.from_text(pin.as_text()) == pin


@given(st.text(max_size=40))
def test_any_text_is_a_pin_or_none(text):
    pin = Pin.from_text(text)
    assert pin is None or (pin.turn >= 0 and pin.until_turn >= 0)


def test_what_is_put_is_told_and_what_is_learnt_is_not():
    told = []
    pins = Pins(60, lambda: 0.0, tell=lambda *what: told.append(what))
    pins.put("auto", Session("a", "x"), Pin("big", 1))
    pins.learn("auto", Session("b", "x"), Pin("small", 2))
    assert [what[:2] for what in told] == [("auto", "a")]
    assert pins.get("auto", Session("b", "x")).pool == "small"

    told.clear()
    places = Places(tell=lambda *what: told.append(what))
    places.put("a", "r1")
    places.put("a", "r1")
    places.learn("a", "r2")
    places.put("a", "r2")
    places.put("a", "r1")
    assert told == [("a", "r1"), ("a", "r1")]

    told.clear()
    stored = StoredResponses(lambda *what: told.append(what))
    stored.remember("resp", "pool", "replica")
    other = StoredResponses(lambda *what: told.append(what))
    other.learn("resp", told[0][1])
    assert other.place_of("resp") == stored.place_of("resp") == ("pool", "replica")
    other.learn("odd", "no tab")
    assert other.place_of("odd") is None
    assert len(told) == 1


def test_stored_places_are_bounded():
    stored = StoredResponses()
    for n in range(MAX_STORED + 1):
        stored.remember(str(n), "p", "r")
    assert stored.place_of("0") is None
    assert stored.place_of("1") is not None


class Others:
    """See `flight.Elsewhere`, with texts."""

    def __init__(self) -> None:
        self.kept: dict[bytes, str] = {}

    async def recall(self, key: bytes) -> str | None:
        await asyncio.sleep(0)
        return self.kept.get(key)

    def keep(self, key: bytes, text: str, ttl_s: float) -> None:
        assert ttl_s == 60
        self.kept[key] = text


@pytest.mark.parametrize(("text", "p"), [("0.25", 0.25), ("1", 1.0), ("2", None), ("nan", None), ("", None), ("yes", None)])
def test_a_reading(run, text, p):
    others = Others()
    others.kept[b"k"] = text
    found = run(SharedReadings(others.recall, others.keep, 60).find(b"k"))
    assert (found.p if found else None) == p


def test_a_question_is_put_once_for_all(run):
    others, asked = Others(), []

    def flight() -> Flight[Reading]:
        return Flight(lambda reading: reading.p is not None, elsewhere=SharedReadings(others.recall, others.keep, 60))

    async def ask(answer: Reading) -> Reading:
        asked.append(answer)
        return answer

    async def it():
        a, b = flight(), flight()
        assert await a.ask(b"k", lambda: ask(Reading(0.75))) == (Reading(0.75), "asked")
        both = await asyncio.gather(*(b.ask(b"k", lambda: ask(Reading(0.1))) for _ in range(2)))
        assert both == [(Reading(0.75), "cached")] * 2
        others.kept.clear()
        assert await b.ask(b"k", lambda: ask(Reading(0.1))) == (Reading(0.75), "cached"), "it has its own memory"
        assert (await a.ask(b"bad", lambda: ask(Reading(None))))[1] == "asked"
        assert (await b.ask(b"bad", lambda: ask(Reading(None))))[1] == "asked"
        assert others.kept == {}, "what is not worth keeping is not kept elsewhere either"

    run(it())
    assert len(asked) == 3
