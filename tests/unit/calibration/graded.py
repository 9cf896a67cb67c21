"""Graded requests with known properties."""

import math
from random import Random

from switchyard.calibration.labels import Graded


def draw(count: int, scale: float = 1.0, bias: float = 0.0, seed: int = 1, by: str = "embedded") -> list[Graded]:
    """Scores p of which P(good) = sigmoid(scale * logit(p) + bias); the small model gains nothing where it isn't good."""
    random = Random(seed)
    rows = []
    for i in range(count):
        x = random.gauss(0.3, 1.3)
        good = random.random() < 1 / (1 + math.exp(-(scale * x + bias)))
        both = random.random() < 0.8
        rows.append(Graded(f"r{i}", good and both, both if good else True, 1 / (1 + math.exp(-x)), by))
    return rows


def row(p: float | None, small: bool, big: bool, by: str = "embedded") -> Graded:
    return Graded("r", small, big, p, by if p is not None else "")
