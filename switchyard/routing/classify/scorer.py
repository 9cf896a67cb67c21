"""What was learned, and how a reading becomes p: the weights' file and the arithmetic on it.

Two estimates of what the big pool would gain are added: a linear one over words, pairs and surface numbers, and small
trees over the numbers. A logistic curve makes p of the sum.
"""

from __future__ import annotations

from bisect import bisect_left
from hashlib import sha256
from itertools import repeat
from math import exp, sqrt
from operator import getitem, mul
from pathlib import Path
from typing import Literal

import msgspec

from switchyard.routing.classify.reading import CHOICES, SURFACE, Reading, text_size

WEIGHTS = Path(__file__).parent / "weights" / "embedded.json"
LEAVES = 8  # of a tree at most: what is left of it is one byte

_SURE_RANGE = (0.02, 0.98)
_FIELD = 32  # bits for each of the three sums that travel in one integer
_LOW_BITS = (1 << _FIELD) - 1
_BIAS = 1 << 15
_LOWEST_BIT = bytes((c & -c).bit_length() - 1 if c else 0 for c in range(256))
_ZEROS = repeat(0)


class Heads(msgspec.Struct, frozen=True, gc=False):
    """Scores of words or pairs for each of the two heads, in units of `Weights.unit`, in the order of the words."""

    only_big: list[int]
    only_small: list[int]


class Tree(msgspec.Struct, frozen=True, gc=False):
    """A regression tree. Nodes are numbered from the root; a negative child -1-n is leaf n, leaves go from left to right."""

    feature: list[int]
    threshold: list[float]
    left: list[int]
    right: list[int]
    leaves: list[float]


class Weights(msgspec.Struct, frozen=True, gc=False):
    """The file. It holds numbers about words, no text that was learned from.

    Attributes:
        about: version, data, licences and how it was made.
        unit: what an integer score counts in.
        words: known words, parted by spaces.
        word_scores: their scores.
        pairs: known pairs, parted by line breaks.
        pair_scores: their scores.
        mean: of each surface number.
        spread: standard deviation of each.
        only_big: for each kind of text a constant and a weight for each surface number.
        only_small: the same of the other head.
        trees: they read the surface numbers and the kind of text.
        tree_base: what the trees' sum is added to.
        linear_share: how much the linear estimate counts beside the trees.
        curve: of the logistic curve from gain to p, the constant for each kind of text.
        slope: its slope.
        scope: what it may speak about: questions like those that the shipped weights were learned from, or any text, since
            it was learned from the `own` traffic of whoever uses it.
    """

    about: dict[str, str]
    unit: float
    words: str
    word_scores: Heads
    pairs: str
    pair_scores: Heads
    mean: list[float]
    spread: list[float]
    only_big: list[list[float]]
    only_small: list[list[float]]
    trees: list[Tree]
    tree_base: float
    linear_share: float
    curve: list[float]
    slope: float
    scope: Literal["questions", "own"] = "questions"


class BadWeights(ValueError):
    """A file that holds no usable weights; the message says why."""


def read_weights(path: Path = WEIGHTS) -> Weights:
    """The weights in a file; those that come with the package unless another is named."""
    return _decode(path.read_bytes())


def _decode(raw: bytes) -> Weights:
    return msgspec.json.decode(raw, type=Weights)


def encode_weights(weights: Weights) -> bytes:
    """The file: one line for each field, so that the head can be read and a difference be seen; defaults are left out."""
    defaults = {field.name: field.default for field in msgspec.structs.fields(Weights)}
    values = ((name, getattr(weights, name)) for name in weights.__struct_fields__)
    lines = (b'"%b": %b' % (n.encode(), msgspec.json.encode(v)) for n, v in values if v != defaults[n])
    return b"{\n" + b",\n".join(lines) + b"\n}\n"


def digest_weights(path: str | None) -> str:
    """SHA-256 of an embedded head's file, None for the shipped one; a word where it can't be read."""
    try:
        return sha256((WEIGHTS if path is None else Path(path)).read_bytes()).hexdigest()
    except OSError:
        return "unreadable"


def load_scorer(path: str | None, known: Scorer | None = None) -> Scorer:
    """A file's weights, ready and tried; the shipped ones for None. Takes some 20 ms.

    Args:
        path: of the file.
        known: made from it before; it is given back while the file is the same.

    Raises:
        BadWeights: it can't be read, or holds something else.
    """
    try:
        raw = (WEIGHTS if path is None else Path(path)).read_bytes()
    except OSError as error:
        raise BadWeights(f"{path} can't be read: {error.strerror}") from None
    digest = sha256(raw).hexdigest()
    if known is not None and known.digest == digest:
        return known
    try:
        weights = _decode(raw)
        _check(weights)
        scorer = Scorer(weights, digest)
        reading = Reading("What is it?")
        if not 0 <= scorer.p(reading, scorer.look_up(reading)) <= 1:
            raise ValueError("it gives no probabilities")
    except (ArithmeticError, IndexError, RecursionError, ValueError, msgspec.MsgspecError) as error:
        why = str(error).partition("\n")[0]
        raise BadWeights(f"{path} holds no weights as `switchyard calibrate --train` writes them: {why}") from None
    return scorer


def _check(weights: Weights) -> None:
    """Refuse what would fail, or mislead, only when a text comes by.

    Raises:
        ValueError: sizes that don't belong together, scores that don't fit their field, trees that are none.
    """
    kinds = CHOICES + 1
    rows = [*weights.only_big, *weights.only_small]
    sizes = [len(weights.only_big), len(weights.only_small), len(weights.curve)]
    if sizes != [kinds] * 3 or any(len(row) != 1 + len(SURFACE) for row in rows):
        raise ValueError("the linear part has another size")
    if len(weights.mean) != len(SURFACE) or len(weights.spread) != len(SURFACE) or not all(s > 0 for s in weights.spread):
        raise ValueError("mean and spread of the surface numbers have another size, or no spread")
    heads = (weights.word_scores, weights.pair_scores)
    if any(not -_BIAS <= score < _BIAS for head in heads for of in (head.only_big, head.only_small) for score in of):
        raise ValueError("a score doesn't fit its field")
    for tree in weights.trees:
        inner = len(tree.feature)
        if not 1 <= len(tree.leaves) <= LEAVES or {len(tree.threshold), len(tree.left), len(tree.right)} != {inner}:
            raise ValueError("a tree has too many leaves, or parts that don't belong together")
        if any(not 0 <= feature <= len(SURFACE) for feature in tree.feature):
            raise ValueError("a tree reads a number that there isn't")
        if any(not at < child < inner for at in range(inner) for child in (tree.left[at], tree.right[at]) if child >= 0):
            raise ValueError("a tree's nodes are not numbered from the root")
        if _leaves_under(tree, 0 if inner else -1) != list(range(len(tree.leaves))):
            raise ValueError("a tree's leaves are not numbered from left to right")


class Scorer:
    """Weights, made ready for reading texts.

    The score of a word is one integer with three fields: one that counts, and one for each head. So one `sum` over a
    text's words gives all three, without a loop in Python.

    The trees are asked all at once. For each surface number, the thresholds below a value tell which leaves can't be
    reached any more: a number with eight bits a tree, made beforehand for each interval. What all of them leave over is
    one byte a tree, and its lowest bit is the leaf.

    Args:
        weights: what was learned.
        digest: SHA-256 of the file that they stand in; empty when it doesn't matter.
    """

    def __init__(self, weights: Weights, digest: str = "") -> None:
        self.weights = weights
        self.digest = digest
        self._words = dict(zip(weights.words.split(" "), _packed(weights.word_scores), strict=True))
        pairs = ((a, b) for a, b in (pair.split(" ") for pair in weights.pairs.split("\n") if pair))
        self._pairs = dict(zip(pairs, _packed(weights.pair_scores), strict=True))
        bounds = [(m - 4 * s, m + 4 * s) for m, s in zip(weights.mean, weights.spread, strict=True)]
        self._low, self._high = [low for low, _ in bounds], [high for _, high in bounds]
        self._only_big = [_unscaled(row, weights) for row in weights.only_big]
        self._only_small = [_unscaled(row, weights) for row in weights.only_small]
        self._thresholds, self._left_over = _intervals(weights.trees, len(SURFACE) + 1)
        self._leaves = [tree.leaves for tree in weights.trees]
        self._all = (1 << 8 * len(weights.trees)) - 1

    def look_up(self, reading: Reading) -> tuple[int, int]:
        """Packed sums over a text's different words and over its pairs."""
        words = sum(map(self._words.get, reading.unique, _ZEROS))
        return words, sum(map(self._pairs.get, reading.pairs, _ZEROS))

    def gain(self, reading: Reading, sums: tuple[int, int]) -> float:
        """How much more often the big model would be right, on the scale of the training; for ranking."""
        return self._tree_gain(reading) + self.weights.linear_share * self._linear_gain(reading, sums)

    def p(self, reading: Reading, sums: tuple[int, int]) -> float:
        """Probability that the small pool's answer is as good, 0.02..0.98."""
        p = _logistic(self.weights.curve[reading.kind] + self.weights.slope * self.gain(reading, sums))
        return min(_SURE_RANGE[1], max(_SURE_RANGE[0], p))

    def _linear_gain(self, reading: Reading, sums: tuple[int, int]) -> float:
        """P(only the big one is right) - P(only the small one is right)."""
        total = sums[0] + sums[1]
        shift = (total >> 2 * _FIELD) * _BIAS
        scale = self.weights.unit / sqrt(text_size(reading))
        surface = list(map(min, self._high, map(max, self._low, reading.surface)))
        constant, slopes = self._only_big[reading.kind]
        big = constant + sum(map(mul, slopes, surface)) + scale * ((total >> _FIELD & _LOW_BITS) - shift)
        constant, slopes = self._only_small[reading.kind]
        small = constant + sum(map(mul, slopes, surface)) + scale * ((total & _LOW_BITS) - shift)
        return _logistic(big) - _logistic(small)

    def _tree_gain(self, reading: Reading) -> float:
        left = self._all
        values = (*reading.surface, reading.kind)
        for thresholds, left_over, value in zip(self._thresholds, self._left_over, values, strict=True):
            left &= left_over[bisect_left(thresholds, value)]
        leaves = left.to_bytes(len(self._leaves), "little").translate(_LOWEST_BIT)
        return self.weights.tree_base + sum(map(getitem, self._leaves, leaves))


def _packed(scores: Heads) -> list[int]:
    return [
        1 << 2 * _FIELD | big + _BIAS << _FIELD | small + _BIAS
        for big, small in zip(scores.only_big, scores.only_small, strict=True)
    ]


def _unscaled(row: list[float], weights: Weights) -> tuple[float, list[float]]:
    """The same linear function for numbers as they are read, without mean and spread: constant and slopes."""
    slopes = [w / s for w, s in zip(row[1:], weights.spread, strict=True)]
    return row[0] - sum(map(mul, slopes, weights.mean)), slopes


def _intervals(trees: list[Tree], features: int) -> tuple[list[list[float]], list[list[int]]]:
    """For each feature its thresholds, and for each interval between them the leaves that can still be reached."""
    everything = (1 << 8 * len(trees)) - 1
    lost: list[dict[float, int]] = [{} for _ in range(features)]
    for n, tree in enumerate(trees):
        for feature, threshold, left in zip(tree.feature, tree.threshold, tree.left, strict=True):
            bits = sum(1 << 8 * n + leaf for leaf in _leaves_under(tree, left))
            lost[feature][threshold] = lost[feature].get(threshold, 0) | bits
    thresholds = [sorted(of) for of in lost]
    left_over = []
    for feature, of in enumerate(lost):
        masks = [everything]
        for threshold in thresholds[feature]:
            masks.append(masks[-1] & ~of[threshold])
        left_over.append(masks)
    return thresholds, left_over


def _leaves_under(tree: Tree, node: int) -> list[int]:
    if node < 0:
        return [-1 - node]
    return _leaves_under(tree, tree.left[node]) + _leaves_under(tree, tree.right[node])


def known_shares(reading: Reading, sums: tuple[int, int]) -> tuple[float, float]:
    """Shares of a text's different words and of its pairs that were learned from; 1 for no pairs."""
    words, pairs = (total >> 2 * _FIELD for total in sums)
    return words / (len(reading.unique) or 1), pairs / (len(reading.paired) - 1) if len(reading.paired) > 1 else 1.0


def _logistic(x: float) -> float:
    return 1 / (1 + exp(-x)) if x > -700 else 0.0
