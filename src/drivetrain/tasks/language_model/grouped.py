"""Products of matrices group by group, of which each group has some rows.

Torch's grouped products under a name of our own: in float32 they compute on a CPU, and have no rule that says of what
shape the result is (torch 2.11 to 2.13), so that neither the compiler nor a trace without memory could pass them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@torch.library.custom_op("drivetrain::grouped_product", mutates_args=())
def grouped_product(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """`rows` [n, in] times `weights` [groups, out, in], transposed, to [n, out]: group g has the rows from ends[g - 1]
    to ends[g] (int32). Sizes are multiples of 16 bytes."""
    return F.grouped_mm(rows, weights.mT, offs=ends)


@torch.library.custom_op("drivetrain::grouped_outer", mutates_args=())
def grouped_outer(left: Tensor, right: Tensor, ends: Tensor) -> Tensor:
    """`left` [n, out], transposed, times `right` [n, in], each group's rows by themselves: [groups, out, in]."""
    return F.grouped_mm(left.mT, right, offs=ends)


@grouped_product.register_fake
def _(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    return rows.new_empty(rows.shape[0], weights.shape[1])


@grouped_outer.register_fake
def _(left: Tensor, right: Tensor, ends: Tensor) -> Tensor:
    return left.new_empty(ends.shape[0], left.shape[1], right.shape[1])


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _passed_back(ctx: Any, slopes: Tensor) -> tuple[Tensor | None, ...]:
    rows, weights, ends = ctx.saved_tensors
    slopes = slopes.contiguous()
    by_rows = by_weights = None
    if ctx.needs_input_grad[0]:
        by_rows = grouped_product(slopes, weights.mT, ends)
    if ctx.needs_input_grad[1]:
        by_weights = grouped_outer(slopes, rows, ends)
    return by_rows, by_weights, None


grouped_product.register_autograd(_passed_back, setup_context=_keep)
