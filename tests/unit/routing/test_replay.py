"""Deciding anew about recorded requests: the policy that made a log moves nothing; another moves what it should."""

import asyncio
import json
from datetime import datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from switchyard.app import Gateway
from switchyard.cli.whatif import make_replay
from switchyard.config.secrets import Secrets
from switchyard.config.vocabulary import SIGNALS as SIGNAL_NAMES
from switchyard.errors import GatewayError, Unreachable
from switchyard.routing.recorded import ALWAYS_RECORDED, BadRecord, NotRecorded, RecordedSignals, read_line
from switchyard.routing.replay import Verdict
from switchyard.routing.session import identify
from switchyard.routing.signals import Signals
from switchyard.routing.tally import Tally
from switchyard.telemetry.record import Record

from ..build import MINIMAL, chat, policy_of, view_of

BEGIN = datetime(2026, 11, 30, 8, tzinfo=timezone(timedelta(hours=1)))


def policy(route: str, pools: str = MINIMAL):
    return policy_of(f"{pools}routes:\n  auto: {route}\n")


# ---- logs that the gateway's own code made ----

FEW = settings(max_examples=40, phases=[p for p in Phase if p is not Phase.explain])  # each makes whole gateways


async def no_judge(pool: str, body: bytes) -> tuple[int, bytes]:
    """Fails, abstains or scores by what it is asked, always the same."""
    text = json.loads(body)["messages"][0]["content"]
    if "fix" in text:
        raise Unreachable("nobody there")
    top = [{"token": "yes", "logprob": -len(text) % 7 / 2 - 3}, {"token": "no", "logprob": -1.0}]
    return 200, json.dumps({"choices": [{"logprobs": {"content": [{"top_logprobs": top}]}}]}).encode()


def make_log(new_policy, requests: list[tuple[dict[str, Any], str, dict[str, str]]]) -> list[bytes]:
    """Decide about requests one after the other and write their lines."""
    gateway = Gateway(new_policy, Secrets(), ask=no_judge)
    lines = []

    async def decide() -> None:
        for n, (body, protocol, headers) in enumerate(requests):
            view = view_of(body, protocol, headers)
            record = Record(f"r-{n}", "/v1/x", protocol, 1.0, model=body["model"], stream=view.stream)
            target = gateway.decider.find_target(record.model)
            record.route = target.route_name
            signals = Signals(view, 12)
            session = identify(signals)
            try:
                decision = await gateway.decider.decide(target, signals, session)
            except GatewayError as error:
                record.error, record.outcome = error.code, "refused"
            else:
                record.decision = decision.as_record()
                record.signals = {**signals.known(), **{name: signals.get(name) for name in ALWAYS_RECORDED}}
                record.session, record.session_source = session.key, session.source
                record.pool, record.replica, record.outcome, record.output_tokens = decision.pool, "127.0.0.1:1", "ok", 10
                record.decided_s, record.admitted_s, record.ended_s = 1.01, 1.02, 2.02
            line = record.as_line()
            line["time"] = (BEGIN + timedelta(seconds=n)).strftime("%Y-%m-%dT%H:%M:%S%z")
            lines.append(msgspec.json.encode(line))

    asyncio.run(decide())
    return lines


def replayed(new_policy, lines: list[bytes], **contexts: int) -> tuple[list[Verdict], Tally]:
    replay = make_replay(new_policy, contexts)
    tally = Tally(replay.pools)
    verdicts = []
    for line in lines:
        record = read_line(line)
        verdicts.append(replay.decide(record))
        tally.add(record, verdicts[-1])
    return verdicts, tally


CONTEXT = MINIMAL.replace("model: s", "model: s\n    context: 300").replace(
    "model: b", "model: b\n    accepts: [tools, images]"
)
STEPS = "choose: [{p_at_least: 0.62, use: small}, {use: big}]"
POLICIES = [
    policy(f"{{classify: [{{type: embedded}}], {STEPS}}}"),
    policy(f"{{classify: [{{type: embedded}}], {STEPS}, decide_per: session, otherwise: small}}"),
    policy(f"{{classify: [{{type: model, pool: small}}, {{type: embedded}}], {STEPS}, decide_per: request}}", CONTEXT),
    policy(f"{{classify: [{{type: model, pool: big}}], {STEPS}}}"),
    policy(
        "{rules: [{when: {tools: {at_least: 2}}, use: big, for: 2 turns}, {when: {stream: true}, use: small},"
        " {when: {turns: 3}, use: big}], classify: [{type: embedded}], " + STEPS + "}",
        CONTEXT,
    ),
    policy(f"{{classify: [{{type: embedded}}], {STEPS}, share: {{pool: big, hold: 0.5}}}}"),
    policy(f"{{classify: [{{type: embedded}}], {STEPS}, share: {{pool: big, at_most: 0.3}}, pressure: {{band: 0.2}}}}"),
    policy("{use: small}"),
]
TEXTS = ["hi", "fix it", "prove the theorem and derive its complexity", "def f(): pass\n" * 20, "translate this " * 30]
IMAGE = [{"type": "image_url", "image_url": {"url": "data:,"}}, {"type": "text", "text": "what is it?"}]


@st.composite
def conversations(draw, from_the_start: bool):
    """Requests of a few sessions, mixed. Each has a name and is there from turn 1 on, or neither."""
    turn_of: dict[int, int] = {}
    requests = []
    for _ in range(draw(st.integers(1, 25))):
        who = draw(st.integers(0, 3))
        turn = turn_of.get(who, 0)
        if not (from_the_start or turn):
            turn = draw(st.integers(0, 3))
        loops = turn > 0 and draw(st.booleans())
        turn = turn_of[who] = turn if loops else turn + 1
        messages: list[Any] = []
        for n in range(turn):
            image = n == 0 and who == 3
            messages += [("user", IMAGE if image else f"{TEXTS[(who + n * (who + 1)) % len(TEXTS)]}"), ("assistant", "ok")]
        if not loops:
            messages = messages[:-1]
        else:
            call = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
            messages += [
                {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c", "content": "done"},
            ]  # fmt: skip
        fields: dict[str, Any] = {"stream": draw(st.booleans())}
        tools = draw(st.sampled_from([0, 0, 1, 2]))
        if tools:
            fields["tools"] = [{"type": "function", "function": {"name": f"t{n}"}} for n in range(tools)]
        headers = {"user-agent": draw(st.sampled_from(["curl", "opencode/1"]))}
        if who != 2 or from_the_start:  # one client gives no session
            headers["x-session-id"] = f"session-{who}"
        if draw(st.integers(0, 9)) == 0:
            headers["x-switchyard-pool"] = draw(st.sampled_from(["small", "big"]))
        body = chat(*messages, **fields)
        body["model"] = "auto" if from_the_start else draw(st.sampled_from(["auto", "auto", "auto", "big"]))
        requests.append((body, "chat", headers))
    return requests


@FEW
@given(st.sampled_from(POLICIES), conversations(from_the_start=True))
def test_the_policy_that_made_the_log_moves_nothing(same_policy, requests):
    verdicts, _ = replayed(same_policy, make_log(same_policy, requests))
    assert {v.state for v in verdicts} <= {"same", "undecided"}


@FEW
@given(st.sampled_from(POLICIES), conversations(from_the_start=False), st.integers(0, 20))
def test_it_moves_nothing_of_a_log_whose_beginning_is_lost_either(same_policy, requests, lost):
    if same_policy.routes["auto"].share is not None:
        lost = 0  # what the share's control had given before is not in the log
    verdicts, _ = replayed(same_policy, make_log(same_policy, requests)[lost:])
    assert {v.state for v in verdicts} <= {"same", "undecided", "unknown"}


# A share's control would see scores that the old policy never made.
PAIRS = [(old, new) for old in POLICIES for new in POLICIES if old.pools == new.pools and not new.routes["auto"].share]


def test_a_judge_that_failed_makes_no_failure_of_what_the_embedded_classifier_left_open():
    """The old policy's judge was down, the new one has none: its decisions are remembered, and a tool loop goes on there."""
    old, new = POLICIES[2], POLICIES[4]
    words, call = [("user", "fix it"), ("assistant", "ok"), ("user", TEXTS[3])], {"id": "c", "type": "function"}
    loop = [
        ("assistant", "ok"), {"role": "assistant", "tool_calls": [call | {"function": {"name": "bash", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "done"},
    ]  # fmt: skip
    asked = [chat(*words[:1]), chat(*words, stream=True), chat(*words, *loop)]
    requests = [({**body, "model": "auto"}, "chat", {"x-session-id": "s"}) for body in asked]
    verdicts, _ = replayed(new, make_log(old, requests))
    really = [json.loads(line)["decision"]["pool"] for line in make_log(new, requests)]
    assert [v.after for v in verdicts] == really == ["big", "small", "big"]


@FEW
@given(st.sampled_from(PAIRS), conversations(from_the_start=True))
def test_what_is_known_under_another_policy_is_what_it_would_have_done(policies, requests):
    """Deciding the same requests with the new policy gives the same pools, where the replay is sure of them."""
    old, new = policies
    verdicts, _ = replayed(new, make_log(old, requests))
    really = [json.loads(line)["decision"].get("pool", "") for line in make_log(new, requests)]
    for verdict, pool in zip(verdicts, really, strict=True):
        if verdict.state in {"same", "moved"}:
            assert verdict.after == pool
        if verdict.state == "refused":
            assert pool == ""


# ---- by hand ----

SIGNALS = {
    "prompt_tokens": 100, "max_output_tokens": 50, "turns": 1, "tool_loop": False, "tools": 0, "images": False, "audio": False,
    "structured_output": False, "request_class": "main", "client": "curl", "hour": 12,
}  # fmt: skip


def line(
    id_: str = "r", pool: str = "big", kind: str = "score", at_s: float = 0, session: str = "s", p: float | None = 0.5,
    by: str = "embedded", reasons: tuple[str, ...] = ("because",), degraded: bool = False, model: str = "auto",
    raw_p: float | None = None,
    signals: dict[str, Any] | None = None, without: tuple[str, ...] = (), ms: float = 1000, tokens: int | None = 100, **fields,
) -> bytes:  # fmt: skip
    scored = kind in {"score", "share", "pressure"} or (kind == "otherwise" and p != 0.5)
    decision = {
        "route": "auto", "pool": pool, "kind": kind, "reasons": reasons, "p": p if scored else None,
        "raw_p": raw_p, "classifier": by if scored else "", "degraded": degraded,
    }  # fmt: skip
    found = {k: v for k, v in {**SIGNALS, **(signals or {})}.items() if k not in without}
    ended = (BEGIN + timedelta(seconds=at_s, milliseconds=ms)).isoformat()
    return json.dumps(
        {"id": id_, "time": ended, "protocol": "chat", "model": model, "stream": False, "key": "", "session": session,
         "session_source": "x-session-id", "signals": found, "decision": decision, "pool": pool, "replica": "127.0.0.1:1",
         "outcome": "ok", "ms": {"decide": 0, "queue": 0, "total": ms}, "tokens": {"output": tokens}, **fields}
    ).encode()  # fmt: skip


LOWER = policy("{classify: [{type: embedded}], choose: [{p_at_least: 0.4, use: small}, {use: big}]}")
TITLES = policy(
    "{rules: [{when: {request_class: title}, use: small, why: titles are easy}],"
    " classify: [{type: embedded}], choose: [{p_at_least: 0.9, use: small}, {use: big}]}"
)
HEADERS = policy("{rules: [{when: {header.x-team: red}, use: small}], otherwise: big}")
JUDGE = policy(
    "{classify: [{type: model, pool: small}, {type: embedded}], choose: [{p_at_least: 0.4, use: small}, {use: big}]}"
)
TAKES = MINIMAL.replace("model: b", "model: b\n    accepts: [tools, images]")
BLIND = policy("{choose: [{use: small}]}", MINIMAL.replace("model: s", "model: s\n    accepts: [tools]"))
SHORT = MINIMAL.replace("model: s", "model: s\n    context: 120")
# policy, line, state, pool after, beginning of the reason
VERDICTS = [
    (LOWER, line(p=0.5), "moved", "small", "p 0.50 >= 0.4 by embedded"),
    (LOWER, line(p=0.3), "same", "big", "p 0.30 < 0.4"),
    (LOWER, line(kind="otherwise", reasons=("otherwise: embedded: no text",)), "same", "big", "otherwise: embedded: no text"),
    (LOWER, line(kind="rule", p=None), "unknown", "", "needs a score by embedded, which was not asked"),
    (LOWER, line(kind="asked", pool="small"), "same", "small", "the client asks for this pool"),
    (LOWER, line(kind="asked", pool="huge"), "refused", "", "x-switchyard-pool asks for huge"),
    (LOWER, line(model="gone"), "refused", "", "the new policy has no model gone"),
    (LOWER, line(model="small", kind="named"), "moved", "small", "the client asks for this pool by name"),
    (LOWER, line(by="model small", p=0.9), "unknown", "", "needs a score by embedded"),
    (LOWER, line(kind="share", p=0.5), "moved", "small", "p 0.50"),
    (LOWER, line(kind="otherwise", p=0.6), "moved", "small", "p 0.60"),
    (TITLES, line(signals={"request_class": "title"}), "moved", "small", "rule: titles are easy"),
    (TITLES, line(without=("request_class",)), "unknown", "", "needs the signal request_class, which its record lacks"),
    (TITLES, line(kind="held", signals={"request_class": "title"}), "moved", "small", "rule: titles are easy"),
    (TITLES, line(kind="held"), "unknown", "", "goes on from a turn that can't be decided anew, or began before this log"),
    (HEADERS, line(), "unknown", "", "needs header.x-team; headers are not recorded"),
    (HEADERS, line(signals={"header.x-team": "red"}), "moved", "small", "rule: header.x-team is red"),
    (JUDGE, line(p=0.9), "unknown", "", "needs a score by model small"),
    (JUDGE, line(p=0.9, by="model big"), "unknown", "", "needs a score by model small"),
    (JUDGE, line(p=0.9, by="model small"), "moved", "small", "p 0.90"),
    (JUDGE, line(p=0.9, reasons=("p 0.90 < 0.95 by embedded", "model small: late"), degraded=True), "moved", "small", "p 0.90"),
    (
        JUDGE,
        line(kind="otherwise", reasons=("otherwise: model small: late", "embedded: no text"), degraded=True),
        "same",
        "big",
        "otherwise: model small: late",
    ),
    (BLIND, line(signals={"images": True}), "refused", "", "no pool can serve this request: pool small doesn't take images"),
    (policy("{choose: [{use: small}]}", SHORT), line(), "moved", "small", "only this pool can"),
    (
        policy("{choose: [{use: small}, {use: big}]}", SHORT),
        line(),
        "same",
        "big",
        "only this pool can: small holds 120 tokens",
    ),
    (
        policy("{choose: [{use: small}, {use: big}]}"),
        line(kind="only", reasons=("only this pool can: small holds 120 tokens",)),
        "same",
        "big",
        "only this pool can: small holds 120 tokens",
    ),
    (LOWER, line(decision={}, error="model_not_found"), "undecided", "", "model_not_found"),
    (LOWER, line(decision={}, outcome="client_left"), "undecided", "", "client_left"),
    (
        LOWER,
        line(protocol="responses", kind="held", reasons=("the response that this one follows is stored there",), replica="h:1"),
        "unknown",
        "",
        "needs a score by embedded",  # the replica is not in the policy
    ),
    (
        LOWER,
        line(protocol="responses", kind="held", reasons=("the response that this one follows is stored there",),
             replica="127.0.0.1:8002"),
        "same",
        "big",
        "the response that this one follows",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("new_policy", "record", "state", "after", "why"), VERDICTS, ids=range(len(VERDICTS)))
def test_one_request(new_policy, record, state, after, why):
    ((verdict,), _) = replayed(new_policy, [record])
    assert (verdict.state, verdict.after) == (state, after)
    assert verdict.why.startswith(why)


def test_a_context_that_the_log_names_counts_from_then_on():
    new_policy = policy("{choose: [{use: small}, {use: big}], otherwise: small}")
    named = line(kind="only", reasons=("only this pool can: small holds 120 tokens",))
    verdicts, _ = replayed(new_policy, [line(session="1"), named, line(session="2")])
    assert [v.after for v in verdicts] == ["small", "big", "big"]
    verdicts, _ = replayed(new_policy, [line(session="1")], small=120)
    assert [v.after for v in verdicts] == ["big"]


def states(new_policy, *records: bytes) -> list[tuple[str, str]]:
    verdicts, _ = replayed(new_policy, list(records))
    return [(v.state, v.after) for v in verdicts]


def held(pool: str, turns: int, at_s: float, loop: bool = True, **how) -> bytes:
    return line(pool=pool, kind="held", at_s=at_s, signals={"turns": turns, "tool_loop": loop}, **how)


def test_a_tool_loop_goes_where_its_turn_goes():
    assert states(LOWER, line(p=0.5), held("big", 1, 5), held("big", 1, 10)) == [("moved", "small")] * 3


def test_a_session_only_goes_up_under_the_new_policy_too():
    records = [
        line(p=0.5),
        held("big", 1, 5),
        line(p=0.1, at_s=9, signals={"turns": 2}),
        line(p=0.9, at_s=12, signals={"turns": 3}),
    ]
    assert states(LOWER, *records) == [("moved", "small"), ("moved", "small"), ("same", "big"), ("same", "big")]


def test_a_session_is_forgotten_by_the_recorded_clock():
    short = policy_of(
        MINIMAL.replace("version: 1", "version: 1\nserver: {session_ttl_s: 60}") + "routes:\n  auto: {use: big}\n"
    )
    short = short.model_copy(update={"routes": LOWER.routes})
    records = [line(p=0.1), line(p=0.9, at_s=50, signals={"turns": 2}), line(p=0.9, at_s=200, signals={"turns": 3})]
    assert states(short, *records) == [("same", "big"), ("same", "big"), ("moved", "small")]


def test_a_hold_of_the_new_policy_lasts_its_turns():
    new_policy = policy(
        "{rules: [{when: {tool_errors_in_a_row: {at_least: 2}}, use: big, for: 2 turns}],"
        " classify: [{type: embedded}], choose: [{p_at_least: 0.4, use: small}, {use: big}]}"
    )
    fine, wrong = {"tool_errors_in_a_row": 0}, {"tool_errors_in_a_row": 2}
    records = [
        line(pool="small", p=0.9, signals=fine),
        line(pool="small", kind="held", at_s=5, signals={**wrong, "tool_loop": True}),
        line(pool="small", p=0.9, at_s=9, signals={**fine, "turns": 2}),
        line(pool="small", p=0.9, at_s=13, signals={**fine, "turns": 3}),
    ]
    assert states(new_policy, *records) == [("same", "small"), ("moved", "big"), ("moved", "big"), ("same", "small")]


def test_what_follows_an_unknown_turn_is_unknown_until_it_can_be_known():
    records = [
        line(pool="small", kind="rule"),  # the new policy would have needed a score
        held("small", 1, 5),
        line(pool="small", p=0.9, at_s=9, signals={"turns": 2}),  # small, unless the session is on big
        line(pool="big", p=0.1, at_s=12, signals={"turns": 3}),  # big in any case
        held("big", 3, 15),
    ]
    assert states(LOWER, *records) == [("unknown", "")] * 3 + [("same", "big"), ("same", "big")]


def test_a_session_that_began_before_the_log_is_unknown_until_it_can_be_known():
    records = [held("big", 7, 0), held("big", 7, 5), line(p=0.1, at_s=9, signals={"turns": 8}), held("big", 8, 12)]
    assert states(LOWER, *records) == [("unknown", ""), ("unknown", ""), ("same", "big"), ("same", "big")]


def test_deciding_per_request_needs_scores_that_were_not_made():
    per_request = policy(
        "{classify: [{type: embedded}], decide_per: request, choose: [{p_at_least: 0.4, use: small}, {use: big}]}"
    )
    records = [line(p=0.5), held("big", 1, 5, loop=False), held("big", 1, 9, loop=True)]
    assert states(per_request, *records) == [("moved", "small"), ("unknown", ""), ("unknown", "")]


# ---- lines ----

GOOD = json.loads(line())


def changed(**fields: Any) -> bytes:
    return json.dumps({**GOOD, **fields}).encode()


BAD = [
    (b"", "Input data was truncated"),
    (b"{", "truncated"),
    (b"\xff\xfe", "malformed"),
    (b"[]", "Expected `object`"),
    (b"{}", "missing required field `id`"),
    (b'{"id": "r", "time": 3}', "Expected `str`"),
    (changed(time="yesterday"), "Invalid isoformat"),
    (changed(decision={"pool": 3}), "Expected `str`, got `int` - at `$.decision.pool`"),
    (changed(signals={"turns": "many"}), "the signal turns is many, which is no int"),
    (changed(signals={"turns": True}), "the signal turns is True, which is no int"),
    (changed(signals={"header.x": 3}), "the signal header.x is 3, which is no text"),
    (changed(stream="yes"), "Expected `bool`"),
    (changed(ms={"total": "long"}), "Expected `float | null`"),
    (b"[" * 100_000, "Expected `object`"),
]


@pytest.mark.parametrize(("text", "why"), BAD, ids=range(len(BAD)))
def test_a_bad_line_says_why(text, why):
    with pytest.raises(BadRecord) as caught:
        read_line(text)
    assert why in str(caught.value)


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_no_line_raises_anything_else(text):
    with pytest.raises(BadRecord):
        read_line(text)


def test_what_a_newer_gateway_writes_is_passed_over():
    record = read_line(changed(signals={"mood": 3, "get": 1, "view": 2}, planet="mars"))
    assert record.signals == {"protocol": "chat", "stream": False, "api_key_name": ""}


def test_times_are_those_of_the_decision():
    record = read_line(changed(time="2026-11-30T09:00:10+0100", ms={"decide": 500, "queue": 1500, "total": 4000}))
    assert record.ended_s - record.decided_s == 3.5
    assert record.service_ms == 2000
    assert read_line(changed(ms={"total": 4000, "queue": None})).service_ms is None


def test_all_signals_are_in_a_record_that_has_what_it_should():
    assert {*ALWAYS_RECORDED, "protocol", "stream", "api_key_name"} == SIGNAL_NAMES.keys()


def test_a_signal_that_was_not_recorded_raises():
    signals = RecordedSignals(read_line(line()))
    assert (signals.turns, signals.get("turns"), signals.protocol) == (1, 1, "chat")
    for name in ("code_share", "header.x-team", "nonsense"):
        with pytest.raises(NotRecorded):
            signals.get(name)
    with pytest.raises(NotRecorded):
        _ = signals.language


# ---- adding up ----


def test_the_report_of_a_small_day():
    new_policy = policy_of(
        TAKES.replace("127.0.0.1:8001]", "127.0.0.1:8001]\n    limits: {in_flight: 2}")
        + "routes:\n  auto: {classify: [{type: embedded}], choose: [{p_at_least: 0.4, use: small}, {use: big}]}\n"
    )
    records = [
        line("a", p=0.9, pool="small", session="1", ms=1000, tokens=100),
        line("b", p=0.5, session="2", at_s=10, ms=4000, tokens=200),
        line("c", p=0.5, session="3", at_s=20, ms=4000, tokens=None),
        line("d", p=0.1, session="4", at_s=30, ms=4000, tokens=200, signals={"client": "codex"}),
        line("e", kind="rule", session="5", at_s=40, ms=10_000, tokens=200),
        line("f", model="gone", session="6", at_s=96, ms=4000),
        line("g", decision={}, session="7", at_s=90, error="unauthorized"),
    ]
    _, tally = replayed(new_policy, records)
    report = tally.as_report()
    assert report["requests"] == {"all": 7, "same": 2, "moved": 2, "unknown": 1, "refused": 1, "undecided": 1}
    assert report["span_s"] == 100
    (move,) = report["moves"]
    assert (move["from"], move["to"], move["count"]) == ("big", "small", 2)
    assert move["examples"][0] == {"id": "b", "before": "because", "after": "p 0.50 >= 0.4 by embedded"}
    assert report["shares"] == [
        {"pool": "big", "before": 3, "after": 1, "before_share": 0.75, "after_share": 0.25},
        {"pool": "small", "before": 1, "after": 3, "before_share": 0.25, "after_share": 0.75},
    ]
    assert [e["before"] for e in report["by_client"]["codex"]] == [1]
    assert {k: sum(e["before"] for e in v) for k, v in report["by_request_class"].items()} == {"main": 4}
    small, big = report["load"]
    # small: 1 s of 2 places in 100 s; then also 200 tokens at 10 ms, and one request without tokens at the mean of 1 s
    assert small == {
        "pool": "small", "replicas": 1, "places": 2, "before": {"mean": 0.005, "busiest": 0.005},
        "after": {"mean": 0.02, "busiest": 0.02},
    }  # fmt: skip
    # big: 4 + 4 + 4 + 10 + 4 s of 48 places; then only the one that stays and the one that is unknown
    assert big["before"]["mean"] == round(26 / 100 / 48, 4)
    assert big["after"]["mean"] == round(14 / 100 / 48, 4)
    assert [u["why"] for u in report["unknown"]] == ["needs a score by embedded, which was not asked"]
    assert json.loads(json.dumps(report)) == report


def test_nothing_shows_how_fast_a_pool_is():
    _, tally = replayed(LOWER, [line(p=0.5)])
    small, big = tally.as_report()["load"]
    assert small["after"] == {"mean": None, "busiest": None}
    assert big["after"]["mean"] == 0


def test_the_busiest_window_is_not_the_average():
    records = [line(str(n), p=0.1, session=str(n), at_s=n, ms=30_000) for n in range(10)]
    records.append(line("z", p=0.1, session="z", at_s=3000, ms=0))
    _, tally = replayed(LOWER, records)
    (big,) = [entry for entry in tally.loads() if entry["pool"] == "big"]
    assert big["before"] == {"mean": round(300 / 3000 / 48, 4), "busiest": round(300 / 300 / 48, 4)}


def test_only_some_examples_are_kept():
    _, tally = replayed(LOWER, [line(f"r{n}", p=0.5, session=str(n)) for n in range(9)])
    (move,) = tally.as_report()["moves"]
    assert (move["count"], [e["id"] for e in move["examples"]]) == (9, ["r0", "r1", "r2", "r3", "r4"])


# ---- answers of another pool than the one decided on ----


def talk(new_policy, took_over: str, escalation: str = "") -> list[bytes]:
    """A turn with tools that was decided for small and answered by another pool, and its tool loop there."""
    call = {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}
    result = {"role": "tool", "tool_call_id": "1", "content": "4"}
    messages = [{"role": "user", "content": "hi"}]
    bodies = [[*messages], [*messages, call, result], [*messages, call, result, call, result]]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    gateway = Gateway(new_policy, Secrets(), ask=no_judge)
    lines = []

    async def decide() -> None:
        for n, body in enumerate(bodies):
            view = view_of({"model": "auto", "messages": body, "tools": tools}, "chat", {"x-session-id": "a"})
            target, signals = gateway.decider.find_target("auto"), Signals(view, 12)
            session = identify(signals)
            decision = await gateway.decider.decide(target, signals, session)
            record = Record(f"r-{n}", "/v1/x", "chat", 1.0, model="auto", route="auto")
            record.decision, record.pool, record.replica, record.outcome = decision.as_record(), decision.pool, "x", "ok"
            if n == 0:
                assert decision.pool == "small"
                note = gateway.decider.note_move if escalation else gateway.decider.note_stand_in
                note(target, session.key, signals, took_over)
                record.pool, record.escalation = took_over, escalation
            else:
                assert decision.pool == took_over
            record.signals = {name: signals.get(name) for name in ALWAYS_RECORDED}
            record.session, record.session_source = session.key, session.source
            record.decided_s, record.admitted_s, record.ended_s = 1.01, 1.02, 2.02
            line = record.as_line()
            line["time"] = (BEGIN + timedelta(seconds=n)).strftime("%Y-%m-%dT%H:%M:%S%z")
            lines.append(msgspec.json.encode(line))

    asyncio.run(decide())
    return lines


@pytest.mark.parametrize(("escalation", "after"), [("", "unknown"), ("small: no JSON", "same")])
def test_a_session_goes_on_where_another_pool_took_over(escalation: str, after: str) -> None:
    """The policy that made the log moves nothing of it, though the loop is not where its first request was decided to be."""
    made = policy("{choose: [{p_at_least: 0.5, use: small}, {use: big}], otherwise: small}")
    verdicts, _ = replayed(made, talk(made, "big", escalation))
    assert [v.state for v in verdicts] == ["same", after, after]
