"""What runs a step's micro-batches: chosen once, when an engine is built, by how its networks lie on processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor


class Passes(NamedTuple):
    """Forward and backward passes over micro-batches.

    `run` (moving, loss, work, sums, inspection) goes over all of a step: gradients add up where the reduction has them,
    losses in `sums`. `alone` (moving, loss, micro, work) makes one by itself, whose gradients nobody sums, and gives
    its losses where they are known here.
    """

    run: Callable[[Any, Any, Any, Any, Any], None]
    alone: Callable[[Any, Any, Any, Any], list[Tensor]]
