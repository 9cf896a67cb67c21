"""How the weights of the embedded classifier are learned from labelled prompts; needs the extra `train`.

`switchyard calibrate --train` learns a head from a user's own prompts with it, `tools/train_embedded` the shipped weights.

A prompt is labelled with whether a small and a big model answered it correctly. Three things are learned:

- two logistic regressions over words, pairs and surface numbers: P(only the big one is right), P(only the small one is right);
- a boosted ensemble of small regression trees over the surface numbers alone, for the difference big - small;
- a logistic curve from the sum of both estimates of the gain to p = P(not: only the big one is right), with a constant for
  each kind of text, fitted on sums that were predicted by models that had not seen the prompt.

Questions with answers to choose from are learned from twice, with and without the answers: people rarely ask with them.
"""

from __future__ import annotations

import gzip
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from msgspec.structs import replace
from scipy import sparse
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression

from switchyard.routing.classify.reading import CHOICES, SURFACE, Reading, text_size
from switchyard.routing.classify.scorer import LEAVES, Heads, Scorer, Tree, Weights

UNIT = 0.001
TEXT_SCALE = 3.0  # of words against surface numbers in the linear part; sets how strongly each is regularised
KINDS = 3
BROKEN = ("high_school_mathematics",)
"""Subjects whose labels are an artefact: the big model is marked right in 3 % of the cases, guessing gives 25 %."""


@dataclass(frozen=True, slots=True)
class Row:
    """A labelled prompt."""

    suite: str
    subject: str
    prompt: str
    small_ok: bool
    big_ok: bool


@dataclass(frozen=True)
class Settings:
    """Hyperparameters. Chosen by hand while looking at cross-validation with other folds than those that are reported."""

    min_prompts: int = 5  # with a word or pair, for it to be known
    inverse_penalty: float = 0.7
    surface_scale: float = 0.1
    linear_share: float = 0.5
    stem_weight: float = 0.3  # of a question without its answers; the whole one has the rest
    inner_folds: int = 5
    trees: dict[str, Any] = field(
        default_factory=lambda: {
            "max_iter": 100, "learning_rate": 0.06, "max_depth": 3, "min_samples_leaf": 40, "l2_regularization": 10.0,
            "max_features": 0.3, "early_stopping": False, "random_state": 0,
        }
    )  # fmt: skip


def read_rows(path: Path) -> list[Row]:
    """All labelled prompts of a file, in its order."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        made = (json.loads(line) for line in lines)
        return [Row(r["suite"], r["subject"], r["prompt"].strip(), r["small_ok"], r["big_ok"]) for r in made]


def stem_of(prompt: str) -> str:
    """A question without the answers to choose from; the same text where there are none."""
    at = prompt.find("\nA. ")
    return prompt[:at].strip() if at > 0 else prompt


def group_prompts(prompts: Sequence[str], shingle: int = 12, most: int = 10) -> list[int]:
    """A number for each prompt, the same for prompts that share a passage.

    Two share one when the same twelve words in a row stand in both, unless more than ten prompts have them: that is a form.
    """
    parent = list(range(len(prompts)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    seen: dict[int, list[int]] = defaultdict(list)
    first: dict[str, int] = {}
    for i, prompt in enumerate(prompts):
        parent[root(i)] = root(first.setdefault(prompt, i))
        words = prompt.lower().split()
        for shingled in {crc32(" ".join(words[k : k + shingle]).encode()) for k in range(len(words) - shingle + 1)}:
            seen[shingled].append(i)
    for members in seen.values():
        if 1 < len(members) <= most:
            for member in members[1:]:
                parent[root(member)] = root(members[0])
    return [root(i) for i in range(len(prompts))]


def folds_of(keys: Sequence[Any], count: int, seed: int) -> np.ndarray:
    """A fold for each entry, the same for equal keys; folds get about equally many keys."""
    distinct = sorted(set(keys))
    order = np.random.default_rng(seed).permutation(len(distinct))
    fold = {key: int(order[i]) % count for i, key in enumerate(distinct)}
    return np.array([fold[key] for key in keys])


@dataclass
class Examples:
    """Readings with labels and weights, as the learners take them.

    Attributes:
        readings: of prompts and of stems.
        whole: which are of a prompt, not of a stem.
        only_big: whether only the big model was right.
        only_small: whether only the small one was.
        weights: how much each counts.
        groups: those of the prompts.
    """

    readings: list[Reading]
    whole: np.ndarray
    only_big: np.ndarray
    only_small: np.ndarray
    weights: np.ndarray
    groups: np.ndarray

    def __post_init__(self) -> None:
        """Collect the surface numbers."""
        self.surface = np.array([r.surface for r in self.readings])
        self.kinds = np.array([r.kind for r in self.readings])

    def take(self, which: np.ndarray) -> Examples:
        """Some of them."""
        readings = [r for r, taken in zip(self.readings, which, strict=True) if taken]
        rest = (self.whole, self.only_big, self.only_small, self.weights, self.groups)
        return Examples(readings, *(of[which] for of in rest))


def make_examples(rows: Sequence[Row], groups: Sequence[int], settings: Settings) -> Examples:
    """Each prompt, and once more the stem of those with answers to choose from."""
    entries: list[tuple[Reading, Row, bool, float, int]] = []
    for row, group in zip(rows, groups, strict=True):
        reading, stem = Reading(row.prompt), stem_of(row.prompt)
        twice = reading.kind == CHOICES and stem != row.prompt and settings.stem_weight > 0
        entries.append((reading, row, True, 1 - settings.stem_weight if twice else 1.0, group))
        if twice:
            entries.append((Reading(stem), row, False, settings.stem_weight, group))
    readings, of, whole, weights, group_numbers = zip(*entries, strict=True)
    only_big = np.array([row.big_ok and not row.small_ok for row in of])
    only_small = np.array([row.small_ok and not row.big_ok for row in of])
    return Examples(list(readings), np.array(whole), only_big, only_small, np.array(weights), np.array(group_numbers))


@dataclass(frozen=True)
class Learned:
    """What came of learning.

    Attributes:
        weights: learned from all rows.
        unseen_p: of each row, the p that a model gives which had seen neither it nor one that shares a passage with it.
    """

    weights: Weights
    unseen_p: list[float]


def fit(rows: Sequence[Row], groups: Sequence[int], settings: Settings | None = None, about: Mapping[str, str] = {}) -> Weights:
    """Learn everything from these rows."""
    return learn(rows, groups, settings, about).weights


def learn(
    rows: Sequence[Row], groups: Sequence[int], settings: Settings | None = None, about: Mapping[str, str] = {}
) -> Learned:
    """The same, with what the rows would have got from models that had not seen them."""
    settings = settings or Settings()
    examples = make_examples(rows, groups, settings)
    unseen = np.zeros(len(examples.readings))
    fold = folds_of(examples.groups.tolist(), settings.inner_folds, seed=1)
    for k in range(settings.inner_folds):
        scorer = Scorer(_fit_gain(examples.take(fold != k), settings))
        for i in np.flatnonzero(fold == k):
            reading = examples.readings[i]
            unseen[i] = scorer.gain(reading, scorer.look_up(reading))
    columns = np.column_stack([*(examples.kinds == kind for kind in range(KINDS)), unseen])
    curve = LogisticRegression(C=1e6, fit_intercept=False, max_iter=1000)
    curve.fit(columns, ~examples.only_big, sample_weight=examples.weights)
    *constants, slope = curve.coef_[0].round(3).tolist()
    weights = replace(_fit_gain(examples, settings), about=dict(about), curve=constants, slope=slope)
    unseen_p = curve.predict_proba(columns)[examples.whole][:, 1]
    return Learned(weights, [float(p) for p in unseen_p])


def _fit_gain(examples: Examples, settings: Settings) -> Weights:
    """Both estimates of the gain; without the curve."""
    mean = np.average(examples.surface, 0, examples.weights)
    spread = np.sqrt(np.average((examples.surface - mean) ** 2, 0, examples.weights)) + 1e-9
    mean, spread = mean.round(6), spread.round(6) + 1e-6
    words = _known((r.unique for r in _whole(examples)), settings.min_prompts)
    pairs = _known((set(r.pairs) for r in _whole(examples)), settings.min_prompts)
    matrix = _linear_matrix(examples, words, pairs, (examples.surface - mean) / spread, settings)
    scale = np.array([*words.values(), *pairs.values()]) / TEXT_SCALE / UNIT
    heads = []
    for labels in (examples.only_big, examples.only_small):
        head = LogisticRegression(C=settings.inverse_penalty, max_iter=1000, tol=1e-3)
        head.fit(matrix, labels, sample_weight=examples.weights)
        weights = head.coef_[0]
        texts = np.clip(np.rint(weights[: len(scale)] * scale), -32_000, 32_000).astype(int).tolist()
        rest = weights[len(scale) :].reshape(KINDS, 1 + len(SURFACE)) * settings.surface_scale
        rest[:, 0] += head.intercept_[0]
        heads.append((texts, rest.round(5).tolist()))
    trees = HistGradientBoostingRegressor(**settings.trees)
    gain = examples.only_big.astype(float) - examples.only_small
    trees.fit(np.column_stack([examples.surface, examples.kinds]), gain, sample_weight=examples.weights)
    (big, big_rest), (small, small_rest) = heads
    n = len(words)
    return Weights(
        about={}, unit=UNIT, words=" ".join(words), word_scores=Heads(big[:n], small[:n]),
        pairs="\n".join(" ".join(pair) for pair in pairs), pair_scores=Heads(big[n:], small[n:]),
        mean=mean.tolist(), spread=spread.tolist(), only_big=big_rest, only_small=small_rest,
        trees=[_tree_of(predictors[0].nodes) for predictors in trees._predictors],
        tree_base=round(float(trees._baseline_prediction[0, 0]), 6),
        linear_share=settings.linear_share, curve=[0.0] * KINDS, slope=-1.0,
    )  # fmt: skip


def _whole(examples: Examples) -> Iterable[Reading]:
    return (r for r, whole in zip(examples.readings, examples.whole, strict=True) if whole)


def _known(found: Iterable[set[Any]], at_least: int) -> dict[Any, float]:
    """What stands in so many texts, in order, with how rare it is (inverse document frequency)."""
    counts: Counter[Any] = Counter()
    texts = 0
    for of_text in found:
        counts.update(of_text)
        texts += 1
    return {key: math.log((1 + texts) / (1 + n)) + 1 for key, n in sorted(counts.items()) if n >= at_least}


def _linear_matrix(
    examples: Examples, words: dict[str, float], pairs: dict[tuple[str, str], float], surface: np.ndarray, settings: Settings
) -> sparse.csr_matrix:
    """Columns: words, pairs; then for each kind of text a one and its surface numbers, zero for other kinds."""
    columns: dict[Any, int] = {key: i for i, key in enumerate((*words, *pairs))}
    starts, indices, values = [0], [], []
    for reading in examples.readings:
        here = Counter(columns[key] for key in (*reading.unique, *reading.pairs) if key in columns)
        scale = 1 / (TEXT_SCALE * math.sqrt(text_size(reading)))
        for column, times in sorted(here.items()):
            indices.append(column)
            values.append(scale * times)
        starts.append(len(indices))
    texts = sparse.csr_matrix((values, indices, starts), shape=(len(examples.readings), len(columns)))
    texts = texts @ sparse.diags_array(np.array([*words.values(), *pairs.values()]))
    with_one = np.column_stack([np.ones(len(surface)), surface.clip(-4, 4)]) * settings.surface_scale
    kinds = [sparse.csr_matrix(with_one * (examples.kinds == kind)[:, None]) for kind in range(KINDS)]
    return sparse.csr_matrix(sparse.hstack([texts, *kinds]))


def _tree_of(nodes: np.ndarray) -> Tree:
    """A tree of scikit-learn with its nodes numbered anew: inner ones from the root, leaves from left to right."""
    tree = Tree([], [], [], [], [])

    def add(at: int) -> int:
        node = nodes[at]
        if node["is_leaf"]:
            tree.leaves.append(round(float(node["value"]), 6))
            return -len(tree.leaves)
        here = len(tree.feature)
        tree.feature.append(int(node["feature_idx"]))
        tree.threshold.append(round(float(node["num_threshold"]), 6))
        tree.left.append(0)
        tree.right.append(0)
        tree.left[here] = add(int(node["left"]))
        tree.right[here] = add(int(node["right"]))
        return here

    add(0)
    if len(tree.leaves) > LEAVES:
        raise ValueError(f"a tree has {len(tree.leaves)} leaves; the classifier reads {LEAVES} at most")
    return tree
