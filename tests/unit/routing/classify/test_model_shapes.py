"""The judge on real engines' answers: exact numbers, both shapes, calibration, and what it is shown and counts."""

import asyncio
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.config.classifier import ModelClassifier
from switchyard.errors import Unreachable
from switchyard.routing.classify.base import calibrate
from switchyard.routing.classify.flight import Flight
from switchyard.routing.classify.model import FLOOR, ModelJudge, has_score, make_question, read_probability
from switchyard.routing.classify.stats import LATENCY_BOUNDS_S, AskStats
from switchyard.routing.classify.task import characters_for, describe_task, earlier_texts, plain_task

from ...agents import REMINDER, claude_code, claude_result, codex, codex_message
from ...build import chat, signals_of

E = math.exp


def dict_shape(**top: float) -> bytes:
    """vLLM's answer on /v1/completions."""
    logprobs = {"text_offset": [0], "token_logprobs": [-1], "tokens": ["x"], "top_logprobs": [top]}
    return json.dumps({"object": "text_completion", "choices": [{"index": 0, "text": "x", "logprobs": logprobs}]}).encode()


def list_shape(*top: tuple[str, float], usage: object = None) -> bytes:
    """Both engines' answer on chat, and llama.cpp's on completions."""
    entries = [{"id": n, "token": t, "bytes": list(t.encode()), "logprob": p} for n, (t, p) in enumerate(top)]
    content = [{**entries[0], "top_logprobs": entries}]
    return json.dumps({"choices": [{"logprobs": {"content": content}}], "usage": usage}).encode()


# As measured: vLLM 0.32 and llama.cpp on SmolLM2, "Is the sky blue?"; and vLLM under a choice, whose mass the pieces of the
# labels share.
REAL = [
    (list_shape(("No", -1.2616957), ("The", -1.7616957), ("Is", -1.8866957), ("Yes", -2.5116957)), 1 / (1 + E(1.25))),
    (list_shape(("No", -1.0666385), ("The", -1.7670532), ("I", -2.5135362), ("Yes", -2.8791272)), 1 / (1 + E(1.8124887))),
    (list_shape(("no", -0.5), ("yes", -1.5), ("y", -2.0), ("ye", -2.5), ("n", -3.0)),
     (E(-1.5) + E(-2) + E(-2.5)) / (E(-1.5) + E(-2) + E(-2.5) + E(-0.5) + E(-3))),
    (dict_shape(**{" yes": -0.5, " no": -1.5, " the": -3.0}), E(-0.5) / (E(-0.5) + E(-1.5))),
    (dict_shape(**{" the": -0.1, " Yes": -4.0}), E(-4) / (E(-4) + FLOOR)),
    (list_shape(("\u2581yes", -0.2), ("\u0120no", -1.8), ('"yes', -5.0)), (E(-0.2) + E(-5)) / (E(-0.2) + E(-5) + E(-1.8))),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "p"), REAL, ids=range(len(REAL)))
def test_probabilities_from_real_answers(answer, p):
    assert read_probability(answer) == pytest.approx(p, rel=1e-6)


@pytest.mark.parametrize(
    "answer",
    [
        dict_shape(),
        dict_shape(the=-0.1),
        list_shape(("<think>", -0.0001), ("yes", -9.5), ("no", -10.0)),  # it was about to think, not to answer
        dict_shape(yes=0.5),  # no log-probability
        b'{"choices":[{"logprobs":{"top_logprobs":[]}}]}',
        b'{"choices":[{"logprobs":{"top_logprobs":[[]]}}]}',
        b'{"choices":[{"logprobs":{"top_logprobs":null}}]}',
        b'{"choices":[{"logprobs":"content"}]}',
        b"[" * 100_000,
    ],
)
def test_no_probability(answer):
    assert read_probability(answer) is None


# p, bias, scale, calibrated
CALIBRATED = [
    (0.3, 0.0, 1.0, 0.3),
    (0.5, 1.0, 1.0, 1 / (1 + E(-1))),
    (0.8, 0.0, 0.5, 2 / 3),  # odds 4 -> 2
    (0.8, math.log(2), 1.0, 8 / 9),
    (0.8, -math.log(4), 1.0, 0.5),
    (0.2, 0.0, -1.0, 0.8),
    (0.0, 0.0, 2.0, 0.0),
    (1.0, 0.0, 2.0, 1.0),
    (0.0, 0.0, 1e6, 0.0),
    (1.0, 0.0, 1e6, 1.0),
]


@pytest.mark.parametrize(("p", "bias", "scale", "calibrated"), CALIBRATED, ids=range(len(CALIBRATED)))
def test_calibration_is_logistic(p, bias, scale, calibrated):
    assert calibrate(p, bias, scale) == pytest.approx(calibrated, abs=1e-8)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(-10, 10), st.floats(0.01, 10))
def test_calibration_keeps_order_and_bounds(p, q, bias, scale):
    low, high = sorted([p, q])
    assert 0 <= calibrate(low, bias, scale) <= calibrate(high, bias, scale) <= 1


# ---- what the judge is shown ----

TOOLS = [{"type": "function", "function": {"name": n}} for n in ("bash", "read")]
# body, protocol, what is shown
TASKS = [
    (chat(("user", "hi")), "chat", "hi"),
    (chat(("system", "x" * 9000), ("user", f"{REMINDER}\nhi")), "chat", "hi"),
    (
        chat(("user", "prove it"), ("assistant", "done"), ("user", "commit it"), tools=TOOLS),
        "chat",
        "Said before:\n- prove it\n\nSaid now:\ncommit it\n\nTools it may call: bash, read",
    ),
    (
        chat(("user", "one"), ("user", "two"), ("user", REMINDER), ("user", "three"), ("user", "four")),
        "chat",
        "Said before:\n- two\n- three\n\nSaid now:\nfour",
    ),
    (
        claude_code(claude_result("error: no such file"), {"role": "user", "content": "go on"}),
        "messages",
        "Said before:\n- fix the failing test\n\nSaid now:\ngo on\n\nTools it may call: Bash, Read, Edit",
    ),
    (
        codex(codex_message("assistant", "ok"), codex_message("user", "yes")),
        "responses",
        "Said before:\n- fix the failing test\n\nSaid now:\nyes\n\n"
        "Tools it may call: shell, mcp__docs, web_search, apply_patch",
    ),
    ({"model": "auto", "input": "sort this"}, "responses", "sort this"),
    ({"model": "auto", "prompt": "once upon"}, "completions", "once upon"),
]


@pytest.mark.parametrize(("body", "protocol", "task"), TASKS, ids=range(len(TASKS)))
def test_the_task_is_what_humans_said_and_the_tools_names(body, protocol, task):
    assert describe_task(signals_of(body, protocol), 1024) == task


def test_plain_words_for_a_trained_classifier():
    body = chat(("user", "one"), ("user", "two"), ("user", "three"), ("user", "four"), tools=TOOLS)
    assert plain_task(signals_of(body), 1024) == "two\nthree\nfour"
    assert plain_task(signals_of(chat(("user", "x" * 5000))), 64).count("\n...\n") == 1


def test_an_earlier_message_with_pictures_is_not_read_again():
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 300_000}}
    body = chat(("user", [picture, {"type": "text", "text": "look"}]), ("user", "now do it"))
    assert earlier_texts(signals_of(body)) == []


TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=3000)


@given(st.lists(TEXT, min_size=1, max_size=5), st.integers(64, 1024), st.integers(0, 50))
def test_the_task_keeps_to_its_length(texts, tokens, tools):
    named = [{"type": "function", "function": {"name": f"tool_{n}"}} for n in range(tools)]
    signals = signals_of(chat(*(("user", t) for t in texts), tools=named))
    if signals.last_human_text:
        for shown in (describe_task(signals, tokens), plain_task(signals, tokens)):
            assert len(shown) <= characters_for(signals.last_human_text, tokens) + 200


def test_a_script_with_long_characters_has_fewer_of_them():
    assert characters_for("hello", 100) == 400
    assert characters_for("你好", 100) == 133
    assert characters_for("", 100) == 400


def test_the_labels_are_a_choice_and_thinking_is_off():
    body = json.loads(make_question("hi", True))
    assert body["structured_outputs"] == {"choice": ["yes", "no", "Yes", "No"]}
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert not {"structured_outputs", "chat_template_kwargs"} & json.loads(make_question("hi", False)).keys()


# ---- asking ----


class Pool:
    """Answers in turn; an exception is raised; None hangs until `open`."""

    def __init__(self, *answers: tuple[int, bytes] | Exception | None) -> None:
        self.answers = list(answers)
        self.asked: list[dict] = []
        self.open = asyncio.Event()

    async def __call__(self, pool: str, body: bytes) -> tuple[int, bytes]:
        self.asked.append(json.loads(body))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            await self.open.wait()
            return YES
        if isinstance(answer, Exception):
            raise answer
        return answer


USAGE = {"prompt_tokens": 90, "completion_tokens": 1}
YES = (200, list_shape(("yes", math.log(0.75)), ("no", math.log(0.25)), usage=USAGE))


def judge(pool: Pool, flight: dict | None = None, bias: float = 0.0, scale: float = 1.0, **how) -> ModelJudge:
    return ModelJudge(
        ModelClassifier(type="model", pool="small", **how), pool, Flight(has_score, **(flight or {})), bias, scale
    )


def hi(text: str = "hi"):
    return signals_of(chat(("user", text)))


def test_equal_asks_are_one_question_and_the_cache_answers_after_it(run):
    async def it():
        pool = Pool(None)
        judged = judge(pool, deadline_ms=5000)
        tasks = [asyncio.create_task(judged.score(hi())) for _ in range(3)]
        await asyncio.sleep(0.01)
        pool.open.set()
        outcomes = await asyncio.gather(*tasks)
        assert [o.p for o in outcomes] == [pytest.approx(0.75)] * 3
        assert (await judged.score(signals_of(chat(("system", "another"), ("user", f"{REMINDER}hi"))))).p == outcomes[0].p
        assert (await judged.score(hi("hi there"))).p == outcomes[0].p
        stats = judged.stats
        assert (stats.asked, stats.joined, stats.cached, stats.answered) == (2, 2, 1, 2)
        assert (stats.input_tokens, stats.output_tokens) == (180, 2)
        assert sum(stats.counts) == 2

    run(it())


def test_one_too_many_abstains_at_once(run):
    async def it():
        pool = Pool(None)
        judged = judge(pool, {"concurrency": 2}, deadline_ms=5000)
        tasks = [asyncio.create_task(judged.score(hi(f"task {n}"))) for n in range(2)]
        await asyncio.sleep(0.01)
        async with asyncio.timeout(1):
            outcome = await judged.score(hi("task 3"))
        assert (outcome.p, outcome.failed) == (None, True)
        assert outcome.why.startswith("busy")
        assert judged.stats.abstained == {"busy": 1}
        pool.open.set()
        await asyncio.gather(*tasks)

    run(it())


def test_a_failure_is_asked_again(run):
    async def it():
        pool = Pool((503, b"{}"), Unreachable("nobody there"), (200, b"?"), YES)
        judged = judge(pool)
        outcomes = [await judged.score(hi()) for _ in range(4)]
        assert [o.p is None for o in outcomes] == [True, True, True, False]
        assert [o.failed for o in outcomes] == [True, True, True, False]
        assert judged.stats.abstained == {"status": 1, "unreachable": 1, "unreadable": 1}

    run(it())


def test_prompt_and_pool_are_part_of_what_is_asked(run):
    async def it():
        flight = Flight(has_score)
        pool = Pool(YES)
        for prompt, name in ((None, "small"), ("other? {task}", "small"), (None, "big"), (None, "small")):
            settings = ModelClassifier(type="model", pool=name, prompt=prompt)
            await ModelJudge(settings, pool, flight).score(hi())
        assert len(pool.asked) == 3

    run(it())


def test_calibration_comes_after_the_cache(run):
    async def it():
        flight, pool = Flight(has_score), Pool(YES)
        settings = ModelClassifier(type="model", pool="small")
        plain = await ModelJudge(settings, pool, flight).score(hi())
        moved = await ModelJudge(settings, pool, flight, bias=-math.log(3)).score(hi())
        assert (plain.p, moved.p) == (pytest.approx(0.75), pytest.approx(0.5))
        assert len(pool.asked) == 1

    run(it())


def test_an_engine_that_is_strict_about_fields_is_asked_without_them_from_then_on(run):
    async def it():
        pool = Pool((400, b'{"error":{"message":"unknown field structured_outputs"}}'), YES)
        judged = judge(pool)
        assert (await judged.score(hi("a"))).p == pytest.approx(0.75)
        assert (await judged.score(hi("b"))).p == pytest.approx(0.75)
        assert ["structured_outputs" in body for body in pool.asked] == [True, False, False]

    run(it())


def test_a_400_for_another_reason_stays_one(run):
    async def it():
        pool = Pool((400, b"{}"))
        judged = judge(pool)
        assert (await judged.score(hi())).why == "the judge answered with status 400"
        await judged.score(hi())
        assert ["structured_outputs" in body for body in pool.asked] == [True, False, True, False]

    run(it())


def test_a_client_that_leaves_doesnt_take_the_answer_from_others(run):
    async def it():
        pool = Pool(None)
        judged = judge(pool, deadline_ms=5000)
        first, second = (asyncio.create_task(judged.score(hi())) for _ in range(2))
        await asyncio.sleep(0.01)
        first.cancel()
        await asyncio.sleep(0.01)
        pool.open.set()
        assert (await second).p == pytest.approx(0.75)
        assert first.cancelled()

    run(it())


def test_latency_is_counted_by_bounds():
    stats = AskStats()
    for seconds in (0.001, 0.005, 0.006, 99):
        stats.note_answer(seconds)
    assert (stats.answered, stats.seconds) == (4, pytest.approx(99.012))
    assert stats.counts == [2, 1, *[0] * (len(LATENCY_BOUNDS_S) - 2), 1]
