"""Gradients of rows beside those of a network's other parameters: pushed to the owners, and in one norm with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from drivetrain.engine.reduction import Reduction
from drivetrain.engine.step_result import Sums
from drivetrain.engine.tables.tables import Tables
from drivetrain.optim.network_optimizer import NetworkOptimizer


class WithRows:
    """A reduction (see `engine.reduction`) of networks with tables; `dense` is that of their other parameters."""

    in_backward = False

    def __init__(
        self,
        names: Sequence[str],
        dense: Reduction,
        tables: Tables,
        optimizers: Callable[[], Sequence[NetworkOptimizer]],
    ) -> None:
        """`optimizers` are asked for in each step: a `set` may replace them."""
        self.norms: Sequence[Tensor] = ()
        self._names = tuple(names)
        self._dense = dense
        self._tables = tables
        self._optimizers = optimizers

    def reset(self) -> None:
        """Before the first micro-batch."""
        self._dense.reset()

    def enter(self, lane: int, sums: Sums) -> None:
        """A micro-batch of this lane comes next."""
        self._dense.enter(lane, sums)

    def arm(self, sums: Sums) -> None:
        """Only one backward pass is left."""
        self._dense.arm(sums)

    def finish(self, sums: Sums) -> None:
        """Gradients and `sums` are those of all ranks, and `norms` those of whole networks: each row counts once, at
        its owner's."""
        self._dense.finish(sums)
        self._tables.push(self._names)
        group = self._tables.group
        optimizers = self._optimizers()
        of_rows = torch.stack([_square(optimizer.row_gradients) for optimizer in optimizers])
        if group.world > 1:
            dist.all_reduce(of_rows, group=group.main)
        of_parameters = torch.stack([_square(optimizer.parameter_gradients) for optimizer in optimizers])
        self.norms = list((of_parameters + of_rows).sqrt().unbind())


def _square(gradients: Sequence[Tensor]) -> Tensor:
    """The squared norm of gradients together, float64."""
    if not gradients:
        return torch.zeros((), dtype=torch.float64)
    return torch.stack(torch._foreach_norm(list(gradients), 2.0)).double().square().sum()
