"""Gradients summed over processes as GaLore's projections (arXiv 2403.03507): rank / m of the bytes of a matrix whose
shorter side is m.

A projection is linear, so the sum of the ranks' projections is the projection of their sum. A basis is made of the
whole gradient, which travels when one is due: where matrices take turns, one or a few of them now and then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from drivetrain.engine.reduce import BUCKET_BYTES, Reducer, chunks
from drivetrain.engine.step_result import Sums
from drivetrain.optim.network_optimizer import NetworkOptimizer


class ProjectedReducer(Reducer):
    """Sums of gradients, where those of GaLore's matrices are summed after the last backward pass, as they will be
    taken. Norms and clipping go by what is summed, on one process too, so that all numbers of processes agree."""

    def __init__(
        self, network_optimizers: Sequence[NetworkOptimizer], group: dist.ProcessGroup | None, limit: int = BUCKET_BYTES
    ) -> None:
        found = [network_optimizer.projecting for network_optimizer in network_optimizers]
        self._owners = [projecting for projecting in found if projecting is not None]
        self._matrices = {p: owner for owner in self._owners for p in owner.matrices}
        every = [p for network_optimizer in network_optimizers for p in network_optimizer.parameters]
        super().__init__([p for p in every if p not in self._matrices], group, limit)
        self._limit = limit

    def reset(self) -> None:
        """Before the first micro-batch: what a step that was not made has left is forgotten."""
        super().reset()
        for parameter in self._matrices:
            parameter.grad = None
        for owner in self._owners:
            owner.given.clear()

    def finish(self, sums: Sums) -> None:
        """Matrices come last, each either whole or `given` to its optimizer."""
        super().finish(sums)
        for parts in chunks(list(self._taken()), self._limit):
            flat = torch.cat([part.flatten() for part in parts])
            self._send(flat)
            self._wait()
            for part, summed in zip(parts, flat.split([part.numel() for part in parts]), strict=True):
                part.copy_(summed.view_as(part))

    def _taken(self) -> Iterator[Tensor]:
        """Of each matrix what its optimizer takes; zeros where no loss reached it."""
        for parameter, owner in self._matrices.items():
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            if owner.keeps_basis(parameter):
                parameter.grad = None
                gradient = owner.given[parameter] = owner.projection(parameter, gradient)
            else:
                parameter.grad = gradient
            yield gradient
