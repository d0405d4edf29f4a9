"""How a weight's gradient is projected, and how an update goes back: W (m, n) with a basis for one side or both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from drivetrain.optim.bases import Shape
from drivetrain.optim.parts import Part
from drivetrain.optim.products import add_product, matmul

Kind = Literal["std", "reverse_std", "left", "right", "full"]
"""Along the smaller side, the larger one, rows, columns, or both: as the recipe's `projection`."""
SIDES = ("left", "right")
"""What the bases are called in a state: (m, rank) and (n, rank), whole on every rank."""


@dataclass(frozen=True)
class Unprojected:
    """A parameter that moves as it is; this rank holds some of its rows, or all."""

    part: Part

    @property
    def shape(self) -> Shape:
        """The parameter's, on all ranks together."""
        return self.part.box.whole

    @property
    def moved(self) -> Shape:
        """The shape of what the base moves, on all ranks together."""
        return self.shape

    @property
    def by_rows(self) -> bool:
        """Whether ranks share the rows of what the base moves as they share the parameter's; else each has all of
        it."""
        return self.part.group is not None


@dataclass(frozen=True)
class Projection(Unprojected):
    """A weight (more dimensions than two are unfolded to rows of the first) with a basis of `rank` for its left side
    (rows), its right side (columns), or both."""

    rank: int
    left: bool
    right: bool

    @property
    def moved(self) -> Shape:
        """The projected gradient's: on a side with a basis there is the rank instead."""
        rows, columns = _matrix_shape(self.shape)
        if self.left:
            rows = self.rank
        if self.right:
            columns = self.rank
        return rows, columns

    @property
    def by_rows(self) -> bool:
        """Not with a left basis: L' G is a sum over all rows, and so the same on every rank."""
        return not self.left and super().by_rows

    @property
    def bases(self) -> dict[str, Shape]:
        """The shape of each basis."""
        rows, columns = _matrix_shape(self.shape)
        shapes: dict[str, Shape] = {}
        if self.left:
            shapes["left"] = rows, self.rank
        if self.right:
            shapes["right"] = columns, self.rank
        return shapes

    def project(self, gradient: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        """L' G, G R or L' G R (`moved`, but the rows of this rank where others own the rest) of the gradient's rows
        that are here, by the state's bases; of the type that products are computed in."""
        left, right = self._bases(state)
        projected = computed(gradient.flatten(1))
        if right is not None:
            projected = matmul(projected, right)
        if left is not None:
            # The right side first: what is summed over ranks is then as small as it can be.
            projected = self.part.sum(matmul(left.mT, projected))
        return projected

    def add_back(self, weights: Tensor, update: Tensor, state: Mapping[str, Tensor], keep: float, scale: float) -> None:
        """weights = keep * weights + scale * L U, U R' or L U R', in place: the rows that are here."""
        left, right = self._bases(state)
        first, second = _factors(left, right, computed(update))
        if weights.dtype == first.dtype and weights.ndim == 2:
            add_product(weights, first, second, keep, scale)
            return
        # The sum is rounded to the weights' type once, not the product and the sum each.
        flat = torch.addmm(computed(weights.flatten(1)), first, second, beta=keep, alpha=scale)
        weights.copy_(flat.view(weights.shape))

    def _bases(self, state: Mapping[str, Tensor]) -> tuple[Tensor | None, Tensor | None]:
        """The bases, the left one of this rank's rows only."""
        left = right = None
        if self.left:
            left = computed(state["left"][self.part.box.slices[0]])
        if self.right:
            right = computed(state["right"])
        return left, right


def projection_of(part: Part, kind: Kind, rank: int) -> Projection:
    """How a weight of two dimensions or more is projected; its rank is at most its shorter side."""
    rows, columns = _matrix_shape(part.box.whole)
    wide = rows < columns
    left = {"left": True, "right": False, "std": wide, "reverse_std": not wide, "full": True}[kind]
    # A rank above the shorter side would have directions that no gradient has.
    return Projection(part, min(rank, rows, columns), left, right=not left or kind == "full")


def computed(tensor: Tensor) -> Tensor:
    """In the type that products and factorisations are computed in: float32 at least."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _matrix_shape(shape: Shape) -> tuple[int, int]:
    """Rows and columns of a weight."""
    return shape[0], torch.Size(shape[1:]).numel()


def _factors(left: Tensor | None, right: Tensor | None, update: Tensor) -> tuple[Tensor, Tensor]:
    """Two matrices whose product is the update, projected back."""
    if right is None:
        assert left is not None
        return left, update
    if left is None:
        return update, right.mT
    return matmul(left, update), right.mT
