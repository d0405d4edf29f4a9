"""Samples that are left out: holes in the order, which nobody reads and which count for nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from drivetrain.data.order import Sampler, digest


class ReadSamples(NamedTuple):
    """What stands at some positions and is read: sample ids and their positions (int64 both), and their digest."""

    ids: np.ndarray
    positions: np.ndarray
    digest: int

    def only(self, kept: np.ndarray) -> ReadSamples:
        """Those that are kept (bool)."""
        if kept.all():
            return self
        ids, positions = self.ids[kept], self.positions[kept]
        return ReadSamples(ids, positions, digest(ids, positions))


class Quarantine:
    """Sample ids that are left out, each from a step on. `entries` are pairs: the first step without, and the ids."""

    def __init__(self, entries: Iterable[tuple[int, Sequence[int]]] = ()) -> None:
        found = [(first, tuple(ids)) for first, ids in entries]
        self.entries = tuple(entry for entry in found if entry[1])

    def __bool__(self) -> bool:
        """Whether any sample is left out."""
        return bool(self.entries)

    def __len__(self) -> int:
        """How many samples are left out in the end."""
        return len(self._sorted[0])

    def kept(self, step: int | np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Which of these ids a step reads, or each its own step, bool of the same shape."""
        held, firsts = self._sorted
        if not len(held):
            return np.ones(ids.shape, bool)
        places = np.minimum(np.searchsorted(held, ids), len(held) - 1)
        return (held[places] != ids) | (firsts[places] > step)

    def read(self, order: Sampler, step: int, start: int, stop: int) -> ReadSamples:
        """What a step reads of the positions [start, stop) of an order."""
        ids, positions = order.ids(start, stop), np.arange(start, stop)
        read = ReadSamples(ids, positions, order.digest(start, stop))
        return read.only(self.kept(step, ids)) if self.entries else read

    @cached_property
    def _sorted(self) -> tuple[np.ndarray, np.ndarray]:
        """The ids in ascending order, and the first step without each."""
        firsts: dict[int, int] = {}
        for first, ids in self.entries:
            for sample in ids:
                firsts[sample] = min(first, firsts.get(sample, first))
        held = sorted(firsts)
        return np.array(held, np.int64), np.array([firsts[sample] for sample in held], np.int64)
