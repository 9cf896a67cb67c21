"""The bounded memory of conversations away from home."""

from hypothesis import given
from hypothesis import strategies as st

from switchyard.pools.affinity import Moved


def test_a_move_is_remembered_until_it_is_forgotten():
    moved = Moved()
    assert moved.get("s") is None
    moved.put("s", "b")
    assert moved.get("s") == "b"
    moved.put("s", "c")
    assert (moved.get("s"), len(moved)) == ("c", 1)
    moved.forget("s")
    moved.forget("s")
    assert (moved.get("s"), len(moved)) == (None, 0)


def test_the_longest_unused_goes_first():
    moved = Moved(limit=3)
    for key in "abc":
        moved.put(key, "x")
    assert moved.get("a") == "x"  # used: b is the oldest now
    moved.put("d", "x")
    assert [key for key in "abcd" if moved.get(key)] == ["a", "c", "d"]


@given(st.lists(st.tuples(st.sampled_from(["put", "get", "forget"]), st.integers(0, 20)), max_size=200), st.integers(1, 5))
def test_it_never_holds_more_than_its_limit(steps, limit):
    moved = Moved(limit)
    for step, key in steps:
        if step == "put":
            moved.put(str(key), "x")
            assert moved.get(str(key)) == "x"
        elif step == "get":
            moved.get(str(key))
        else:
            moved.forget(str(key))
        assert len(moved) <= limit
