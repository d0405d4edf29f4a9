"""Random-looking numbers that are a function of a place: hashes of int32 tensors, whose products wrap around."""

from __future__ import annotations

from torch import Tensor

# Wellons' lowbias32 (nullprogram.com/blog/2018/07/31), and 2^32 / golden ratio.
FIRST, SECOND, GOLDEN = 0x7FEB352D, 0x846CA68B - (1 << 32), 0x9E3779B1 - (1 << 32)
"""Odd constants, as int32."""


def lowbias32(x: Tensor) -> Tensor:
    """The hash of each number (int32); shifts of int32 keep the sign, so what they bring in is cut off."""
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * FIRST
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = x * SECOND
    return x ^ ((x >> 16) & 0xFFFF)
