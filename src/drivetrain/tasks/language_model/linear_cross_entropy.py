"""Cross entropy of a linear layer's outputs that are never there whole: some positions at a time.

The gradients of a chunk are made with its logits, so no product is made twice (as in Hsu et al. 2024, Liger Kernel,
arXiv 2410.10989). What is kept for the backward pass is as large as the layer's input and its weight.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from drivetrain.checkpoint.boxes import box_of, local_of, part_of
from drivetrain.data.stacked import IGNORED

_ELEMENTS = 1 << 22
"""Logits at a time, where the recipe leaves it open: 16 MB in float32, which caches of most machines hold."""
_LEAST = 128
"""Positions below which products of matrices are slow."""


def linear_cross_entropy(x: Tensor, weight: Any, targets: Tensor, chunk: int | Literal["auto"]) -> Tensor:
    """The sum over positions of cross_entropy(x @ weight.T, targets) in nats, 0-d; float32, or float64 where `x` is.

    `x` [..., width], `weight` [vocabulary, width], `targets` [...] (int64; `IGNORED` adds nothing). Products are made
    in autocast's dtype where it is on, the rest in float32. The order of additions follows from the shapes alone. It
    can be passed back through once, and has no second derivative.

    Where `weight` is a DTensor, each process has some words of the vocabulary, and `x` is one that all have whole; what
    comes out is the same on all.
    """
    share = None
    if local_of(weight) is not weight:
        share = _Share(box_of(weight.detach()).offset[0], weight.device_mesh.get_group())
        x, weight = part_of(x), part_of(weight)
    if chunk == "auto":
        chunk = max(_LEAST, _ELEMENTS // weight.shape[0])
    wanted = torch.is_grad_enabled() and x.requires_grad, torch.is_grad_enabled() and weight.requires_grad
    return _LinearCrossEntropy.apply(x.flatten(0, -2), weight, targets.flatten(), (chunk, share), wanted)


class _Share(NamedTuple):
    """The words of a vocabulary that are here: from `first` on. The `group` has them all."""

    first: int
    group: dist.ProcessGroup


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        targets: Tensor,
        how: tuple[int, _Share | None],
        wanted: tuple[bool, bool],
    ) -> Tensor:
        dtype = x.dtype
        if torch.is_autocast_enabled(x.device.type):
            dtype = torch.get_autocast_dtype(x.device.type)
        with torch.autocast(x.device.type, enabled=False):
            total, by_input, by_weight = _summed(x.to(dtype), weight.to(dtype), targets, how, wanted)
        ctx.gradients = [by_input, by_weight]
        ctx.dtypes = x.dtype, weight.dtype
        return total

    @staticmethod
    @once_differentiable
    def backward(  # type: ignore[override] - the decorator hides the arguments' names
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor | None, ...]:
        found: list[Tensor | None] = []
        for kept, dtype in zip(ctx.gradients, ctx.dtypes, strict=True):
            # In place: a second copy of the weight's gradient would be what this is here to save.
            found.append(None if kept is None else kept.mul_(gradients[0]).to(dtype))
        ctx.gradients = _Spent()
        return *found, None, None, None


class _Spent:
    """In the place of gradients that were passed on."""

    def __iter__(self) -> Any:
        raise RuntimeError("the loss of logits in chunks (task.logits_chunk) was passed back through already")


def _summed(
    x: Tensor, weight: Tensor, targets: Tensor, how: tuple[int, _Share | None], wanted: tuple[bool, bool]
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The sum, and its gradients by `x` and by `weight` where they are wanted."""
    chunk, share = how
    wide = torch.promote_types(x.dtype, torch.float32)
    total = torch.zeros((), dtype=wide, device=x.device)
    by_input = torch.empty_like(x) if wanted[0] else None
    by_weight = torch.zeros_like(weight, dtype=wide) if wanted[1] else None
    for start in range(0, len(x), chunk):
        part, truth = x[start : start + chunk], targets[start : start + chunk]
        counted = here = truth != IGNORED
        if share:
            truth = truth - share.first
            here = counted & (truth >= 0) & (truth < len(weight))
        truth = truth.where(here, 0).unsqueeze(1)
        logits = (part @ weight.T).to(wide)
        # The largest one first: exp of what is left does not overflow.
        logits -= _of_all(logits.amax(dim=1, keepdim=True), share, dist.ReduceOp.MAX)
        picked = logits.gather(1, truth).squeeze(1).where(here, 0)
        sums, picked = _of_all(torch.stack((logits.exp_().sum(dim=1), picked)), share, dist.ReduceOp.SUM)
        total += (sums.log() - picked).where(counted, 0).sum()
        if not any(wanted):
            continue
        # d loss / d logits is softmax less 1 at the target; nothing at positions that do not count.
        logits *= (counted / sums).unsqueeze(1)
        logits.scatter_add_(1, truth, -here.to(wide).unsqueeze(1))
        slopes = logits.to(x.dtype)
        if by_input is not None:
            torch.mm(slopes, weight, out=by_input[start : start + chunk])
        if by_weight is not None:
            _add_product(by_weight, slopes, part)
    return total, by_input, by_weight


def _of_all(part: Tensor, share: _Share | None, how: dist.ReduceOp.RedOpType) -> Tensor:
    """What it is over the whole vocabulary, of what it is over the words that are here."""
    if share:
        dist.all_reduce(part, how, group=share.group)
    return part


def _add_product(total: Tensor, slopes: Tensor, x: Tensor) -> None:
    if slopes.dtype == total.dtype:
        total.addmm_(slopes.T, x)
    else:
        total += slopes.T @ x
