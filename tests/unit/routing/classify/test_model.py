"""A model as judge: exact probabilities from engines' answers, and an abstention for everything else."""

import asyncio
import json
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from switchyard.config.classifier import ModelClassifier
from switchyard.errors import PoolSaturated, Unreachable
from switchyard.routing.classify.model import DEFAULT_PROMPT, FLOOR, TOP_TOKENS, ModelJudge, read_probability, shorten

from ...build import chat, signals_of

HI = signals_of(chat(("user", "hi")))


def answer(*top: tuple[str, float]) -> bytes:
    """An answer as vLLM and llama.cpp give it (field names and order of the real ones)."""
    entries = [{"token": t, "logprob": p, "bytes": list(t.encode())} for t, p in top]
    content = [{**entries[0], "top_logprobs": entries}] if entries else []
    message = {"role": "assistant", "content": top[0][0] if top else ""}
    return json.dumps(
        {"id": "x", "object": "chat.completion",
         "choices": [{"index": 0, "message": message, "logprobs": {"content": content}, "finish_reason": "length"}],
         "usage": {"prompt_tokens": 19, "completion_tokens": 1}}
    ).encode()  # fmt: skip


E = math.exp
# top tokens, p
READ = [
    ([("yes", math.log(0.75)), ("no", math.log(0.25))], 0.75),
    ([("no", math.log(0.6)), ("yes", math.log(0.2))], 0.25),
    ([("No", -1.26), ("The", -1.76), ("Is", -1.88), ("Yes", -2.51), ("I", -3.38)], E(-2.51) / (E(-2.51) + E(-1.26))),
    ([(" Yes", -1), ("yes", -2), ("YES", -3), (" no", -2)], (E(-1) + E(-2) + E(-3)) / (E(-1) + 2 * E(-2) + E(-3))),
    ([("yes", math.log(0.5)), ("maybe", -1)], 0.5 / (0.5 + FLOOR)),  # a label that is missing counts the floor
    ([("no", math.log(0.5))], FLOOR / (0.5 + FLOOR)),
    ([("yes", -9999.0), ("no", 0.0)], FLOOR / (1 + FLOOR)),
    # as other tokenisers cut it: with a mark, a line break, a blank of their own, or only the beginning of the word
    ([("\u010ayes,", -1), ("\u0120N", -2), ("\u2581No.", -3), ("y", -4)], (E(-1) + E(-4)) / (E(-1) + E(-4) + E(-2) + E(-3))),
]


@pytest.mark.parametrize(("top", "p"), READ, ids=range(len(READ)))
def test_the_probability_is_yes_against_no(top, p):
    assert read_probability(answer(*top)) == pytest.approx(p, rel=1e-12)


NONSENSE = [
    b"", b"null", b"[]", b"{}", b"\xff", b'{"choices":[]}', b'{"choices":null}', b'{"choices":{"0":1}}',
    b'{"choices":[{"logprobs":null}]}',
    b'{"choices":[{"logprobs":{"content":[]}}]}', b'{"choices":[{"logprobs":{"content":[{"top_logprobs":null}]}}]}',
    b'{"choices":[{"logprobs":{"content":[{"top_logprobs":[3]}]}}]}', b'{"error":{"message":"no"}}',
    answer(), answer(("maybe", -0.1), ("perhaps", -2.0)),
    answer(("yes", -1)).replace(b"-1", b'"nan"'),
    answer(("yes", -1)).replace(b"-1", b"null"),
    answer(("yes", -1)).replace(b"-1", b"1e300"),
    answer(("yes", 709.7), ("yes", 709.7), ("no", -1)),
]  # fmt: skip


@pytest.mark.parametrize("body", NONSENSE, ids=range(len(NONSENSE)))
def test_nonsense_is_no_score(body):
    assert read_probability(body) is None


TOP = st.lists(
    st.fixed_dictionaries(
        {"token": st.sampled_from(["yes", " No", "x", 3]), "logprob": st.floats(-100, 0) | st.text(max_size=3) | st.none()}
    ),
    max_size=5,
)


@given(TOP)
@example([{"token": "yes", "logprob": "inf"}])
def test_a_score_is_a_probability_or_none(top):
    body = json.dumps({"choices": [{"logprobs": {"content": [{"top_logprobs": top}]}}]}).encode()
    p = read_probability(body)
    assert p is None or 0 <= p <= 1


@given(st.binary(max_size=50))
def test_no_bytes_raise(body):
    assert read_probability(body) is None


@given(st.text(max_size=300), st.integers(16, 200))
def test_shortened_texts_keep_their_beginning_and_end(text, characters):
    short = shorten(text, characters)
    assert len(short) <= max(characters, 0)
    if len(text) <= characters:
        assert short == text
    else:
        begin, _, end = short.partition("\n...\n")
        assert text.startswith(begin)
        assert text.endswith(end[-4:])


class Judge:
    """A pool that answers as it is told and remembers what it was asked."""

    def __init__(self, status: int = 200, body: bytes = b"", error: BaseException | None = None, hangs: bool = False) -> None:
        self.status, self.body, self.error, self.hangs = status, body, error, hangs
        self.asked: list[tuple[str, dict]] = []
        self.left = False

    async def __call__(self, pool: str, body: bytes) -> tuple[int, bytes]:
        self.asked.append((pool, json.loads(body)))
        if self.hangs:
            try:
                await asyncio.Event().wait()
            finally:
                self.left = True
        if self.error is not None:
            raise self.error
        return self.status, self.body


def settings(**how) -> ModelClassifier:
    return ModelClassifier(type="model", pool="small", **how)


def test_a_clear_answer_is_a_score(run):
    judge = Judge(body=answer(("yes", math.log(0.8)), ("no", math.log(0.2))))
    outcome = run(ModelJudge(settings(), judge).score(HI))
    assert outcome.p == pytest.approx(0.8)
    assert (outcome.by, outcome.failed) == ("model small", False)


@pytest.mark.parametrize(
    ("judge", "why"),
    [
        (Judge(hangs=True), "no answer within 5 ms"),
        (Judge(status=500, body=b"{}"), "status 500"),
        (Judge(status=404), "status 404"),
        (Judge(body=b"not json"), "no log-probabilities"),
        (Judge(body=b'{"choices":[{"message":{"content":"yes"},"logprobs":null}]}'), "no log-probabilities"),
        (Judge(body=answer(("<think>", -0.01), ("yes", -9.0))), "begins to think"),
        (Judge(body=answer(("Think", -0.01))), "begins to think"),
        (Judge(body=answer(("<|channel|>", 0.0))), "begins to think"),
        (Judge(body=answer(("maybe", -1))), "no yes and no"),
        (Judge(error=Unreachable("pool small: nobody there")), "pool small: nobody there"),
        (Judge(error=PoolSaturated("pool small is full")), "pool small is full"),
        (Judge(error=TimeoutError()), "no answer within 5 ms"),
    ],
)
def test_a_judge_that_is_late_broken_or_unclear_abstains(run, judge, why):
    outcome = run(ModelJudge(settings(deadline_ms=5), judge).score(HI))
    assert (outcome.p, outcome.failed) == (None, True)
    assert why in outcome.why
    assert judge.left is judge.hangs  # a late question is taken back


def test_without_a_humans_text_nobody_is_asked(run):
    judge = Judge()
    outcome = run(ModelJudge(settings(), judge).score(signals_of(chat(("system", "x")))))
    assert (outcome.p, outcome.failed, judge.asked) == (None, False, [])


def test_what_the_judge_is_asked(run):
    judge = Judge(status=500)
    run(ModelJudge(settings(), judge).score(signals_of(chat(("user", "sort {task} this")))))
    ((pool, body),) = judge.asked
    assert pool == "small"
    assert body["messages"] == [{"role": "user", "content": DEFAULT_PROMPT.replace("{task}", "sort {task} this")}]
    assert (body["max_tokens"], body["temperature"], body["logprobs"], body["top_logprobs"]) == (1, 0, True, TOP_TOKENS)
    assert body["chat_template_kwargs"] == {"enable_thinking": False}


def test_the_prompt_is_the_policys_and_the_task_is_cut(run):
    judge = Judge(status=500)
    judged = ModelJudge(settings(prompt="Small enough? {task}", max_input_tokens=64), judge)
    run(judged.score(signals_of(chat(("user", "begin " + "x" * 3000 + " end")))))
    content = judge.asked[0][1]["messages"][0]["content"]
    assert content.startswith("Small enough? begin xxx")
    assert content.endswith("xxx end")
    assert "\n...\n" in content
    assert len(content) < 300
