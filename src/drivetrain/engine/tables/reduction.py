"""Gradients of rows beside those of a network's other parameters: pushed to the owners, and in one norm with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from drivetrain.engine.reduction import Reduction
from drivetrain.engine.step_result import Sums
from drivetrain.engine.tables.squares import magnitudes_of, sum_of
from drivetrain.engine.tables.tables import Tables
from drivetrain.engine.vote import gradient_norm
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
        group, optimizers = self._tables.group, self._optimizers()
        magnitudes = torch.stack([magnitudes_of(optimizer.row_gradients) for optimizer in optimizers])
        if group.world > 1:
            dist.all_reduce(magnitudes, group=group.main)
        norms = []
        for optimizer, of_rows in zip(optimizers, magnitudes, strict=True):
            of_parameters = gradient_norm(optimizer.parameter_gradients, sums.device).double().square()
            norms.append((of_parameters + sum_of(of_rows)).sqrt())
        self.norms = norms
