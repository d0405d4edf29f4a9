"""The gradients of several losses, kept apart until they are those of all ranks; then a rule says what each weighs.

There is one forward pass, and a backward pass for each loss over its graph. What comes of them is summed over ranks
once: the reduction is told of a parameter of each loss for each one that trains, and owners of rows get those of all
losses beside each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, combinations_with_replacement
from typing import Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from drivetrain.engine.reduce import gradient_type
from drivetrain.engine.tables.squares import MAGNITUDES, products_of, sum_of
from drivetrain.engine.tables.tables import Tables
from drivetrain.optim.rows import RowMover, gradients_of


class LossWeights(Protocol):
    """A rule that weighs losses by their gradients: hashable, and an equal one in each step."""

    @property
    def losses(self) -> tuple[str, ...]:
        """The names of the losses, which are those that the loss function gives."""
        ...

    def of(self, gram: np.ndarray) -> Sequence[float]:
        """The weights of this step; `gram`, float64 [losses, losses], are the products of each two gradients over all
        parameters and rows of all ranks, NaN where a gradient is not finite. Loss scaling multiplies all of it."""
        ...


class GradientsByLoss:
    """Those of some parameters, and of the rows that a step has pulled."""

    def __init__(self, parameters: Sequence[nn.Parameter], rule: LossWeights) -> None:
        self.losses = rule.losses
        self._rule = rule
        self._parameters = parameters
        self._apart: list[list[nn.Parameter]] = []
        for _ in rule.losses:
            self._apart.append([_beside(parameter) for parameter in parameters])

    @property
    def parameters(self) -> list[nn.Parameter]:
        """What is to be summed over ranks: parameters of the same memory, whose gradients are those of the first loss,
        then those of the next one."""
        return list(chain.from_iterable(self._apart))

    @contextmanager
    def keeping(self, loss: int, tables: Tables | None) -> Iterator[None]:
        """While entered, backward passes add to the gradients of the loss of this number."""
        own = self._apart[loss]
        for parameter, kept in zip(self._parameters, own, strict=True):
            parameter.grad = kept.grad
        yield
        for parameter, kept in zip(self._parameters, own, strict=True):
            kept.grad, parameter.grad = parameter.grad, None
        if tables:
            for pulled in tables.pulled:
                pulled.keep(loss)

    @torch.no_grad()
    def combine(self, movers: Sequence[RowMover], tables: Tables | None) -> dict[str, float]:
        """Weigh the sums of all ranks, and let parameters and rows have one gradient; the weights, by loss. Every rank
        calls it, and comes to the same bits."""
        moved = [mover for mover in movers if mover.gradient is not None]
        of_rows = [gradient.chunk(len(self.losses), dim=1) for gradient in gradients_of(movers)]
        of_parameters = [tuple(map(_gradient, own)) for own in zip(*self._apart, strict=True)]
        counted = [gradient.chunk(len(self.losses), dim=1) for gradient in gradients_of(movers, counted=True)]
        weights = self._rule.of(self._gram(of_parameters, counted, tables))
        for parameter, each in zip(self._parameters, of_parameters, strict=True):
            parameter.grad = _weighed(each, weights)
        for mover, each in zip(moved, of_rows, strict=True):
            mover.gradient = _weighed(each, weights)
        return dict(zip(self.losses, weights, strict=True))

    def _gram(
        self, of_parameters: Sequence[Sequence[Tensor]], of_rows: Sequence[Sequence[Tensor]], tables: Tables | None
    ) -> np.ndarray:
        """The products of losses' gradients, each given by loss."""
        pairs = list(combinations_with_replacement(range(len(self.losses)), 2))
        products = []
        rows = torch.zeros(len(pairs), MAGNITUDES, dtype=torch.int64)
        for place, (one, other) in enumerate(pairs):
            dots = [torch.dot(each[one].flatten(), each[other].flatten()) for each in of_parameters]
            products.append(torch.stack(dots).sum() if dots else torch.zeros(()))
            rows[place] = products_of([(each[one], each[other]) for each in of_rows])
        if tables and tables.group.world > 1:
            dist.all_reduce(rows, group=tables.group.main)
        gram = np.empty((len(self.losses), len(self.losses)))
        # The numbers wait for an accelerator here: a weight has to be known before anything moves.
        for (one, other), product, own in zip(pairs, torch.stack(products).tolist(), rows, strict=True):
            gram[one, other] = gram[other, one] = product + sum_of(own)
        return gram


def _beside(parameter: nn.Parameter) -> nn.Parameter:
    """A parameter of the same memory, with a gradient of its own."""
    found = nn.Parameter(parameter.detach())
    if gradient_type(parameter) != parameter.dtype:
        found.grad_dtype = gradient_type(parameter)
    return found


def _gradient(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:  # the loss does not reach it
        return torch.zeros_like(parameter, dtype=gradient_type(parameter))
    return parameter.grad


def _weighed(gradients: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Their weighted sum. Each product is rounded before it is added: fused, it could differ at a buffer's end."""
    total = gradients[0] * weights[0]
    for gradient, weight in zip(gradients[1:], weights[1:], strict=True):
        total += gradient * weight
    return total


def require_names(found: Mapping[str, object], wanted: Sequence[str]) -> str | None:
    """What is wrong with the names of losses; None where they are those that are weighed."""
    if set(found) == set(wanted):
        return None
    return f"the task's losses are {', '.join(found)}, and those that are weighed {', '.join(wanted)}"
