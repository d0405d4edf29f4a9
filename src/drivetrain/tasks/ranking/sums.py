"""Sums of numbers without rounding: they have the same bits in whatever order and parts the numbers come."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

_UNIT = 1126
"""Sums are whole multiples of 2 ** -1126: of every float64, whose mantissas are whole multiples of 2 ** -53 times
2 ** exponent, with exponents from -1073 on."""
_HALF = 26  # bits: a sum of 2 ** 36 of such halves is an int64


class ExactSums:
    """Several sums side by side, each a whole number of units; `odd` are what is not finite of each."""

    def __init__(self, count: int) -> None:
        self._sums = [0] * count
        self._odd = [0.0] * count

    def add(self, *columns: np.ndarray) -> None:
        """Add numbers, float64 [numbers], to each sum."""
        for place, column in enumerate(columns):
            finite = np.isfinite(column)
            if not finite.all():
                self._odd[place] += float(column[~finite].sum())
                column = column[finite]
            self._sums[place] += _units(column)

    def state(self) -> list[float]:
        """The sums, and what is not finite."""
        return [*self._sums, *self._odd]

    def merge(self, state: Sequence[float]) -> None:
        """Add another lane's."""
        count = len(self._sums)
        self._sums = [own + int(other) for own, other in zip(self._sums, state[:count], strict=True)]
        self._odd = [own + other for own, other in zip(self._odd, state[count:], strict=True)]

    def ratio(self, place: int, other: int) -> float:
        """One sum divided by another, rounded once; NaN where that is zero."""
        if self._odd[place] or self._odd[other]:  # NaN is true, too
            return (self._odd[place] or 1.0) / (self._odd[other] or 1.0)
        return self._sums[place] / self._sums[other] if self._sums[other] else math.nan


def _units(numbers: np.ndarray) -> int:
    """The sum of finite float64s, in units."""
    mantissas, exponents = np.frexp(numbers)
    whole = np.ldexp(mantissas, 53).astype(np.int64)
    total = 0
    for exponent in np.unique(exponents).tolist():
        part = whole[exponents == exponent]
        halves = (int((part >> _HALF).sum()) << _HALF) + int((part & ((1 << _HALF) - 1)).sum())
        total += halves << (exponent - 53 + _UNIT)
    return total
