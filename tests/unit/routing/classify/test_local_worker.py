"""The local classifier's process: its protocol, deadlines, death and return. No model: a script stands in for it."""

import asyncio
import math
import os
import sys
import time
from pathlib import Path

import pytest

from switchyard.routing.classify.local import (
    MOST_WAITING,
    LocalClassifier,
    NoAnswer,
    Worker,
    why_not,
    worker_command,
)
from switchyard.routing.classify.model import DEFAULT_PROMPT
from switchyard.routing.classify.worker import find_label, find_words, serve

from ...build import chat, signals_of

FAKE = [sys.executable, str(Path(__file__).with_name("fake_worker.py"))]


async def ready(worker: Worker, within_s: float = 20.0) -> Worker:
    """Begin the worker and wait until it takes questions."""
    async with asyncio.timeout(within_s):
        while not worker.ready:
            worker.begin()
            await asyncio.sleep(0.01)
    return worker


async def until(holds, within_s: float = 20.0) -> None:
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110  # what is waited for has no event
            await asyncio.sleep(0.01)


async def why(worker: Worker, text: str, deadline_s: float = 5.0) -> tuple[str, str]:
    with pytest.raises(NoAnswer) as caught:
        await worker.ask(text, deadline_s)
    return caught.value.reason, str(caught.value)


def with_worker(run, use, *args: str, **how) -> None:
    """Run `use(worker)` and end the worker after it."""

    async def it() -> None:
        worker = Worker([*FAKE, *args], **how)
        try:
            await use(worker)
        finally:
            await worker.stop()

    run(it())


def test_the_first_question_begins_the_process_and_is_not_kept_waiting(run):
    async def use(worker):
        assert worker.starts == 0
        assert await why(worker, "p 0.7") == ("worker", "the model is being loaded")
        await ready(worker)
        assert worker.starts == 1
        assert await worker.ask("p 0.7", 5) == 0.7
        assert await asyncio.gather(*(worker.ask(f"p 0.{n}", 5) for n in range(1, 5))) == [0.1, 0.2, 0.3, 0.4]

    with_worker(run, use)


@pytest.mark.parametrize(
    ("text", "reason", "words"),
    [
        ("late", "late", "too late"),
        ("error", "unreadable", "ValueError: too strange"),
        ("p 1.2", "unreadable", "no number"),
    ],
)
def test_an_answer_without_a_score(run, text, reason, words):
    async def use(worker):
        await ready(worker)
        found = await why(worker, text)
        assert found[0] == reason
        assert words in found[1]
        assert await worker.ask("p 0.5", 5) == 0.5

    with_worker(run, use)


def test_lines_that_answer_nothing_are_passed_over(run):
    async def use(worker):
        assert await (await ready(worker)).ask("junk", 5) == 0.6

    with_worker(run, use)


def test_a_late_answer_is_crossed_off_and_taken_for_no_other_question(run):
    async def use(worker):
        await ready(worker)
        assert await why(worker, "sleep 0.3", 0.05) == ("late", "no answer within 50 ms")
        assert await worker.ask("p 0.9", 5) == 0.9
        assert not worker._asked

    with_worker(run, use)


def test_only_so_many_questions_wait(run):
    async def use(worker):
        await ready(worker)
        waiting = [asyncio.create_task(worker.ask("sleep 0.2", 9)) for _ in range(MOST_WAITING)]
        await asyncio.sleep(0)
        assert (await why(worker, "p 0.5"))[0] == "busy"
        assert not any(task.done() for task in waiting), "it was told so at once"
        for task in waiting[1:]:
            task.cancel()  # a cancelled question still is the process's to work on
        await asyncio.gather(*waiting, return_exceptions=True)
        await until(lambda: not worker._asked)
        assert await worker.ask("p 0.5", 5) == 0.5

    with_worker(run, use)


def test_a_process_that_dies_is_told_to_all_who_wait_and_begun_anew_after_a_pause(run):
    async def use(worker):
        await ready(worker)
        dying = asyncio.create_task(worker.ask("die", 9))
        behind = asyncio.create_task(worker.ask("p 0.5", 9))
        for task in (dying, behind):
            with pytest.raises(NoAnswer, match=r"the model's process ended \(exit status 7\)"):
                await task
        assert (await why(worker, "p 0.5"))[1] == "the model's process ended (exit status 7)"
        assert worker.starts == 1  # its pause is not over
        await ready(worker)
        assert worker.starts == 2
        assert await worker.ask("p 0.5", 5) == 0.5

    with_worker(run, use, first_pause_s=0.2)


def test_the_pause_doubles_until_an_answer_comes(run):
    async def use(worker):
        pauses = []
        for _ in range(3):
            await ready(worker)
            pauses.append(worker._pause_s)
            with pytest.raises(NoAnswer):
                await worker.ask("die", 9)
        assert pauses == [0.05, 0.1, 0.2]
        await ready(worker)
        await worker.ask("p 0.5", 5)
        assert worker._pause_s == 0.05

    with_worker(run, use, first_pause_s=0.05)


def test_a_process_that_hangs_is_ended(run):
    async def use(worker):
        await ready(worker)
        assert (await why(worker, "hang", 0.05))[0] == "late"
        await asyncio.sleep(0.15)
        assert "begun anew" in (await why(worker, "p 0.5"))[1]
        await until(lambda: not worker.ready)
        await ready(worker)
        assert await worker.ask("p 0.5", 5) == 0.5

    with_worker(run, use, stuck_s=0.1, first_pause_s=0.05)


@pytest.mark.parametrize(
    ("how", "words", "least_pause_s"),
    [
        ("fail", "the model can't be used: OSError: no weights here", 30),
        ("mute", "its process ended while loading (exit status 3)", 0),
        ("noise", "the model's process can't be used", 0),
        ("slow-start", "the model was not loaded within 0.2 s", 0),
    ],
)
def test_a_process_that_never_gets_ready(run, how, words, least_pause_s):
    async def use(worker):
        worker.begin()
        await until(lambda: worker._problem and worker._life is None)
        reason, message = await why(worker, "p 0.5")
        assert reason == "worker"
        assert words in message
        assert worker._start_at_s - time.monotonic() > least_pause_s

    with_worker(run, use, how, start_limit_s=0.2 if how == "slow-start" else 20)


def test_a_program_that_is_not_there(run):
    async def it():
        worker = Worker(["/nowhere/python"])
        worker.begin()
        await until(lambda: worker._problem)
        assert "No such file" in (await why(worker, "p 1"))[1]
        await worker.stop()

    run(it())


def test_stopping_ends_the_process_and_answers_who_waits(run):
    async def it():
        worker = await ready(Worker(FAKE))
        pid = worker._process.pid
        waiting = asyncio.create_task(worker.ask("sleep 0.2", 9))
        await asyncio.sleep(0.05)
        await worker.stop()
        with pytest.raises(NoAnswer, match="ended"):
            await waiting
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        await worker.stop()  # again: nothing

    run(it())


# ---- the classifier on top ----


class Says:
    """A worker by hand."""

    def __init__(self, answer) -> None:
        self.answer = answer
        self.asked: list[tuple[str, float]] = []

    async def ask(self, text: str, deadline_s: float) -> float:
        self.asked.append((text, deadline_s))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


CONVERSATION = chat(
    ("user", "fix the test"), ("assistant", "done"), ("user", "commit it"),
    tools=[{"type": "function", "function": {"name": "bash"}}],
)  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("sequence", "fix the test\ncommit it"),
        (
            "causal",
            DEFAULT_PROMPT.replace("{task}", "Said before:\n- fix the test\n\nSaid now:\ncommit it\n\nTools it may call: bash"),
        ),
    ],
)
def test_what_the_model_is_asked(run, kind, text):
    worker = Says(0.8)
    classifier = LocalClassifier(worker, kind, 300, 512)
    outcome = run(classifier.score(signals_of(CONVERSATION)))
    assert worker.asked == [(text, 0.3)]
    assert (outcome.by, outcome.p, outcome.failed) == ("local", 0.8, False)
    assert (classifier.stats.asked, classifier.stats.answered) == (1, 1)


def test_without_an_answer_it_abstains(run):
    classifier = LocalClassifier(Says(NoAnswer("the model is being loaded", "worker")), "sequence", 300, 512)
    outcome = run(classifier.score(signals_of(CONVERSATION)))
    assert (outcome.p, outcome.failed, outcome.why) == (None, True, "the model is being loaded")
    assert classifier.stats.abstained == {"worker": 1}


def test_without_a_humans_text_nobody_is_asked(run):
    worker = Says(0.8)
    outcome = run(LocalClassifier(worker, "sequence", 300, 512).score(signals_of(chat(("system", "x")))))
    assert (outcome.p, outcome.failed, worker.asked) == (None, False, [])


# ---- what keeps it from working ----


def test_what_is_missing_is_said_with_what_to_do(monkeypatch, tmp_path):
    found = {"transformers": None, "torch": object()}
    monkeypatch.setattr("switchyard.routing.classify.local.find_spec", found.get)
    assert why_not(str(tmp_path)) == (
        "a local classifier needs transformers, not installed here: pip install 'switchyard-gateway[local]'"
    )
    found["transformers"] = object()
    assert "is no folder with a transformers model" in why_not(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert why_not(str(tmp_path)) is None


def test_the_command_runs_the_worker_with_this_python():
    assert worker_command("/m", "sequence", "easy", 256) == [
        sys.executable, "-m", "switchyard.routing.classify.worker", "--model", "/m", "--kind", "sequence",
        "--label", "easy", "--max-tokens", "256",
    ]  # fmt: skip
    assert "--label" not in worker_command("/m", "causal", None, 256)


# ---- inside the process ----


def test_questions_are_answered_in_their_order_and_late_ones_are_not_worked_on():
    worked_on = []

    def score(text: str) -> float:
        worked_on.append(text)
        if text == "bad":
            raise RuntimeError("out of memory")
        return math.nan if text == "nan" else 0.25

    questions = [("a", 9.0), ("b", 4.0), ("bad", 9.0), ("nan", 9.0), ("c", 9.0)]
    lines = [f'{{"id": {n}, "text": "{text}", "by": {by}}}\n' for n, (text, by) in enumerate(questions)]
    assert list(serve(lines, score, lambda: 5.0)) == [
        {"id": 0, "p": 0.25},
        {"id": 1, "late": True},
        {"id": 2, "error": "RuntimeError: out of memory"},
        {"id": 3, "error": "the model's answer is not a number"},
        {"id": 4, "p": 0.25},
    ]
    assert worked_on == ["a", "bad", "nan", "c"]


@pytest.mark.parametrize(
    ("labels", "wanted", "index"),
    [
        ({0: "LABEL_0", 1: "LABEL_1"}, "", 1),
        ({0: "LABEL_0"}, "", 0),
        ({0: "small", 1: "big"}, "Small", 0),
        ({0: "small", 1: "middle", 2: "big"}, "small", 0),
        ({0: "small", 1: "middle", 2: "big"}, "", None),
        ({0: "small", 1: "big"}, "tiny", None),
    ],
)
def test_the_label_that_means_small(labels, wanted, index):
    if index is None:
        with pytest.raises(ValueError, match="small, "):
            find_label(labels, wanted)
    else:
        assert find_label(labels, wanted) == index


class Tokenizer:
    def __init__(self, *words: str) -> None:
        self.words = words

    def get_vocab(self) -> dict[str, int]:
        return {word: n for n, word in enumerate(self.words)}

    def decode(self, ids: list[int]) -> str:
        return self.words[ids[0]]


def test_all_tokens_that_are_a_word_count():
    assert find_words(Tokenizer("yes", " Yes", "no", "not", "YES", " no", "yesterday")) == ([0, 1, 4], [2, 5])
    with pytest.raises(ValueError, match="no token for yes"):
        find_words(Tokenizer("y", "es", "no"))
