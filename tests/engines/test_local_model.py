"""The local classifier with real, tiny models: transformers and torch come from vLLM's environment. Run by `make test-vllm`."""

from __future__ import annotations

import asyncio
import math
import os
import sys
from collections.abc import Iterator

import pytest
from tiny_models import make_causal, make_sequence
from unit.build import chat, signals_of
from vllm_env import ensure

from switchyard.routing.classify.local import LocalClassifier, Worker, worker_command
from switchyard.routing.classify.worker import load

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module", autouse=True)
def _borrowed_packages() -> Iterator[None]:
    """Behind this environment's own packages, so that only what is missing here comes from there."""
    (site,) = (ensure().root / "venv").glob("lib/python*/site-packages")
    before = os.environ.get("PYTHONPATH")
    sys.path.append(str(site))
    os.environ["PYTHONPATH"] = str(site)
    yield
    sys.path.remove(str(site))
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


@pytest.fixture
def transformers():
    import transformers

    return transformers


@pytest.fixture
def torch():
    import torch

    return torch


def test_a_sequence_classifier_gives_the_probability_of_its_label(tmp_path, transformers, torch):
    path = make_sequence(tmp_path)
    small, what = load(str(path), "sequence", "small", 32)
    big, _ = load(str(path), "sequence", "big", 32)
    assert "BertForSequenceClassification on" in what
    for text in ("fix the test", "prove the theorem " * 100):
        assert small(text) + big(text) == pytest.approx(1)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    with torch.inference_mode():
        logits = model(**tokenizer("fix the test", return_tensors="pt")).logits[0]
    assert small("fix the test") == pytest.approx(float(torch.softmax(logits, -1)[1]), rel=1e-5)


def test_a_single_output_is_a_sigmoid(tmp_path):
    score, _ = load(str(make_sequence(tmp_path, ("small",))), "sequence", "", 32)
    assert 0 < score("fix the test") < 1


def test_labels_must_be_clear(tmp_path):
    path = str(make_sequence(tmp_path, ("small", "middle", "big")))
    with pytest.raises(ValueError, match="say which label"):
        load(path, "sequence", "", 32)
    with pytest.raises(ValueError, match="no label tiny"):
        load(path, "sequence", "tiny", 32)


@pytest.mark.parametrize("template", [None, "{% for m in messages %}{{ m['content'] }}{% endfor %} ?"])
def test_a_causal_model_is_read_at_its_next_token(tmp_path, template, transformers, torch):
    path = make_causal(tmp_path, template)
    score, _ = load(str(path), "causal", "", 32)
    model = transformers.AutoModelForCausalLM.from_pretrained(path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    with torch.inference_mode():
        ids = tokenizer("fix the test" + (" ?" if template else ""), return_tensors="pt")
        chances = torch.softmax(model(**ids).logits[0, -1], -1).tolist()
    yes, no = chances[2] + chances[4], chances[3] + chances[5]
    assert score("fix the test") == pytest.approx(yes / (yes + no), rel=1e-5)
    assert math.isfinite(score("word " * 2000))


def test_through_the_process(run, tmp_path):
    path = make_sequence(tmp_path)
    expected = load(str(path), "sequence", "small", 64)[0]("fix the test")

    async def it():
        classifier = LocalClassifier(Worker(worker_command(str(path), "sequence", "small", 64)), "sequence", 5000, 64)
        classifier.start()
        try:
            async with asyncio.timeout(50):
                while not classifier.worker.ready:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            outcome = await classifier.score(signals_of(chat(("user", "fix the test"))))
        finally:
            await classifier.stop()
        assert outcome.p == pytest.approx(expected, rel=1e-5)

    run(it())


def test_files_that_are_no_model(run, tmp_path):
    (tmp_path / "config.json").write_text("{}")

    async def it():
        worker = Worker(worker_command(str(tmp_path), "sequence", None, 64))
        worker.begin()
        async with asyncio.timeout(50):
            while not worker._problem:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await worker.stop()
        assert worker._problem.startswith("the model can't be used: ")

    run(it())
