"""Optimizers of tables' rows: each step moves those that it has looked up, every one of them once.

Their state is one tensor a slot, with a line for each row of the matrix that is here. Like all that is looked up by
rows they work on copies of these lines, and put them back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from drivetrain.optim.lines import add_lines, lines_of, put_lines
from drivetrain.optim.recipe.rows import (
    AdagradRows,
    AdamRows,
    LambRows,
    LarsRows,
    RowOptimizer,
    RowwiseAdagradRows,
    SGDRows,
)
from drivetrain.optim.rounding import key_of, random_bits, rounded_by
from drivetrain.optim.schedules import Factor
from drivetrain.spec.registry import imported

S = TypeVar("S", bound=RowOptimizer)
MASTER = "master"
"""The slot of the fp32 numbers that bf16 rows are rounded from."""


@dataclass(frozen=True)
class Stretches:
    """Which rows of a matrix are of which table: from `at` on those of a table called `names`, from its row `first` on.
    All are given in the order in which they lie; `at` and `first` are int64."""

    names: tuple[str, ...]
    at: Tensor
    first: Tensor


@dataclass(frozen=True)
class HalfRows:
    """How rows that are bf16 are moved: by fp32 masters that last, or by copies; and rounded `by_chance`, a function of
    seed, step, table and place in the table, or (None) to the nearest."""

    lasting: bool
    seed: int
    by_chance: Stretches | None
    begun: Tensor | None = None
    """The masters, where they do not begin at the weights as they are."""

    def rounded(self, rows: Tensor, numbers: Tensor, at: tuple[int, int]) -> Tensor:
        """Numbers (float32 [n, dim]) of these rows of the matrix, int64 [n], as bf16; `at` are step and call."""
        if self.by_chance is None:
            return numbers.bfloat16()
        names, starts, first = self.by_chance.names, self.by_chance.at, self.by_chance.first
        # By the table's own row and name: where a row lies in the matrix follows from the number of processes, and must
        # decide no bit.
        stretch = torch.searchsorted(starts, rows, right=True) - 1
        place = (rows - starts[stretch] + first[stretch]).unsqueeze(1) * numbers.shape[1]
        keys = torch.tensor([key_of(self.seed, *at, name) for name in names], dtype=torch.int32)[stretch]
        bits = random_bits(place + torch.arange(numbers.shape[1]), (keys[:, :1], keys[:, 1:]))
        return rounded_by(numbers, bits)


class RowMover(Generic[S]):
    """Moves rows of one matrix, `weight` float32 or, by `half`, bf16 [rows here, dim]. State is float32.

    `rows` int64 [n], each there once, and `gradient` float32 [n, dim] are what the step at work has come to.
    """

    wide: tuple[str, ...] = ()
    """The slots with as many numbers as the weights."""
    narrow: tuple[str, ...] = ()
    """The slots with one number for each row."""

    def __init__(self, settings: S, weight: Tensor, factor: Factor, half: HalfRows | None = None) -> None:
        self.settings = settings
        self.weight = weight
        self.slots: dict[str, Tensor] = {}
        for name in self.wide:
            self.slots[name] = torch.full(weight.shape, self.initial)
        for name in self.narrow:
            self.slots[name] = torch.full((len(weight),), self.initial)
        if half and half.lasting:
            self.slots[MASTER] = weight.float() if half.begun is None else half.begun
        self.at: tuple[int, int] = 0, 0
        """The step, and which `minimize` of it, that the next move belongs to."""
        self.counts = True
        """Whether its gradient counts here, and not on another rank that has the same."""
        self._half = half
        self.name = ""
        """What its rates are recorded by: of the tables that move as these do, the first by name."""
        self.moves = torch.zeros(())
        """Steps that were made, the same on all ranks; a float, as torch's step counts."""
        self.rows: Tensor | None = None
        self.gradient: Tensor | None = None
        self.moved: Callable[[int], None] | None = None
        """What follows once the step's rows have moved, told the position at which the step ends."""
        self._factor = factor
        self._lr = 0.0
        self._position = 0

    @property
    def initial(self) -> float:
        """What the slots begin at."""
        return 0.0

    @property
    def lr(self) -> float:
        """The learning rate of the step at work."""
        return self._lr

    def advance(self, position: int, *, waits: bool) -> None:
        """Set the learning rate of the step that ends at this position (samples); zero while the network `waits`."""
        self._lr = 0.0 if waits else self.settings.lr * self._factor(position)
        self._position = position

    def retune(self, settings: S, factor: Factor) -> None:
        """Move by the rates of these from the next step on; they are of the same kind."""
        self.settings, self._factor = settings, factor

    def drop(self) -> None:
        """Forget the gradient."""
        self.rows = self.gradient = None

    @torch.no_grad()
    def move(self) -> None:
        """Move the rows by their gradient, which is gone then."""
        # Also where this rank has looked up nothing: a count by rank would be other state on another mesh.
        self.moves += 1
        rows, gradient = self.rows, self.gradient
        self.drop()
        if rows is not None and gradient is not None and len(rows):
            self._change(rows, gradient)
        if self.moved is not None:
            self.moved(self._position)

    def _change(self, rows: Tensor, gradient: Tensor) -> None:
        change = self.change(rows, gradient)
        if self._half is None:
            add_lines(self.weight, rows, change)
            return
        # The master's sum, and not the rounded weight's: else what rounding has taken would be lost in every step.
        moved = change.add_(self.own(rows))
        if MASTER in self.slots:
            put_lines(self.slots[MASTER], rows, moved)
        put_lines(self.weight, rows, self._half.rounded(rows, moved, self.at))

    def own(self, rows: Tensor) -> Tensor:
        """These rows as exactly as they are known, float32 [n, dim]."""
        known = self.slots.get(MASTER, self.weight)
        return lines_of(known, rows) if known.dtype == torch.float32 else known.index_select(0, rows).float()

    @torch.no_grad()
    def restart(self) -> None:
        """Let masters begin at the weights as they are now."""
        if MASTER in self.slots:
            self.slots[MASTER].copy_(self.weight)

    def change(self, rows: Tensor, gradient: Tensor) -> Tensor:
        """What is added to the rows, [n, dim]; the slots are moved. `gradient` may be overwritten."""
        raise NotImplementedError

    def _decayed(self, rows: Tensor, gradient: Tensor) -> Tensor:
        """The gradient of the loss and of weight_decay / 2 |w|^2."""
        if self.settings.weight_decay:
            gradient.add_(self.own(rows), alpha=self.settings.weight_decay)
        return gradient


class SGD(RowMover[SGDRows]):
    """See `SGDRows`."""

    def change(self, rows: Tensor, gradient: Tensor) -> Tensor:
        """-lr g."""
        return self._decayed(rows, gradient).mul_(-self._lr)


class Adagrad(RowMover[AdagradRows]):
    """See `AdagradRows`."""

    wide = ("sum",)

    @property
    def initial(self) -> float:
        """The settings'."""
        return self.settings.initial

    def change(self, rows: Tensor, gradient: Tensor) -> Tensor:
        """-lr g / (sqrt(sum) + eps)."""
        gradient = self._decayed(rows, gradient)
        total = lines_of(self.slots["sum"], rows).addcmul_(gradient, gradient)
        put_lines(self.slots["sum"], rows, total)
        return gradient.div_(total.sqrt_().add_(self.settings.eps)).mul_(-self._lr)


class RowwiseAdagrad(RowMover[RowwiseAdagradRows]):
    """See `RowwiseAdagradRows`."""

    narrow = ("sum",)

    @property
    def initial(self) -> float:
        """The settings'."""
        return self.settings.initial

    def change(self, rows: Tensor, gradient: Tensor) -> Tensor:
        """-lr g / (sqrt(sum) + eps), where the sum is the row's."""
        gradient = self._decayed(rows, gradient)
        square = torch.linalg.vector_norm(gradient, dim=1).square_()
        total = self.slots["sum"].index_select(0, rows).add_(square, alpha=1 / gradient.shape[1])
        self.slots["sum"].index_copy_(0, rows, total)
        return gradient.mul_((-self._lr / total.sqrt_().add_(self.settings.eps)).unsqueeze_(1))


class Adam(RowMover[AdamRows]):
    """See `AdamRows`."""

    wide = ("exp_avg", "exp_avg_sq")

    def change(self, rows: Tensor, gradient: Tensor) -> Tensor:
        """-lr (m / (sqrt(v) + eps) + weight_decay w), with the moments' bias corrected."""
        change = self._direction(rows, gradient)
        if self.settings.weight_decay:
            change.add_(self.own(rows), alpha=self.settings.weight_decay)
        return change.mul_(-self._lr)

    def _direction(self, rows: Tensor, gradient: Tensor) -> Tensor:
        (first, second), moves = self.settings.betas, int(self.moves)
        mean = lines_of(self.slots["exp_avg"], rows).lerp_(gradient, 1 - first)
        square = lines_of(self.slots["exp_avg_sq"], rows).mul_(second)
        square.addcmul_(gradient, gradient, value=1 - second)
        put_lines(self.slots["exp_avg"], rows, mean)
        put_lines(self.slots["exp_avg_sq"], rows, square)
        root = square.div_(1 - second**moves).sqrt_().add_(self.settings.eps)
        return mean.div_(1 - first**moves).div_(root)


class Lamb(Adam):
    """See `LambRows`."""

    settings: LambRows

    def change(self, rows: Tensor, gradient: Tensor) -> Tensor:
        """Adam's change of a row, times |w| / |change|; as it is where either is zero."""
        own = self.own(rows)
        change = self._direction(rows, gradient).add_(own, alpha=self.settings.weight_decay)
        return change.mul_((-self._lr * _ratio(_lengths(own), _lengths(change))).unsqueeze_(1))


class Lars(RowMover[LarsRows]):
    """See `LarsRows`."""

    wide = ("momentum",)

    def change(self, rows: Tensor, gradient: Tensor) -> Tensor:
        """-(momentum m + rate (g + weight_decay w)), where rate = lr trust |w| / (|g| + weight_decay |w| + eps)."""
        settings, own = self.settings, self.own(rows)
        length = _lengths(own)
        divisor = _lengths(gradient).add_(length, alpha=settings.weight_decay).add_(settings.eps)
        rate = _ratio(settings.trust * length, divisor).mul_(self._lr)
        moved = gradient.add_(own, alpha=settings.weight_decay).mul_(rate.unsqueeze(1))
        momentum = lines_of(self.slots["momentum"], rows).mul_(settings.momentum).add_(moved)
        put_lines(self.slots["momentum"], rows, momentum)
        return momentum.neg_()


def _lengths(rows: Tensor) -> Tensor:
    return torch.linalg.vector_norm(rows, dim=1)


def _ratio(length: Tensor, other: Tensor) -> Tensor:
    """length / other; 1 where either is zero."""
    return torch.where((length > 0) & (other > 0), length / other, torch.ones_like(length))


def build_mover(settings: RowOptimizer, weight: Tensor, factor: Factor, half: HalfRows | None = None) -> RowMover:
    """What moves the rows of a matrix as these settings say; `half` where they are bf16."""
    return imported(settings.factory)(settings, weight, factor, half)


def gradients_of(movers: Sequence[RowMover], *, counted: bool = False) -> list[Tensor]:
    """What the step at work has come to: of the rows here that it has looked up, [rows, dim] for each matrix; all, or
    those that are `counted` here."""
    return [mover.gradient for mover in movers if mover.gradient is not None and (mover.counts or not counted)]
