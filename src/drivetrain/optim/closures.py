"""What torch's optimizers may be given with a step."""

from __future__ import annotations

from collections.abc import Callable

import torch


def loss_of(closure: Callable[[], float] | None) -> float | None:
    """What a closure that computes the loss comes to, with gradients on; None where there is no closure."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()
