"""The gateway's code on virtual time: what the algebra says, what-ifs, faults, logs, and that nothing is lost."""

import asyncio
import json
from dataclasses import replace

import pytest

from switchyard.cluster.engine import Engine
from switchyard.cluster.pool_speed import pool_speed
from switchyard.cluster.spec import parse_cluster
from switchyard.cluster.traffic import Ask, Conversations, Mix, answer_length, from_log, is_nth
from switchyard.config.load import parse_policy
from switchyard.emulate.faults import parse_fault
from switchyard.routing.recorded import Recorded, RecordedDecision
from switchyard.simulate.clock import NothingLeft, VirtualLoop
from switchyard.simulate.outcome import Outcome, longest_queue, quantiles, report
from switchyard.simulate.stage import run, set_stage

BIG, SMALL = 3, 2


def cluster(big=BIG, small=SMALL):
    def pool(replicas, begin, tokens_s, places):
        return {
            "model": "acme/m", "image": "v/v:1", "replicas": replicas,
            "placement": [[f"s{begin + i}"] for i in range(replicas)],
            "engine": {"max_num_seqs": places, "max_model_len": 100_000},
            "speed": {"measured": [{"nodes": 1, "decode_tok_s": tokens_s, "prefill_tok_s": 100 * tokens_s}]},
        }  # fmt: skip

    pools = {"big": pool(big, 1, 20, 4)} | ({"small": pool(small, 1 + big, 100, 16)} if small else {})
    nodes = [{"name": f"s{i}", "mgmt": f"10.0.0.{i}"} for i in range(1, 9)]
    return parse_cluster(json.dumps({"version": 1, "nodes": nodes, "pools": pools}).encode()).value


def policy(route=None, **limits):
    limits = {"queue": 10_000, "queue_timeout_s": 3600} | limits
    pools = {
        name: {"model": "acme/m", "replicas": ["http://127.0.0.1:1"], "limits": {"in_flight": places, **limits}}
        for name, places in (("big", 4), ("small", 16))
    }
    scored = {"classify": [{"type": "embedded"}], "choose": [{"p_at_least": 0.5, "use": "small"}, {"use": "big"}]}
    return parse_policy(json.dumps({"version": 1, "pools": pools, "routes": {"auto": route or scored}}).encode())


def saturate(share, seconds=600.0, clients=None, policy_=None, without=(), **options):
    stage = set_stage(cluster(), policy_ or policy(), without)
    mix = Conversations(Mix(share, "auto", 500, 100), stage.policy)
    results = run(stage, lambda s: s.saturate(mix, clients or stage.places, seconds), **options)
    return report(results, seconds / 4)


def rate(pool):
    made = cluster()
    return pool_speed(made, pool).requests_s(4 if pool == "big" else 16, 500, 100)


@pytest.mark.parametrize("share", [0.9, 0.5, 0.25])
def test_the_slower_pool_is_the_limit(share):
    found = saturate(share)
    assert found["requests_s"] == pytest.approx(BIG * rate("big") / found["pools"][0]["share"], rel=0.03)
    assert found["pools"][0]["share"] == pytest.approx(share, abs=0.01)
    assert min(found["pools"][0]["utilisation"].values()) > 0.98
    assert not found["errors"]


def test_when_little_is_hard_the_small_pool_is():
    assert saturate(0.02)["requests_s"] == pytest.approx(SMALL * rate("small") / 0.98, rel=0.03)


def test_escalation_costs_what_the_algebra_says():
    found, escalating = saturate(0.25), saturate(0.25, escalate=0.1)
    assert escalating["requests_s"] / found["requests_s"] == pytest.approx(0.25 / 0.325, rel=0.03)
    assert escalating["escalated"] == pytest.approx(0.075 * escalating["answered"], rel=0.05)


def test_a_replica_less_costs_its_part():
    assert saturate(0.5, without=["s2"])["requests_s"] / saturate(0.5)["requests_s"] == pytest.approx(2 / 3, rel=0.03)
    with pytest.raises(ValueError, match="no replica of pool small runs"):
        saturate(0.5, without=["s4", "s5"])


@pytest.mark.parametrize("kind", ["kill", "oom", "rank"])
def test_a_dead_replica_is_left_out_and_comes_back(kind):
    found = saturate(0.5, seconds=1200, faults=[parse_fault(f"big-2={kind}@400+300")])
    lost = sum(found["errors"].values())
    assert 0 < lost < 40, "what ran on it is lost, and little else"
    whole = saturate(0.5, seconds=1200)["answered"]
    assert found["answered"] == pytest.approx(whole * (1 - 300 / 900 / 3), rel=0.06)
    assert any("big-2" in note and "ready" in note for note in found["notes"])


def test_a_slow_replica_gets_less():
    found = saturate(0.5, faults=[parse_fault("big-1=slow:4")], policy_=policy())
    assert not found["errors"]
    assert found["requests_s"] == pytest.approx((2.25 * rate("big")) / 0.5, rel=0.05)


def test_an_unknown_replica_has_no_faults():
    with pytest.raises(ValueError, match="known: big-1"):
        saturate(0.5, faults=[parse_fault("big-9=kill")])


@pytest.mark.parametrize("share", [0.9, 1.0])
def test_a_full_queue_refuses_and_says_so(share):
    found = saturate(share, clients=40, policy_=policy(queue=1, queue_timeout_s=1), seconds=60)
    assert set(found["errors"]) <= {"pool_saturated", "queue_timeout", "queue_deadline"}
    assert found["errors"]


def test_the_same_seed_gives_the_same_day():
    assert saturate(None, seconds=120, seed=3) == saturate(None, seconds=120, seed=3)


def test_a_conversation_finds_its_cache():
    stage = set_stage(cluster(), policy())
    mix = Conversations(Mix(0.5, "auto", 512, 100, turns=6), stage.policy)
    found = report(run(stage, lambda s: s.arrive(mix, 0.5, 1800)), 0)
    for pool in found["pools"]:
        assert pool["cached_share"] > 0.6
    assert found["requests_s"] == pytest.approx(0.5, rel=0.2)


# ---- logs ----


def recorded(number, at_s, pool, output=50, **more):
    signals = {"prompt_tokens": 400, "turns": 1, "tool_loop": False, "max_output_tokens": 0, "request_class": "main"}
    decision = RecordedDecision(pool=pool, kind="score", p=0.9 if pool == "small" else 0.1, classifier="embedded")
    record = Recorded(f"r{number}", "", "chat", "auto", decision, signals, session=f"s{number}", pool=pool, **more)
    record.ms, record.tokens, record.ended_s = {"total": 1000.0}, {"input": 400, "output": output}, 1e9 + at_s
    return record


def test_a_log_is_played_at_its_times():
    log = [recorded(i, 2.0 * i, "big" if i % 4 == 0 else "small", output=None if i == 7 else 50) for i in range(40)]
    stage = set_stage(cluster(), policy())
    asks = from_log(reversed(log))
    assert [a.at_s for a in asks] == pytest.approx([2.0 * i for i in range(40)], abs=1e-3)
    results = run(stage, lambda s: s.play(asks))
    found = report(results)
    assert found["answered"] == found["requests"] == 40
    assert found["answers_of_guessed_length"] == 1
    assert {p["pool"]: p["requests"] for p in found["pools"]} == {"big": 10, "small": 30}
    assert from_log(log, times=2)[-1].at_s == pytest.approx(39.0)
    assert from_log([]) == []


def test_a_meagre_record_is_enough():
    record = recorded(0, 0, "small", output=None)
    record.signals, record.protocol, record.tokens = {"turns": 1, "tool_loop": False}, "embeddings", {}
    stage = set_stage(cluster(), policy({"use": "small"}))
    found = report(run(stage, lambda s: s.play(from_log([record]))))
    assert found["answered"] == 1
    assert found["answer_tokens_s"] * found["span_s"] == pytest.approx(1, abs=0.01)


def test_another_policy_moves_recorded_requests():
    stage = set_stage(cluster(), policy({"use": "big"}))
    found = report(run(stage, lambda s: s.play(from_log([recorded(i, i, "small") for i in range(10)]))))
    assert found["pools"][0]["requests"] == 10


def test_what_the_log_can_not_tell_stays_where_it_was():
    rule = {"rules": [{"when": {"header.x-who": "anna"}, "use": "big"}], "otherwise": "big",
            "choose": [{"p_at_least": 0.5, "use": "small"}, {"use": "big"}]}  # fmt: skip
    stage = set_stage(cluster(), policy(rule))
    found = report(run(stage, lambda s: s.play(from_log([recorded(0, 0, "small"), recorded(1, 1, "big")]))))
    assert found["not_decided_anew"] == 2
    assert [p["requests"] for p in found["pools"]] == [1, 1]


def test_an_unknown_model_is_an_error_of_its_own():
    ask = from_log([recorded(0, 0, "small")])[0]
    ask = Ask(replace_model(ask.record), 1, 1)
    stage = set_stage(cluster(), policy())
    assert report(run(stage, lambda s: s.play([ask])))["errors"] == {"model_not_found": 1}


def replace_model(record):
    record.model = "nobody"
    return record


# ---- parts ----


def test_time_jumps():
    loop = VirtualLoop()

    async def act():
        await asyncio.gather(asyncio.sleep(1000), asyncio.sleep(86_400 * 30))
        async with asyncio.timeout(5):
            await asyncio.sleep(1)
        return loop.time()

    assert loop.run_until_complete(act()) == pytest.approx(86_400 * 30 + 1)
    with pytest.raises(NothingLeft):
        loop.run_until_complete(loop.create_future())
    loop.close()


def test_exact_quotas_and_even_lengths():
    assert [sum(is_nth(n, 0.3) for n in range(1, m + 1)) for m in (1, 10, 100, 997)] == [0, 3, 30, 299]
    lengths = [answer_length(n, 200) for n in range(1000)]
    assert sum(lengths) / 1000 == pytest.approx(200, rel=0.005)
    assert min(lengths) >= 100
    assert max(lengths) <= 300


def test_quantiles_and_queues():
    assert quantiles([]) == {"p50": None, "p90": None, "p99": None}
    assert quantiles(range(1, 101)) == {"p50": 50, "p90": 90, "p99": 99}
    waits = [Outcome(0.0, 1, admitted_s=2.0), Outcome(1.0, 1, admitted_s=3.0), Outcome(2.0, 1, admitted_s=4.0)]
    assert longest_queue([*waits, Outcome(1.5, 1, admitted_s=1.5)]) == 2


def test_a_mix_without_classifier_means_nothing():
    made = set_stage(cluster(), policy({"use": "big"}))
    assert not Conversations(Mix(0.5, "auto"), made.policy).scored


def test_stage_is_the_cluster():
    stage = set_stage(cluster(), None)
    assert stage.places == BIG * 4 + SMALL * 16
    assert stage.on_node("s2") == ["big-2"]
    assert all(isinstance(engine, Engine) for _, engine in stage.engines.values())
    assert replace(stage.replicas[0], number=9).name == "big-9"
