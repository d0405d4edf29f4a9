"""What a backend of tables has to be: one matrix of rows at work, and what a step has looked up of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch.distributed as dist
from torch import Tensor

from drivetrain.engine.tables.matrix import Matrix
from drivetrain.engine.tables.module import Ids
from drivetrain.optim.recipe.rows import RowOptimizer
from drivetrain.optim.rows import HalfRows, RowMover
from drivetrain.optim.schedules import Factor


class Planner(Protocol):
    """Makes plans of what micro-batches look up; it talks to nobody. A plan has a place for each of them, `micros`."""

    def plan(self, micros: Sequence[Ids]) -> Any:
        """The plan of a step of these micro-batches, of which there may be none. Raises Failure(65) for an id that is
        no row of its table."""
        ...


class Pulled(Protocol):
    """What a step has looked up, and what is handed back to it."""

    @property
    def plan(self) -> Any:
        """What was asked for."""
        ...

    @property
    def leaves(self) -> Sequence[Tensor]:
        """What backward passes hand gradients to."""
        ...

    def pooled(self, micro: Any) -> tuple[Tensor, ...]:
        """What a micro-batch's bags come to, [bags, dim] for each lookup."""
        ...

    def keep(self, loss: int) -> None:
        """What was handed back since the last call is the gradient of the loss of this number."""
        ...

    def take_gradient(self) -> Tensor:
        """What was handed back so far; it begins anew."""
        ...

    def close_lane(self) -> None:
        """What was handed back since the lane before joins the tree of lanes."""
        ...


class AtWork(Protocol):
    """One matrix at work. All ranks call `ask`, `pull` and `push` in the same order."""

    summed: bool
    """Whether gradients are those of rows, summed over all ranks, before rows move. Else they are those of bags."""

    mover: RowMover | None
    """What moves the rows that are here."""

    pulled: Any
    """What the step at work has looked up, a `Pulled`; None between steps."""

    masters: Tensor | None
    """What the masters of bf16 rows begin at, where that is not the rows as they are."""

    @property
    def matrix(self) -> Matrix:
        """The rows that are here, and whose they are."""
        ...

    @property
    def planner(self) -> Planner:
        """Plans what `ask` and `pull` take."""
        ...

    @property
    def claim(self) -> Mapping[str, Any]:
        """What bits depend on beside the number of ranks, as JSON data."""
        ...

    def ask(self, plan: Any, group: dist.ProcessGroup | None) -> Any:
        """Tell the owners what a plan asks for; what is wanted of this rank."""
        ...

    def pull(self, plan: Any, asked: Any, losses: int = 1) -> Pulled:
        """What a plan asks for, as rows are now, for the gradients of so many losses."""
        ...

    def stand_in(self, given: Ids) -> tuple[Pulled, Any]:
        """Numbers in place of what one batch looks up, and its place; gradients are for nothing."""
        ...

    def push(self, *, by_lane: bool) -> None:
        """Hand the mover what the step at work has come to."""
        ...

    def build_mover(self, optimizer: RowOptimizer, factor: Factor, half: HalfRows | None) -> RowMover:
        """What moves the rows that are here; `half` where they are bf16."""
        ...
