"""The bounded memory of where conversations were last."""

from hypothesis import given
from hypothesis import strategies as st

from switchyard.pools.affinity import Places


def test_the_last_place_counts():
    places = Places()
    assert places.get("s") is None
    places.put("s", "b")
    assert places.get("s") == "b"
    places.put("s", "c")
    assert (places.get("s"), len(places)) == ("c", 1)


def test_the_longest_unused_goes_first():
    places = Places(limit=3)
    for key in "abc":
        places.put(key, "x")
    assert places.get("a") == "x"  # used: b is the oldest now
    places.put("d", "x")
    assert [key for key in "abcd" if places.get(key)] == ["a", "c", "d"]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=200), st.integers(1, 5))
def test_it_never_holds_more_than_its_limit(steps, limit):
    places = Places(limit)
    for puts, key in steps:
        if puts:
            places.put(str(key), "x")
            assert places.get(str(key)) == "x"
        else:
            places.get(str(key))
        assert len(places) <= limit
