"""Micro-batches cut into smaller ones, for a network that takes fewer samples at a time than others do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map

from drivetrain.data.batch_reader import MicroBatch
from drivetrain.spec.exits import Exit, Failure

_PIECES = 1 << 20
"""More than a micro-batch has."""


def cut(micros: Sequence[MicroBatch], size: int | None) -> Sequence[MicroBatch]:
    """The same samples, at most `size` at a time, in order; each piece has a place, and so random numbers, of its own.
    None: as they are.

    Raises Failure(78) where a batch has something else than tensors [samples, ...].
    """
    if size is None:
        return micros
    pieces: list[MicroBatch] = []
    for micro in micros:
        pieces += _pieces(micro, size)
    return pieces


def _pieces(micro: MicroBatch, size: int) -> Iterator[MicroBatch]:
    if micro.size <= size:
        # Multiplied like the places of pieces: else it could have the place, and the seed, of another one's piece.
        yield micro._replace(part=micro.part * _PIECES)
        return
    for number, start in enumerate(range(0, micro.size, size)):
        stop = min(start + size, micro.size)
        yield MicroBatch(
            batch=tree_map(partial(_rows, size=micro.size, part=slice(start, stop)), micro.batch),
            size=stop - start,
            start=micro.start + start,
            lane=micro.lane,
            part=micro.part * _PIECES + number,
            ids=micro.ids[start:stop],
        )


def _rows(leaf: Any, size: int, part: slice) -> Tensor:
    if isinstance(leaf, Tensor) and leaf.ndim and len(leaf) == size:
        return leaf[part]
    found = f"a value of type {type(leaf).__name__}"
    if isinstance(leaf, Tensor):
        found = f"a tensor {list(leaf.shape)}"
    cause = f"networks: a micro-batch of {size} samples cannot be cut, since it has {found}"
    raise Failure(Exit.BAD_RECIPE, cause, "give tensors with the samples first, or no `micro` to single networks")
