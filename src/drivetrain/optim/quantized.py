"""Tensors of numbers in 8 bits each, block by block (Dettmers et al. 2021, arXiv 2110.02861)."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

BLOCK = 256
"""Numbers that share a scale, the largest of them. A tensor's last block may be shorter."""


def quantize(values: Tensor, codes: Tensor, scales: Tensor, *, signed: bool) -> None:
    """Put values into `codes` (uint8, of the same shape) and `scales` (float32 [blocks]): of each block the code of
    what is nearest in `levels` to a value over the scale."""
    blocks = _blocks(values)
    scales.copy_(blocks.abs().amax(dim=1))
    # A block of zeros has the scale 0, and is to become codes of 0, not NaN.
    relative = blocks / scales.clamp_min(torch.finfo(scales.dtype).tiny)[:, None]
    found = torch.bucketize(relative, _borders(signed, values.device), out_int32=True)
    codes.copy_(found.flatten()[: values.numel()].view(values.shape))


def restored(codes: Tensor, scales: Tensor, *, signed: bool) -> Tensor:
    """What the codes stand for, float32 of their shape. Codes and scales of zeros are zeros."""
    blocks = _blocks(levels(signed, codes.device)[codes.int()])
    return (blocks * scales[:, None]).flatten()[: codes.numel()].view(codes.shape)


def blocks_of(numbers: int) -> int:
    """How many blocks they fill."""
    return -(-numbers // BLOCK)


@cache
def levels(signed: bool, device: torch.device) -> Tensor:
    """The 256 numbers of the dynamic tree data type, ascending, float32: seven powers of ten, each with twice as many
    steps as the one below it; 0; and 1. From -1 where they are signed."""
    # Signed codes give a bit to the sign, and so half as many steps to each power.
    bits = 6 if signed else 7
    steps = torch.cat([10.0**-power * _middles(2 ** (bits - power)) for power in range(7)])
    parts = [steps, torch.tensor([0.0, 1.0], dtype=torch.float64)]
    if signed:
        parts.append(-steps)
    return torch.cat(parts).sort().values.float().to(device, non_blocking=True)


def _middles(count: int) -> Tensor:
    """The middles of as many equal parts of [0.1, 1]."""
    ends = torch.linspace(0.1, 1.0, count + 1, dtype=torch.float64)
    return (ends[1:] + ends[:-1]) / 2


@cache
def _borders(signed: bool, device: torch.device) -> Tensor:
    """Half-way between the levels."""
    values = levels(signed, device)
    return (values[1:] + values[:-1]) / 2


def _blocks(values: Tensor) -> Tensor:
    """[blocks, BLOCK] in float32, with zeros at the end."""
    flat = values.flatten().float()
    return torch.nn.functional.pad(flat, (0, -len(flat) % BLOCK)).view(blocks_of(values.numel()), BLOCK)
