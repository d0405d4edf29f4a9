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
from drivetrain.optim.rows import gradients_of


class WithRows:
    """A reduction (see `engine.reduction`) of networks with tables; `dense` is that of their other parameters."""

    in_backward = False

    def __init__(
        self,
        names: Sequence[str],
        dense: Reduction,
        tables: Tables,
        optimizers: Callable[[], Sequence[NetworkOptimizer]],
        lanes: range | None = None,
    ) -> None:
        """`optimizers` are asked for in each step: a `set` may replace them. `lanes` are this rank's, where gradients
        are summed as a tree of lanes."""
        self._names = tuple(names)
        self._dense = dense
        self._tables = tables
        self._optimizers = optimizers
        self._lanes = lanes
        self._lane = 0

    def reset(self) -> None:
        """Before the first micro-batch."""
        self._dense.reset()
        self._lane = self._lanes.start if self._lanes else 0

    def enter(self, lane: int, sums: Sums) -> None:
        """A micro-batch of this lane comes next."""
        self._dense.enter(lane, sums)
        self._close_lanes(lane)

    def arm(self, sums: Sums) -> None:
        """Only one backward pass is left."""
        self._dense.arm(sums)

    def finish(self, sums: Sums) -> None:
        """Gradients and `sums` are those of all ranks."""
        self._dense.finish(sums)
        if self._lanes:
            self._close_lanes(self._lanes.stop)
        self._tables.push(self._names, by_lane=self._lanes is not None)

    def measure(self) -> Sequence[Tensor]:
        """The norms of whole networks: each row counts once, at its owner's."""
        of_dense = list(self._dense.measure())
        group, optimizers = self._tables.group, self._optimizers()
        of_rows = [gradients_of(optimizer.rows, counted=True) for optimizer in optimizers]
        magnitudes = torch.stack([magnitudes_of(gradients) for gradients in of_rows])
        if group.world > 1:
            dist.all_reduce(magnitudes, group=group.main)
        if not of_dense:
            for optimizer in optimizers:
                gradients, rows = optimizer.gradients, gradients_of(optimizer.rows)
                of_dense.append(gradient_norm(gradients[: len(gradients) - len(rows)], magnitudes.device))
        norms = []
        for norm, squares in zip(of_dense, magnitudes, strict=True):
            norms.append((norm.double().square() + sum_of(squares)).sqrt())
        return norms

    def _close_lanes(self, lane: int) -> None:
        """The lanes before this one are through, with samples or without."""
        while self._lanes and self._lane < lane:
            self._tables.close_lane()
            self._lane += 1
