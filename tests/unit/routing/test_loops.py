"""A tool loop stays where it began, whatever settled its beginning; and no session learns from what was an exception."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.app import Gateway
from switchyard.config.secrets import Secrets
from switchyard.errors import Unreachable
from switchyard.routing.session import identify

from ..agents import OPENCODE, chat_call, chat_result, opencode
from ..build import policy_of, signals_of

POLICY = """\
version: 1
pools:
  small: {model: s, replicas: [http://127.0.0.1:8001]}
  mid: {model: m, replicas: [http://127.0.0.1:8002]}
  big: {model: b, replicas: [http://127.0.0.1:8003]}
routes:
  auto:
    rules:
      - {when: {header.x-hard: "yes"}, use: big}
    classify: [{type: model, pool: big}]
    choose: [{p_at_least: 0.8, use: small}, {p_at_least: 0.4, use: mid}, {use: big}]
"""
ORDER = ["small", "mid", "big"]
LOOP = [chat_call("bash"), chat_result("ok")]
SAID = {"role": "assistant", "content": "done"}


class Talk:
    """A conversation with a gateway whose judge is scripted.

    Attributes:
        p: what the judge says; None while it is out of reach.
    """

    def __init__(self, run, more: str = "") -> None:
        self.p: float | None = 0.9
        self._run = run
        self.gateway = Gateway(policy_of(POLICY + more), Secrets(), ask=self._judge)

    async def _judge(self, pool: str, body: bytes) -> tuple[int, bytes]:
        if self.p is None:
            raise Unreachable("the judge is away")
        top = [{"token": word, "logprob": math.log(p)} for word, p in (("yes", self.p), ("no", 1 - self.p))]
        return 200, msgspec.json.encode({"choices": [{"logprobs": {"content": [{"top_logprobs": top}]}}]})

    def parts(self, later, headers, ask):
        signals = signals_of(opencode(*later, ask=ask), "chat", {**OPENCODE, **headers})
        return self.gateway.decider.find_target("auto"), signals, identify(signals)

    def decide(self, *later, ask: str = "fix it", remember: bool = True, **headers: str):
        target, signals, session = self.parts(later, {name.replace("_", "-"): v for name, v in headers.items()}, ask)
        return self._run(self.gateway.decider.decide(target, signals, session, remember))


@pytest.fixture
def talk(run):
    return Talk(run)


def test_a_loop_that_began_without_a_judge_is_not_moved_when_the_judge_is_back(talk):
    talk.p = None
    assert talk.decide().pool == "big"
    talk.p = 0.9
    decision = talk.decide(*LOOP)
    assert (decision.pool, decision.reasons[0]) == ("big", "the tool loop goes on where it began")
    assert talk.decide(*LOOP, *LOOP).pool == "big"
    assert talk.decide(*LOOP, SAID, {"role": "user", "content": "and now"}).pool == "small"  # nothing else was kept


def test_a_loop_whose_judge_fails_on_the_way_stays_where_it_is(talk):
    assert talk.decide().pool == "small"
    talk.p = None
    assert talk.decide(*LOOP).pool == "small"
    later = [*LOOP, SAID, {"role": "user", "content": "and now"}]
    assert talk.decide(*later).pool == "big"  # nobody could be asked
    talk.p = 0.5
    assert talk.decide(*later, *LOOP).pool == "big"
    assert talk.decide(*later, *LOOP, SAID, {"role": "user", "content": "go on"}).pool == "mid"  # the session was on small


def test_a_loop_that_a_rule_began_is_not_moved_by_a_score(talk):
    assert talk.decide().pool == "small"
    later = [SAID, {"role": "user", "content": "prove it"}]
    assert talk.decide(*later, x_hard="yes").kind == "rule"
    assert talk.decide(*later, *LOOP).pool == "big"
    assert talk.decide(*later, *LOOP, SAID, {"role": "user", "content": "thanks"}).pool == "small"


def test_a_rule_inside_a_loop_is_an_exception_for_one_request(talk):
    assert talk.decide().pool == "small"
    assert talk.decide(*LOOP, x_hard="yes").pool == "big"
    assert talk.decide(*LOOP, *LOOP).pool == "small"


def test_a_loop_goes_on_where_another_pool_stood_in(talk):
    assert talk.decide().pool == "small"
    target, signals, session = talk.parts([], {}, "fix it")
    talk.gateway.decider.note_stand_in(target, session.key, signals, "mid")
    assert talk.decide(*LOOP).pool == "mid"
    assert talk.decide(*LOOP, SAID, {"role": "user", "content": "and now"}).pool == "small"


def test_a_compacted_session_is_decided_again_at_the_next_word(talk):
    later = [SAID, *({"role": "user", "content": f"step {n}"} for n in range(9))]
    assert talk.decide(*later).pool == "small"
    talk.p = 0.1
    assert talk.decide(ask="what was done so far: nine steps").pool == "small"  # the same work
    assert talk.decide(*LOOP, ask="what was done so far: nine steps").pool == "small"
    assert talk.decide(SAID, {"role": "user", "content": "prove it"}, ask="what was done so far: nine steps").pool == "big"


STEP = st.tuples(
    st.sampled_from(["turn", "loop", "loop", "loop", "compacted"]), st.sampled_from([None, 0.1, 0.5, 0.9]), st.booleans()
)


@given(steps=st.lists(STEP, max_size=25), decide_per=st.sampled_from(["request", "user_turn", "session"]))
def test_no_score_splits_a_loop_and_no_session_goes_down(run, steps, decide_per):
    talk = Talk(run, f"    decide_per: {decide_per}\n")
    later, began, own = [], talk.decide().pool, ["small"]
    for kind, talk.p, hard in steps:
        if kind == "loop":
            later += LOOP
        else:
            later = [] if kind == "compacted" else later
            later = [*later, SAID, {"role": "user", "content": f"step {len(later)}"}]
        rule = {"x_hard": "yes"} if hard else {}
        decision = talk.decide(*later, **rule)
        if kind == "loop":
            assert decision.kind == "rule" if hard else decision.pool == began, (decision, began)
        else:
            began = decision.pool
            if not hard and not decision.degraded and decide_per != "request":
                assert ORDER.index(decision.pool) >= ORDER.index(own[-1]), (decision, own)
                own.append(decision.pool)


def test_a_look_at_a_decision_leaves_no_trace(talk):
    talk.p = None
    assert talk.decide(remember=False).pool == "big"
    talk.p = 0.9
    assert talk.decide(*LOOP).pool == "small"


def test_no_share_moves_a_session_down(run):
    """A share of the smallest pool would like to have what the session just left for a larger one."""
    talk = Talk(run, "    share: {pool: small, hold: 0.9}\n")
    talk.p = 0.5
    talk.decide(ask="first")
    for _ in range(100):  # the account is far below
        talk.gateway._steering["auto"][0]._remember(0.5, False)
    talk.p = 0.1
    decision = talk.decide(SAID, {"role": "user", "content": "prove it"}, ask="first")
    assert decision.pool == "big", decision


def test_what_would_happen_includes_the_share(run):
    talk = Talk(run, "    share: {pool: big, at_most: 0.1}\n")
    talk.p = 0.1
    for n in range(40):
        talk.decide(ask=f"first {n}", x_session_id=f"s{n}")
    share = talk.gateway._steering["auto"][0]
    before = (share.share, len(share._recent))
    shown = [talk.decide(ask="another", remember=False, x_session_id="s99") for _ in range(3)]
    assert (share.share, len(share._recent)) == before
    assert {d.pool for d in shown} == {talk.decide(ask="another", x_session_id="s99").pool} == {"mid"}
    assert shown[0].kind == "share"
