"""Rows of a tensor in another order, both ways by reading alone: nothing is added up, so the bits are always the
same."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def rows_at(x: Tensor, places: Tensor, back: Tensor, absent: Tensor | None = None) -> Tensor:
    """x[places], for `x` [rows, ...] and `places` [n] (int64); its gradient is read, not scattered.

    `back` [rows] or [rows, k] (int64) are the places in [0, n) at which each row stands; where `absent` (bool, the
    same shape) is true there is none, and any number will do. A row that `back` does not name where `places` does gets
    nothing of that gradient: nobody may use what was read there.
    """
    return _RowsAt.apply(x, places, back, absent)


class _RowsAt(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor, back: Tensor, absent: Tensor | None) -> Tensor:
        ctx.save_for_backward(back, absent)
        return x.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        back, absent = ctx.saved_tensors
        found = gradients[0].index_select(0, back.flatten())
        if absent is not None:
            found = found.masked_fill(absent.flatten().view(-1, *[1] * (found.ndim - 1)), 0.0)
        if back.ndim == 2:
            found = found.view(*back.shape, *found.shape[1:]).sum(dim=1)
        return found, None, None, None
