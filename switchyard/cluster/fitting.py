"""Least squares for models that are linear in their parameters, and how well they predict a row they have not seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Terms = Mapping[str, float]
"""One row's factors by parameter: the modelled value is the sum of factor times parameter. A parameter that isn't named
has no part in the row."""

SINGULAR = 1e-9


class Undetermined(Exception):
    """The rows don't say what a parameter is; the message names it."""


@dataclass(frozen=True, slots=True)
class Check:
    """A measured row beside what a model makes of it.

    Attributes:
        measured: the measured value.
        fitted: the model's, with this row among those it was fitted to.
        predicted: the model's, fitted to all the others; None where only this row knows a parameter.
    """

    measured: float
    fitted: float
    predicted: float | None

    @property
    def error(self) -> float:
        """Of the fit, as a share of the measured value."""
        return self.fitted / self.measured - 1

    @property
    def left_out_error(self) -> float | None:
        """Of the prediction, as a share of the measured value."""
        return None if self.predicted is None else self.predicted / self.measured - 1


def fit(rows: Sequence[Terms], values: Sequence[float]) -> dict[str, float]:
    """The parameters with the smallest sum of squared *relative* errors.

    Raises:
        Undetermined: the rows are too few or too much alike.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    relative = [[row.get(name, 0.0) / value for name in names] for row, value in zip(rows, values, strict=True)]
    scales = [max(abs(row[i]) for row in relative) or 1.0 for i in range(len(names))]
    scaled = [[x / scale for x, scale in zip(row, scales, strict=True)] for row in relative]
    gram = [[sum(row[i] * row[j] for row in scaled) for j in range(len(names))] for i in range(len(names))]
    right = [sum(row[i] for row in scaled) for i in range(len(names))]
    solved = _solve(gram, right, names)
    return {name: x / scale for name, x, scale in zip(names, solved, scales, strict=True)}


def value_of(row: Terms, parameters: Mapping[str, float]) -> float:
    """What the model says about a row.

    Raises:
        Undetermined: a parameter of the row is not known.
    """
    unknown = [name for name in row if name not in parameters]
    if unknown:
        raise Undetermined(f"nothing measured says what {unknown[0]} is")
    return sum(factor * parameters[name] for name, factor in row.items())


def predict_left_out(rows: Sequence[Terms], values: Sequence[float]) -> list[float | None]:
    """Each row's value by a model that was fitted to all the other rows; None where those leave a parameter open."""
    predicted: list[float | None] = []
    for i, row in enumerate(rows):
        try:
            others = fit([*rows[:i], *rows[i + 1 :]], [*values[:i], *values[i + 1 :]])
            predicted.append(value_of(row, others))
        except Undetermined:
            predicted.append(None)
    return predicted


def _solve(matrix: Sequence[Sequence[float]], right: Sequence[float], names: Sequence[str]) -> list[float]:
    """Gauss-Jordan elimination with pivoting; few and well-scaled unknowns."""
    rows = [[*row, x] for row, x in zip(matrix, right, strict=True)]
    size = len(rows)
    for i in range(size):
        pivot = max(range(i, size), key=lambda r: abs(rows[r][i]))
        if abs(rows[pivot][i]) < SINGULAR:
            raise Undetermined(f"the rows don't determine {names[i]}")
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for r in range(size):
            if r != i:
                factor = rows[r][i] / rows[i][i]
                rows[r] = [x - factor * y for x, y in zip(rows[r], rows[i], strict=True)]
    return [rows[i][size] / rows[i][i] for i in range(size)]
