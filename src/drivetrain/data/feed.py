"""What a rank reads in a step: a pure function of the step's number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from drivetrain.data.geometry import Chunk, Geometry
from drivetrain.data.order import Ordering
from drivetrain.data.source import Source
from drivetrain.spec.exits import Exit, Failure


class Planned(NamedTuple):
    """A micro-batch before it is read: its place, its sample ids (int64), and the digest of these."""

    chunk: Chunk
    ids: np.ndarray
    digest: int

    @property
    def positions(self) -> np.ndarray:
        """The samples' positions, int64."""
        return np.arange(self.chunk.start, self.chunk.stop)


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
    """Shares by step, for one rank, of a run of `total` samples.

    Raises Failure(78) where there are fewer samples than lanes: lanes would train on the same ones all the time.
    """

    source: Source
    order: Ordering
    geometry: Geometry
    rank: int
    total: int
    collate: Callable[[Sequence[Any]], Any]
    counts: Callable[[Any], dict[str, int]]

    def __post_init__(self) -> None:
        there, lanes = len(self.source), self.geometry.lanes
        if there < lanes:
            cause = f"the training data has {there} samples, fewer than {lanes} lanes"
            raise Failure(Exit.BAD_RECIPE, cause, f"give more data, or at most {there} lanes (key lanes)")

    def plan(self, step: int) -> list[Planned]:
        """The micro-batches of a step, not read yet."""
        order = self.order
        chunks = self.geometry.share(self.rank, step, self.total)
        return [Planned(c, order.ids(c.start, c.stop), order.digest(c.start, c.stop)) for c in chunks]

    def share(self, step: int) -> Share:
        """Read and collate a step's share."""
        plan = self.plan(step)
        samples = [self.source.read(planned.ids, planned.positions) for planned in plan]
        return self.assemble(step, plan, samples)

    def assemble(self, step: int, plan: list[Planned], samples: list[Sequence[Any]]) -> Share:
        """A share from its plan and the samples that were read for it.

        Raises RuntimeError where `collate` or `counts` raises StopIteration, which would look like the end of the data.
        """
        start, stop = self.geometry.batches.span(step)
        counts: dict[str, int] = {}
        micros = []
        digest = 0
        for (chunk, ids, part_digest), read in zip(plan, samples, strict=True):
            try:
                batch = self.collate(read)
                counted = {"samples": len(ids)} | self.counts(batch)
            except StopIteration as error:
                raise RuntimeError(f"the task's collate or counts raised StopIteration at step {step}") from error
            micros.append(Micro(batch, len(ids), chunk.start, chunk.lane, chunk.part, ids))
            for unit, number in counted.items():
                counts[unit] = counts.get(unit, 0) + number
            digest += part_digest
        return Share(step, start, min(stop, self.total), tuple(micros), counts, digest % (1 << 64))
