"""What gateways tell each other, on a board in this process: who hears what, and who keeps quiet."""

import asyncio
from collections import Counter
from random import Random

import pytest

from switchyard import fleet as fleet_module
from switchyard.config.problem import PolicyError
from switchyard.fleet import Fleet
from switchyard.pools.actions import act
from switchyard.pools.pool import Pool

from .build import policy_of

POLICY = """\
version: 1
pools:
  p: {model: m, replicas: [{url: http://h:1, name: a}, {url: http://h:2, name: b}]}
"""


class Board:
    """See `fleet.Boards`; may be out of reach."""

    def __init__(self) -> None:
        self.notices: dict[str, dict[str, str]] = {}
        self.posts = 0
        self.reachable = True
        self.reads: Counter[asyncio.Task[object] | None] = Counter()

    def post(self, board, name, value):
        self.posts += 1
        self.notices.setdefault(board, {})[name] = value

    def take_down(self, board, name, value):
        assert self.notices[board].pop(name) == value

    async def read(self, boards):
        self.reads[asyncio.current_task()] += 1
        return {board: dict(self.notices.get(board, {})) for board in boards} if self.reachable else None


class Gateway:
    """A pool that tells a fleet, as app.py puts them together."""

    def __init__(self, board: Board, me: str, crew: str = "") -> None:
        self.board = board
        self.policies: list[bytes | None] = []
        self.refuses = False
        self.fleet = Fleet(board, me, crew, lambda: {"p": self.pool}, self.take)
        self.pool = Pool("p", policy_of(POLICY).pools["p"], Random(1), tell=self.fleet.tell_health)
        for replica in self.pool.replicas:
            replica.mark("ready")

    async def take(self, raw: bytes | None) -> None:
        if self.refuses:
            raise PolicyError([])
        self.policies.append(raw)

    @property
    def states(self) -> list[str]:
        return [replica.state for replica in self.pool.replicas]

    def by_hand(self, label: str, action: str) -> None:
        replica = next(r for r in self.pool.replicas if r.label == label)
        act(self.pool, replica, action, asyncio.get_running_loop().time(), force=True)
        self.fleet.tell_action("p", label, action)


@pytest.fixture(autouse=True)
def _fast(monkeypatch):
    monkeypatch.setattr(fleet_module, "POLL_S", 0.001)


async def talk(*gateways: Gateway) -> None:
    """Long enough for everybody to have heard everything twice."""
    ears = [asyncio.create_task(gateway.fleet.listen()) for gateway in gateways]
    while any(not ear.done() and who.board.reads[ear] < 10 for who, ear in zip(gateways, ears, strict=True)):  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    for ear in ears:
        ear.cancel()
    results = await asyncio.gather(*ears, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results), results


def test_an_ejection_is_heard_and_not_echoed(run):
    async def it():
        board = Board()
        a, b = Gateway(board, "a"), Gateway(board, "b")
        a.pool.eject(a.pool.replicas[0], "3 failures", asyncio.get_running_loop().time())
        await talk(a, b)
        assert b.states == ["ejected", "ready"]
        assert b.pool.replicas[0].ejected == "another gateway says: 3 failures"
        assert board.posts == 1

    run(it())


def test_a_return_elsewhere_is_only_a_reason_to_try(run):
    async def it():
        board = Board()
        a, b = Gateway(board, "a"), Gateway(board, "b")
        now_s = asyncio.get_running_loop().time()
        for gateway in (a, b):
            gateway.pool.eject(gateway.pool.replicas[0], "broken", now_s)
        a.pool.readmit(a.pool.replicas[0], now_s)
        await talk(b)
        assert (a.states[0], b.states[0]) == ("ready", "ejected")
        assert b.pool.replicas[0].evidence.back_at_s <= asyncio.get_running_loop().time()

    run(it())


def test_the_last_replica_stays_whatever_others_say(run):
    async def it():
        board = Board()
        a, b = Gateway(board, "a"), Gateway(board, "b")
        b.pool.replicas[1].mark("down")
        a.pool.eject(a.pool.replicas[0], "broken", asyncio.get_running_loop().time())
        await talk(b)
        assert b.states == ["ready", "down"]

    run(it())


def test_actions_by_hand_are_followed_also_by_who_comes_late(run):
    async def it():
        board = Board()
        a, b = Gateway(board, "a"), Gateway(board, "b")
        a.by_hand("a", "drain")
        a.by_hand("b", "eject")
        late = Gateway(board, "late")
        await talk(a, b, late)
        assert a.states == b.states == late.states == ["draining", "ejected"]
        b.by_hand("a", "undrain")
        b.by_hand("b", "readmit")
        await talk(a, b, late)
        assert a.states == b.states == late.states == ["ready", "ready"]

    run(it())


def test_an_old_ejection_by_hand_means_nothing_to_who_starts_now(run, monkeypatch):
    async def it():
        board = Board()
        a = Gateway(board, "a")
        monkeypatch.setattr(fleet_module, "FRESH_S", -1.0)
        a.by_hand("b", "eject")
        late = Gateway(board, "late")
        await talk(late)
        assert late.states == ["ready", "ready"]

    run(it())


def test_a_board_that_was_out_of_reach_or_lost_its_notices(run):
    async def it():
        board = Board()
        a, b = Gateway(board, "a"), Gateway(board, "b")
        board.reachable = False
        a.by_hand("a", "drain")
        await talk(a, b)
        assert b.states == ["ready", "ready"]
        board.reachable = True
        board.notices.clear()
        await talk(a, b)
        assert b.states == ["draining", "ready"], "who drained it has said so again"

    run(it())


def test_a_policy_goes_to_the_crew_and_to_nobody_else(run):
    async def it():
        board = Board()
        a, b, other = Gateway(board, "a", "crew"), Gateway(board, "b", "crew"), Gateway(board, "c")
        a.fleet.tell_policy(b"version: 1")
        await talk(a, b, other)
        assert (a.policies, b.policies, other.policies) == ([], [b"version: 1"], [])
        restarted = Gateway(board, "d", "crew")
        await talk(restarted)
        assert restarted.policies == [b"version: 1"]
        b.fleet.tell_policy(None)
        await talk(a)
        assert a.policies == [None]
        restarted = Gateway(board, "e", "crew")
        await talk(restarted)
        assert restarted.policies == [], "it has just read the file"
        other.fleet.tell_policy(b"not for you")
        assert "not for you" not in str(board.notices)

    run(it())


def test_a_policy_that_can_t_be_taken_ends_nothing(run, caplog):
    async def it():
        board = Board()
        a, b = Gateway(board, "a", "crew"), Gateway(board, "b", "crew")
        b.refuses = True
        a.fleet.tell_policy(b"version: 1")
        await talk(b)
        a.by_hand("a", "drain")
        await talk(b)
        assert b.states == ["draining", "ready"]

    run(it())
    assert "can't be taken here" in caplog.text


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"by": "x"}', '{"by": "x", "at_s": "never"}', '{"by": "x", "at_s": 1}'])
@pytest.mark.parametrize("name", ["hand:p/a", "health:p/a", "policy", "nonsense"])
def test_notices_that_make_no_sense_are_said_and_passed_over(run, text, name):
    async def it():
        board = Board()
        a = Gateway(board, "a", "crew")
        board.post("fleet", name, text)
        board.post("crew:crew", name, text)
        await talk(a)
        assert a.states == ["ready", "ready"]

    run(it())


def test_a_policy_by_hand_does_not_grow_old(run, monkeypatch):
    """Whoever starts after a day, or after the store has lost everything, gets what the others have."""

    async def it():
        board = Board()
        a, b = Gateway(board, "a", "crew"), Gateway(board, "b", "crew")
        a.fleet.tell_policy(b"version: 1")
        await talk(a, b)
        posts = board.posts
        await talk(a, b)
        assert board.posts == posts, "not again and again"
        board.notices.clear()
        await talk(a, b)
        restarted = Gateway(board, "c", "crew")
        await talk(restarted)
        assert restarted.policies == [b"version: 1"]
        assert (a.policies, b.policies) == ([], [b"version: 1"]), "they have it already"
        del board.notices["crew:crew:policy"]  # nobody has read it for long
        monkeypatch.setattr(fleet_module, "RENEW_S", 0.0)
        await talk(b)
        late = Gateway(board, "d", "crew")
        await talk(late)
        assert late.policies == [b"version: 1"]

    run(it())


def test_the_file_read_again_is_the_end_of_a_policy_by_hand(run):
    async def it():
        board = Board()
        a, b = Gateway(board, "a", "crew"), Gateway(board, "b", "crew")
        a.fleet.tell_policy(b"version: 1")
        await talk(a, b)
        b.fleet.tell_policy(None)
        await talk(a, b)
        assert a.policies == [None]
        board.notices.clear()
        await talk(a, b)
        late = Gateway(board, "c", "crew")
        await talk(late)
        assert late.policies == []

    run(it())


def test_what_was_done_by_hand_elsewhere_is_done_here_though_it_looks_like_the_last_one(run):
    """Whoever did it was let, and takes the node away: what this gateway thinks of the others doesn't matter."""

    async def it():
        board = Board()
        a, b = Gateway(board, "a"), Gateway(board, "b")
        b.pool.replicas[1].mark("down")
        act(a.pool, a.pool.replicas[0], "drain", asyncio.get_running_loop().time())
        a.fleet.tell_action("p", "a", "drain")
        await talk(a, b)
        assert b.states == ["draining", "down"]

    run(it())


def test_old_notices_are_taken_down(run, monkeypatch):
    """Where addresses come and go, each leaves one; who is still drained is said again."""

    async def it():
        board = Board()
        a, b = Gateway(board, "a"), Gateway(board, "b")
        monkeypatch.setattr(fleet_module, "OLD_S", 60.0)
        a.by_hand("a", "drain")
        board.post("fleet", "health:p/10.0.0.9:8000", '{"by": "c", "at_s": 1000, "why": "", "until_s": 0}')
        board.notices["fleet"]["hand:p/a"] = board.notices["fleet"]["hand:p/a"].replace('"at_s":', '"at_s":1,"then":')
        await talk(a, b)
        assert list(board.notices["fleet"]) == ["hand:p/a"]
        assert '"then"' not in board.notices["fleet"]["hand:p/a"]
        assert b.states == ["draining", "ready"]
        assert len(a.fleet._seen) == len(b.fleet._seen) == 1

    run(it())
