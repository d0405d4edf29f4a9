"""fp32 numbers to bf16 by chance, a hash of the place: whoever holds a part of a tensor rounds as the whole would."""

from __future__ import annotations

import hashlib
from math import prod

import torch
from torch import Tensor

from drivetrain.runtime.hashing import GOLDEN, lowbias32
from drivetrain.spec.box import Box

_AT_ONCE = 1 << 18
"""Numbers that are rounded at a time: the hashed places of them take 8 bytes each."""

Key = tuple[int, int]
"""Two signed numbers of 32 bits."""


def key_of(seed: int, step: int, call: int, name: str) -> Key:
    """The key of a tensor in one `minimize` of a step."""
    digest = hashlib.sha256(f"{seed}/{step}/{call}/{name}".encode()).digest()
    return int.from_bytes(digest[:4], "little", signed=True), int.from_bytes(digest[4:8], "little", signed=True)


@torch.no_grad()
def round_by_place(here: Tensor, box: Box, key: Key, out: Tensor) -> None:
    """Round fp32 numbers, which are this box of a tensor, into `out` (bf16, of the same shape).

    Each becomes the next larger one in size with a probability that is its distance from the next smaller one: 16
    random bits are added below those that stay, and the rest is cut off. The bits are a hash of the key and the place
    in the whole. NaN and infinity stay; what bf16 has exactly stays, too.
    """
    # Places count in the order of rows, in which a tensor need not lie.
    flat, target = here.reshape(-1), out.new_empty(out.numel())
    if out.is_contiguous():
        target = out.view(-1)
    for start in range(0, flat.numel(), _AT_ONCE):
        stop = min(start + _AT_ONCE, flat.numel())
        target[start:stop] = rounded_by(flat[start:stop], random_bits(places(box, start, stop, here.device), key))
    if not out.is_contiguous():
        out.copy_(target.view(out.shape))


def places(box: Box, start: int, stop: int, device: torch.device) -> Tensor:
    """Where numbers `start` to `stop` of a box lie in the whole, both counted in the order of rows (int64)."""
    rest = torch.arange(start, stop, device=device)
    if box.shape[1:] == box.whole[1:]:
        first = box.offset[0] * prod(box.whole[1:]) if box.whole else 0
        return rest + first
    found = torch.zeros_like(rest)
    stride = 1
    for full, offset, extent in zip(reversed(box.whole), reversed(box.offset), reversed(box.shape), strict=True):
        found += (rest % extent + offset) * stride
        rest = rest // extent
        stride *= full
    return found


def random_bits(place: Tensor, key: Key | tuple[Tensor, Tensor]) -> Tensor:
    """16 bits (int32, 0 to 65535) for each place, int64; the key's numbers may be int32 tensors, for places of their
    own."""
    # A conversion to int32 keeps the low bits; the high ones of very large tensors are mixed in.
    low, high = place.to(torch.int32), (place >> 32).to(torch.int32)
    return lowbias32(lowbias32(low * GOLDEN + key[0]) ^ (high * GOLDEN + key[1])) & 0xFFFF


def rounded_by(x: Tensor, bits: Tensor) -> Tensor:
    """fp32 numbers as bf16, by 16 random bits each (int32): by the bits alone, so that the smallest numbers are not
    taken for zero where arithmetic does so."""
    cut = ((x.view(torch.int32) + bits) >> 16).to(torch.int16).view(torch.bfloat16)
    return torch.where(x.isfinite(), cut, x.to(torch.bfloat16))
