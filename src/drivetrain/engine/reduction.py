"""What a step asks of whatever sums gradients over ranks, and the way of a process that has nobody to sum with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor, nn

from drivetrain.engine.step_result import Sums


class Reduction(Protocol):
    """Gradients and loss sums of networks that move together, on their way to their sums over ranks.

    One `minimize` calls `reset`, then for each micro-batch `enter` before its backward pass, then `finish`. `arm` comes
    before the last backward pass, or within `finish` where a rank has no micro-batch, or where somebody wants to see
    gradients before they are summed.
    """

    def reset(self) -> None:
        """Before the first micro-batch: gradients are zero, or not there."""
        ...

    def enter(self, lane: int, sums: Sums) -> None:
        """A micro-batch of this lane comes next; `sums` hold what was before it."""
        ...

    def arm(self, sums: Sums) -> None:
        """Only one backward pass is left, whose losses are in `sums` already: gradients may leave as they are made."""
        ...

    def finish(self, sums: Sums) -> None:
        """After the last backward pass: gradients and `sums` are those of all ranks. What no loss reached adds zero."""
        ...

    @property
    def in_backward(self) -> bool:
        """Whether parameters move within the backward pass, before the vote."""
        ...

    def measure(self) -> Sequence[Tensor]:
        """The norms (0-d) of networks' whole gradients, where it alone can know them: these are gone, or in parts. Else
        nothing. Every rank calls it, after `finish`."""
        ...


class Unreduced:
    """One process in one order: gradients lie where backward leaves them."""

    in_backward = False

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = parameters

    def reset(self) -> None:
        """There are no gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    def enter(self, lane: int, sums: Sums) -> None:
        """Backward adds up micro-batches by itself."""

    def arm(self, sums: Sums) -> None:
        """Nothing leaves."""

    def finish(self, sums: Sums) -> None:
        """They are sums already."""

    def measure(self) -> Sequence[Tensor]:
        """They lie here whole."""
        return ()
