"""Random-looking numbers that are a function of a place: hashes of int32 tensors, whose products wrap around."""

from __future__ import annotations

import torch
from torch import Tensor

# Wellons' lowbias32 (nullprogram.com/blog/2018/07/31), and 2^32 / golden ratio.
FIRST, SECOND, GOLDEN = 0x7FEB352D, 0x846CA68B - (1 << 32), 0x9E3779B1 - (1 << 32)
"""Odd constants, as int32."""


def lowbias32(x: Tensor) -> Tensor:
    """The hash of each number (int32); shifts of int32 keep the sign, so what they bring in is cut off."""
    x = x ^ ((x >> 16) & 0xFFFF)
    x = times(x, FIRST)
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = times(x, SECOND)
    return x ^ ((x >> 16) & 0xFFFF)


def times(x: Tensor, factor: int) -> Tensor:
    """The product, int32 as both are, wrapped around."""
    # In C++, which is what torch's compiler makes of it on a CPU, an int32 that overflows is undefined: where a place
    # is known to be 4 more than another GCC was seen to go on with more bits. Products of int64 have room.
    if torch.compiler.is_compiling():
        return (x.long() * factor).int()
    return x * factor


def plus(x: Tensor, y: Tensor) -> Tensor:
    """The sum, int32 as both are, wrapped around."""
    if torch.compiler.is_compiling():
        return (x.long() + y.long()).int()
    return x + y
