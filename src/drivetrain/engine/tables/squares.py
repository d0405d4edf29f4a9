"""The sum of squares of rows, the same bits in whatever order and on whichever ranks they lie.

Sums of floating-point numbers depend on their order, and the order in which rows lie is who holds them. So the square
of each row's length becomes a whole number of at least 23 bits, in the unit of its magnitude, and whole numbers are
added up by magnitude, which is exact. (The long accumulator of Kulisch 1971, in words that overlap.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

MAGNITUDES = 256
"""One for every eight exponents of float64. The last one is that of what is no finite number."""
_FRACTION = 52  # bits of a float64 after its leading one
_KEPT = 23  # bits of a number that stay, and up to seven more
_UNIT = -1023 - _KEPT
"""The exponent of the smallest magnitude's unit."""


def magnitudes_of(gradients: Sequence[Tensor]) -> Tensor:
    """The squared lengths of all rows together, by magnitude: int64 [MAGNITUDES].

    `gradients` are float32 [rows, dim]. What several ranks have may be added up; it is exact for up to 2^32 rows.
    """
    total = torch.zeros(MAGNITUDES, dtype=torch.int64)
    for rows in gradients:
        total += _by_magnitude(torch.linalg.vector_norm(rows, dim=1).double().square_())
    return total


def products_of(gradients: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """The products of two gradients of all rows together, by magnitude as above; each pair is float32 [rows, dim]."""
    total = torch.zeros(MAGNITUDES, dtype=torch.int64)
    for one, other in gradients:
        products = (one.double() * other.double()).sum(1)
        total += _by_magnitude(products.clamp(min=0.0)) - _by_magnitude(products.clamp(max=0.0))
    return total


def _by_magnitude(numbers: Tensor) -> Tensor:
    """The sum of float64 numbers without their signs, by magnitude."""
    bits = numbers.abs().view(torch.int64)  # without the sign that a zero, or what is no number, may have
    exponent = bits >> _FRACTION
    number = (bits & ((1 << _FRACTION) - 1)) + (1 << _FRACTION)
    number >>= (_FRACTION - _KEPT) - (exponent & 7)
    return torch.zeros(MAGNITUDES, dtype=torch.int64).index_add_(0, exponent >> 3, number)


def sum_of(magnitudes: Tensor) -> float:
    """What they come to; NaN where some row's length is not finite. Within 2^-23 of the sum."""
    *finite, beyond = magnitudes.tolist()
    if beyond:
        return math.nan
    return math.fsum(math.ldexp(number, 8 * place + _UNIT) for place, number in enumerate(finite) if number)
