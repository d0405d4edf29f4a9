"""Matrix products of projections.

torch gives float32 products on a CPU to MKL, which on AMD's CPUs uses half of what AVX-512 can do; oneDNN, which torch
carries too, uses all of it, to the same precision. So these go there; where matrix precision is `medium` all products
do, by torch's own choice.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

BLOCK = 1 << 20
"""Numbers of a product that is added while it is in the cache."""


def matmul(first: Tensor, second: Tensor) -> Tensor:
    """first @ second, of two matrices of one type."""
    if _by_onednn(first, second):
        return torch.ops.mkldnn._linear_pointwise(first, second.mT, None, "none", [], "")
    return first @ second


def add_product(weights: Tensor, first: Tensor, second: Tensor, keep: float, scale: float) -> None:
    """weights = keep * weights + scale * first @ second, in place, of matrices of one type."""
    if not _by_onednn(first, second):
        weights.addmm_(first, second, beta=keep, alpha=scale)
        return
    # oneDNN's product does not add, so it is added block by block, while it is still in the cache.
    rows = max(1, BLOCK // weights.shape[1])
    for some, factor in zip(weights.split(rows), first.split(rows), strict=True):
        if keep != 1.0:
            some.mul_(keep)
        some.add_(matmul(factor, second), alpha=scale)


def _by_onednn(first: Tensor, second: Tensor) -> bool:
    # Empty products, and other types and devices, are torch's own; so are all where it gives oneDNN them by itself.
    plain = first.dtype is torch.float32 and first.device.type == "cpu" and first.numel() and second.numel()
    return bool(plain) and _has_onednn() and torch.get_float32_matmul_precision() != "medium"


@cache
def _has_onednn() -> bool:
    """Whether it is there, and has kernels for this CPU that are worth it."""
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return wide and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
