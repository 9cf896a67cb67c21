"""A route's classifiers: one block for each type."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from switchyard.config.block import Block, Count, Seconds


class Calibrated(Block):
    """A classifier whose score is put right by a logistic curve that was fitted to labels (`switchyard calibrate`)."""

    bias: Annotated[float, Field(ge=-100, le=100)] = 0
    """Calibration: added to the logit of the score."""
    scale: Annotated[float, Field(gt=0, le=100)] = 1
    """Calibration: the logit of the score is multiplied by it, before `bias`."""


class EmbeddedClassifier(Calibrated):
    """In process, without a network, well under a millisecond; trained on questions with short answers, silent on the rest."""

    type: Literal["embedded"]
    """embedded"""
    weights: Annotated[str, Field(min_length=1)] | None = None
    """File with a head of your own, as `switchyard calibrate --train` writes it; left out: the shipped one."""


class ModelClassifier(Calibrated):
    """An LLM on a pool is asked for one token, yes or no, and its probabilities are read."""

    type: Literal["model"]
    """model"""
    pool: str
    """Pool that judges."""
    deadline_ms: Annotated[int, Field(ge=1, le=60000)] = 300
    """Longest wait; then the next classifier is asked."""
    prompt: str | None = None
    """Question put to the judge; {task} stands for the human's text. Left out: the shipped one."""
    max_input_tokens: Annotated[int, Field(ge=64, le=32768)] = 1024
    """The task is cut to about this length, beginning and end kept."""
    concurrency: Count = 4
    """Questions under way at the same time; one too many is not asked, and the next classifier is."""
    cache_size: Annotated[int, Field(ge=0, le=1_000_000)] = 4096
    """Answers that are remembered, by a digest of the question; 0 for none."""
    cache_ttl_s: Seconds = 600
    """How long an answer is remembered."""

    @model_validator(mode="after")
    def _shows_the_task(self) -> ModelClassifier:
        if self.prompt is not None and "{task}" not in self.prompt:
            raise PydanticCustomError("prompt", "prompt has no {task}: the judge would see nothing of the request")
        return self


class LocalClassifier(Calibrated):
    """A transformers model of the gateway's own, in a process beside it; needs the extra `local`."""

    type: Literal["local"]
    """local"""
    model: Annotated[str, Field(min_length=1)]
    """Folder with the model: config.json, weights, tokenizer. Nothing is downloaded."""
    kind: Literal["sequence", "causal"]
    """sequence: a classifier, whose probability of `label` is the score. causal: a language model, asked for yes or no."""
    label: str | None = None
    """Of a sequence classifier, the label that means that the small pool is good enough; left out: the second of two."""
    deadline_ms: Annotated[int, Field(ge=1, le=60000)] = 300
    """Longest wait; then the next classifier is asked."""
    max_input_tokens: Annotated[int, Field(ge=64, le=32768)] = 512
    """The human's text is cut to about this length, beginning and end kept."""

    @model_validator(mode="after")
    def _label_fits(self) -> LocalClassifier:
        if self.kind == "causal" and self.label is not None:
            raise PydanticCustomError("label", "label is for kind: sequence; a causal model is asked for yes or no")
        return self


Classifier = Annotated[EmbeddedClassifier | ModelClassifier | LocalClassifier, Field(discriminator="type")]
