"""Gradients summed over processes as GaLore's projections (arXiv 2403.03507): rank / m of the bytes of a matrix whose
shorter side is m.

A projection is linear, so the sum of the ranks' projections is the projection of their sum. A basis is made of the
whole gradient, which travels when one is due: where matrices take turns, one or a few of them now and then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from drivetrain.engine.reduce import BUCKET_BYTES, Reducer, chunks
from drivetrain.engine.step_result import Sums
from drivetrain.optim.network_optimizer import NetworkOptimizer
from drivetrain.optim.projecting import Projecting


class ProjectedReducer(Reducer):
    """Sums of gradients, where those of GaLore's matrices are summed after the last backward pass, as they will be
    taken. Norms and clipping go by what is summed, on one process too, so that all numbers of processes agree."""

    def __init__(
        self, network_optimizers: Sequence[NetworkOptimizer], group: dist.ProcessGroup | None, limit: int = BUCKET_BYTES
    ) -> None:
        self._owners: list[Projecting] = []
        self._matrices: dict[nn.Parameter, Projecting] = {}
        others: list[nn.Parameter] = []
        for network_optimizer in network_optimizers:
            owner = network_optimizer.projecting
            if owner is not None:
                self._owners.append(owner)
                self._matrices.update(dict.fromkeys(owner.matrices, owner))
        for network_optimizer in network_optimizers:
            others += [p for p in network_optimizer.parameters if p not in self._matrices]
        super().__init__(others, group, limit)
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
        # Which matrices travel whole follows from optimizer state, which is equal on all ranks: so are the messages.
        for parts in chunks(list(self._taken()), self._limit):
            flat = torch.cat([part.flatten() for part in parts])
            self._send(flat)
            self._wait()
            places = flat.split([part.numel() for part in parts])
            for part, summed in zip(parts, places, strict=True):
                part.copy_(summed.view_as(part))

    def _taken(self) -> Iterator[Tensor]:
        """Of each matrix what its optimizer takes; zeros where no loss reached it."""
        for parameter, owner in self._matrices.items():
            gradient = parameter.grad
            if gradient is None:
                gradient = torch.zeros_like(parameter)
            if owner.keeps_basis(parameter):
                parameter.grad = None
                gradient = owner.given[parameter] = owner.projection(parameter, gradient)
            else:
                parameter.grad = gradient
            yield gradient
