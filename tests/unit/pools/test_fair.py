"""The order of the queue, as a table and as properties."""

from collections import Counter
from dataclasses import dataclass, field
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from switchyard.pools.fair import FairQueue

_numbers = count()


@dataclass(frozen=True)
class Request:
    api_key: str = ""
    session: str = ""
    background: bool = False
    arrived_s: float = 0.0
    number: int = field(default_factory=lambda: next(_numbers))


def queue_of(*requests: Request, patience_s: float = 100) -> FairQueue[Request]:
    queue: FairQueue[Request] = FairQueue(patience_s)
    for request in requests:
        queue.add(request)
    return queue


def served(queue: FairQueue[Request], now_s: float = 0.0) -> list[Request]:
    """All of them, in the order in which they are served; the queue is empty then."""
    order = []
    while queue:
        request = next(queue.in_order(now_s))
        queue.serve(request)
        order.append(request)
    return order


def words(queue: FairQueue[Request], now_s: float = 0.0) -> str:
    return " ".join(r.api_key + r.session for r in served(queue, now_s))


def of(text: str, **how: object) -> list[Request]:
    """`a1` is a request of key a in session 1."""
    return [Request(word[0], word[1:], **how) for word in text.split()]


def test_first_come_first_served_within_a_session():
    requests = of("a a a a")
    assert served(queue_of(*requests)) == requests


def test_keys_take_turns_however_many_they_have():
    assert words(queue_of(*of("a a a a b b c"))) == "a b c a b a a"


def test_sessions_take_their_key_s_turns_in_turn():
    assert words(queue_of(*of("a1 a1 a1 a2 b1 b1 b1"))) == "a1 b1 a2 b1 a1 b1 a1"


def test_who_comes_later_waits_for_its_turn_and_no_longer():
    queue = queue_of(*of("a a a"))
    queue.serve(next(queue.in_order(0)))
    queue.add(Request("b"))
    assert words(queue) == "a b a"


def test_interactive_goes_before_background():
    assert words(queue_of(*of("b b", background=True), *of("i i"))) == "i i b b"


def test_background_that_is_late_takes_turns_with_the_others():
    late, patient = Request("b", background=True, arrived_s=0), Request("b", background=True, arrived_s=9)
    assert words(queue_of(late, patient, *of("i i i"), patience_s=10), now_s=9.9) == "i i i b b"
    assert words(queue_of(late, patient, *of("i i i"), patience_s=10), now_s=10) == "i b i i b"


def test_leaving_takes_nobody_s_turn():
    requests = of("a a a b b b")
    queue = queue_of(*requests)
    queue.remove(requests[0])
    queue.remove(requests[4])
    assert served(queue) == [requests[i] for i in (1, 3, 2, 5)]
    assert len(queue) == 0


def test_a_full_queue_gives_the_place_of_who_has_most():
    hog = of("a1 a2 a2 a2")
    assert queue_of(*hog).give_way(Request("b")) == hog[-1]
    assert queue_of(*hog).give_way(Request("a", "1")) == hog[-1], "within a key, the session with the most"
    assert queue_of(*hog).give_way(Request("a", "2")) is None
    assert queue_of(*of("a a b b")).give_way(Request("b")) is None
    assert queue_of(*of("a b")).give_way(Request("c")) is None, "nobody has more than it would have"


def test_background_gives_way_to_interactive_and_not_the_other_way():
    background = of("b b", background=True)
    assert queue_of(*of("a a a"), *background).give_way(Request("a")) == background[-1]
    assert queue_of(*of("a a a a")).give_way(Request("b", background=True)) is None


Requests = st.lists(
    st.builds(Request, st.sampled_from("abc"), st.sampled_from("12"), st.booleans(), st.floats(0, 15)), max_size=40
).map(lambda requests: sorted(requests, key=lambda r: r.arrived_s))


@given(requests=Requests, leaving=st.sets(st.integers(0, 39)))
def test_everybody_who_stays_is_served_once(requests, leaving):
    queue = queue_of(*requests, patience_s=10)
    for number in leaving:
        if number < len(requests):
            queue.remove(requests[number])
    staying = [r for i, r in enumerate(requests) if i not in leaving]
    assert len(queue) == len(staying)
    assert len(list(queue.in_order(5.0))) == len(staying)
    order = served(queue, 15.0)
    assert sorted(order, key=hash) == sorted(staying, key=hash)
    lanes = [r.background and 15.0 - r.arrived_s < 10 for r in order]
    assert lanes == sorted(lanes), "background that is not late comes last"
    for key in "abc":
        for session in "12":
            for lane in (False, True):
                mine = [r for r in order if (r.api_key, r.session, r.background) == (key, session, lane)]
                if not lane:
                    assert mine == [r for r in staying if (r.api_key, r.session, r.background) == (key, session, lane)]


@given(counts=st.lists(st.integers(1, 30), min_size=2, max_size=6), steps=st.integers(1, 60))
def test_while_all_have_requests_no_key_is_ahead_by_more_than_one(counts, steps):
    queue = queue_of(*(Request(f"k{key}", str(i % 3)) for key, number in enumerate(counts) for i in range(number)))
    got: Counter[str] = Counter()
    for _ in range(min(steps, min(counts) * len(counts))):
        request = next(queue.in_order(0))
        queue.serve(request)
        got[request.api_key] += 1
    numbers = [got[f"k{key}"] for key in range(len(counts))]
    assert max(numbers) - min(numbers) <= 1
