"""What a rank reads in a step: a pure function of the step's number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from drivetrain.data.geometry import Geometry
from drivetrain.data.order import Order
from drivetrain.data.source import Source


class Micro(NamedTuple):
    """One micro-batch, collated: its samples' ids, and its place (position of the first sample, lane, part)."""

    batch: Any
    size: int
    start: int
    lane: int
    part: int
    ids: np.ndarray


class Share(NamedTuple):
    """A rank's part of a step, which covers the positions [start, stop) over all ranks.

    `counts` are this rank's sums of the task's counts, `digest` that of the sample ids it read.
    """

    step: int
    start: int
    stop: int
    micro: tuple[Micro, ...]
    counts: dict[str, int]
    digest: int


@dataclass(frozen=True)
class Feed:
    """Shares by step, for one rank, of a run of `total` samples."""

    source: Source
    order: Order
    geometry: Geometry
    rank: int
    total: int
    collate: Callable[[Sequence[Any]], Any]
    counts: Callable[[Any], dict[str, int]]

    def plan(self, step: int) -> list[tuple[Any, np.ndarray]]:
        """The micro-batches of a step, not read yet: their place and their sample ids."""
        start = (step - 1) * self.geometry.batch
        chunks = self.geometry.share(self.rank, start, min(start + self.geometry.batch, self.total))
        return [(chunk, self.order.ids(chunk.start, chunk.stop)) for chunk in chunks]

    def share(self, step: int) -> Share:
        """Read and collate a step's share."""
        plan = self.plan(step)
        samples = [self.source.read(ids, np.arange(chunk.start, chunk.stop)) for chunk, ids in plan]
        return self.assemble(step, plan, samples)

    def assemble(self, step: int, plan: list[tuple[Any, np.ndarray]], samples: list[Sequence[Any]]) -> Share:
        """A share from its plan and the samples that were read for it."""
        start = (step - 1) * self.geometry.batch
        counts: dict[str, int] = {}
        micros = []
        digest = 0
        for (chunk, ids), read in zip(plan, samples, strict=True):
            batch = self.collate(read)
            micros.append(Micro(batch, len(ids), chunk.start, chunk.lane, chunk.part, ids))
            for unit, number in ({"samples": len(ids)} | self.counts(batch)).items():
                counts[unit] = counts.get(unit, 0) + number
            digest += self.order.digest(chunk.start, chunk.stop)
        stop = min(start + self.geometry.batch, self.total)
        return Share(step, start, stop, tuple(micros), counts, digest % (1 << 64))
