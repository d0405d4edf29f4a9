"""Where the parts of a tensor lie in the whole, and how a part is put together from others. Knows nothing of files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

import torch
from torch import Tensor

from drivetrain.checkpoint.manifest import Damaged
from drivetrain.spec.box import Box

_MOST_SPLIT = 8
"""Dimensions along which one tensor may be cut; a mesh has fewer axes."""


def box_of(tensor: Tensor) -> Box:
    """Where what this rank holds of a tensor lies in the whole: all of it, but for a DTensor."""
    if type(tensor) in (Tensor, torch.nn.Parameter):
        return Box.of_whole(tensor.shape)
    # Imported for those alone who have DTensors: it takes a while.
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    if not isinstance(tensor, DTensor):
        return Box.of_whole(tensor.shape)
    mesh, placements = tensor.device_mesh, tensor.placements
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    return Box(tuple(tensor.shape), tuple(offset), tuple(shape))


def local_of(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor, the memory itself."""
    return getattr(tensor, "_local_tensor", tensor)


def part_of(tensor: Tensor) -> Tensor:
    """The same where gradients are to reach the tensor: what all have gets a part of a sum from each rank."""
    if local_of(tensor) is tensor:
        return tensor
    from torch.distributed.tensor import DTensor, Partial

    assert isinstance(tensor, DTensor)
    given = list(tensor.placements)
    for place, placement in enumerate(given):
        if placement.is_replicate():
            given[place] = Partial()
    return tensor.to_local(grad_placements=given)


class Filling:
    """A box of a tensor while it is put together from parts that do not overlap, in any order."""

    def __init__(self, name: str, box: Box, dtype: torch.dtype) -> None:
        self.box = box
        self._name = name
        self._tensor = torch.empty(box.shape, dtype=dtype)
        self._missing = box.size

    def add(self, box: Box, part: Tensor) -> None:
        """Copy what is needed of a part, which is this box of the tensor. Raises Damaged where it is another's."""
        if box.whole != self.box.whole or part.dtype != self._tensor.dtype:
            raise Damaged(f"{self._name} has parts of several shapes or types")
        common = self.box.common(box)
        if common is not None:
            here, there = common
            self._tensor[here].copy_(part[there])
            self._missing -= part[there].numel()

    def filled(self) -> Tensor:
        """The tensor of the box's shape. Raises Damaged where parts have left a hole."""
        if self._missing:
            raise Damaged(f"{self._name}: {self._missing} of {self.box.size} numbers are missing")
        return self._tensor


def require_whole(name: str, boxes: Sequence[Box]) -> None:
    """Raises Damaged unless boxes cover a tensor once: no hole, no overlap, one shape.

    In time linear in the boxes. A box is a signed sum of the orthants that begin at its corners, and orthants are
    linearly independent: boxes add up to the whole exactly where their corners, with signs, do.
    """
    whole = boxes[0].whole
    if any(box.whole != whole for box in boxes):
        raise Damaged(f"{name} has parts of several shapes")
    split = [n for n in range(len(whole)) if _cut(boxes, n)]
    if prod(whole) == 0 or (len(boxes) == 1 and not split):
        return
    if len(split) > _MOST_SPLIT:
        raise Damaged(f"{name} is cut along {len(split)} dimensions")
    corners: Counter[tuple[int, ...]] = Counter()
    for box in boxes:
        for sign, corner in _corners(box, split):
            corners[corner] += sign
    for sign, corner in _corners(Box.of_whole(whole), split):
        corners[corner] -= sign
    if any(corners.values()):
        there = sum(box.size for box in boxes)
        raise Damaged(f"{name}: its parts do not cover it once; they have {there} numbers, the whole {prod(whole)}")


def _cut(boxes: Sequence[Box], dimension: int) -> bool:
    """Whether a box has less than all of a dimension, or lies beyond it."""
    return any((box.offset[dimension], box.shape[dimension]) != (0, box.whole[dimension]) for box in boxes)


def _corners(box: Box, dimensions: Sequence[int]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The corners of a box along some dimensions, with their signs: -1 for each end that is not the beginning."""
    edges = [((1, box.offset[n]), (-1, box.offset[n] + box.shape[n])) for n in dimensions]
    for corner in product(*edges):
        at = tuple(place for _, place in corner)
        yield prod(sign for sign, _ in corner), at
