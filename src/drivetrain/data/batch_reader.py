"""What a rank reads in a step: a pure function of the step's number."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
from operator import index
from typing import Any, NamedTuple

import numpy as np

from drivetrain.data.geometry import Chunk, Geometry
from drivetrain.data.order import Sampler
from drivetrain.data.quarantine import Quarantine, ReadSamples
from drivetrain.data.source import Ending, ReadsTogether, Source
from drivetrain.runtime.mistakes import returned
from drivetrain.spec.exits import Exit, Failure
from drivetrain.spec.text import printable


class Planned(NamedTuple):
    """A micro-batch before it is read: its place, its sample ids and their positions (int64), and the digest."""

    chunk: Chunk
    ids: np.ndarray
    positions: np.ndarray
    digest: int


class MicroBatch(NamedTuple):
    """One micro-batch, collated: its samples' ids, and its place (position of the first sample, lane, part)."""

    batch: Any
    size: int
    start: int
    lane: int
    part: int
    ids: np.ndarray


class LocalBatch(NamedTuple):
    """A rank's part of a step, which covers the positions [start, stop) over all ranks.

    `counts` are this rank's sums of the task's counts, `digest` that of the sample ids it read. `gaps`: some rank reads
    nothing, where others may. `spare` is for passes of no weight, where ranks must make as many as each other. `rows`
    is what the micro-batches together ask for of tables, as `BatchReader.arrange` has found it.
    """

    step: int
    start: int
    stop: int
    micro_batches: tuple[MicroBatch, ...]
    counts: dict[str, int]
    digest: int
    gaps: bool
    spare: MicroBatch | None = None
    rows: Any = None


@dataclass(frozen=True)
class BatchReader:
    """One rank's batches by step, of a run of `total` samples. Samples in quarantine are left out of their
    micro-batches, and micro-batches without a sample out of their batches.

    Raises Failure(78) where there are fewer samples than lanes: lanes would train on the same ones all the time.
    """

    source: Source
    order: Sampler
    geometry: Geometry
    rank: int
    total: int
    collate: Callable[[Sequence[Any]], Any]
    counts: Callable[[Any], dict[str, int]]
    quarantine: Quarantine = field(default_factory=Quarantine)
    even: bool = False
    """Whether ranks must make as many passes as each other: `gaps` then also tells of ranks that may read less."""
    arrange: Callable[[Sequence[MicroBatch]], Any] | None = None
    """What a step's micro-batches come to together: found as they are read, beside training."""

    def __post_init__(self) -> None:
        there, lanes = len(self.source), self.geometry.lanes
        if there < lanes:
            cause = f"the training data has {there} samples, fewer than {lanes} lanes"
            raise Failure(Exit.BAD_RECIPE, cause, f"give more data, or at most {there} lanes (key lanes)")

    def plan(self, step: int) -> list[Planned]:
        """The micro-batches of a step, not read yet."""
        return self._plan(self.rank, step)

    def samples(self, step: int, *, ended: bool = True) -> ReadSamples:
        """What all ranks read in a step, in the order of the positions; or would read had no stream `ended`."""
        start, stop = self.geometry.batches.span(step)
        read = self.quarantine.read(self.order, step, start, min(stop, self.total))
        if self.ending is None or not ended:
            return read
        return read.only(self.ending.left(read.ids))

    def read(self, step: int) -> LocalBatch:
        """Read and collate this rank's batch of a step."""
        plan = self.plan(step)
        return self.assemble(step, plan, self._samples(plan))

    def read_each(self, steps: Sequence[int]) -> Iterator[LocalBatch]:
        """The batches of several steps, read `together` where that is possible. An error comes at its own step."""
        if len(steps) > 1:
            plans = [self.plan(step) for step in steps]
            if read := self._read_together(list(chain.from_iterable(plans))):
                samples = iter(read)
                return map(self.assemble, steps, plans, (list(islice(samples, len(plan))) for plan in plans))
        return map(self.read, steps)

    @cached_property
    def ending(self) -> Ending | None:
        """The source, if it may end before the run does."""
        return self.source if isinstance(self.source, Ending) else None

    @cached_property
    def together(self) -> ReadsTogether | None:
        """The source, if it reads several batches at once for less than one after the other."""
        if not isinstance(self.source, ReadsTogether):
            return None
        return self.source

    def first(self, rank: int, step: int) -> tuple[MicroBatch, ...]:
        """The first micro-batch of any rank in a step, read here; nothing where that rank reads nothing."""
        plan = self._plan(rank, step)[:1]
        if not plan:
            return ()
        return self.assemble(step, plan, self._samples(plan)).micro_batches

    def assemble(self, step: int, plan: list[Planned], samples: Sequence[Sequence[Any]]) -> LocalBatch:
        """A batch from its plan and the samples that were read for it."""
        start, stop = self.geometry.batches.span(step)
        counts: dict[str, int] = {}
        if not plan:  # zero of each unit: all ranks add up the same ones
            counts |= self._nothing
        micros = []
        digest = 0
        for (chunk, ids, _, part_digest), read in zip(plan, samples, strict=True):
            batch, counted = _collated(read, len(ids), self.collate, self.counts)
            if self.ending is not None:  # the units are known from here on: to look for them, it would begin again
                self.__dict__.setdefault("_nothing", dict.fromkeys(counted, 0))
            micros.append(MicroBatch(batch, len(ids), chunk.start, chunk.lane, chunk.part, ids))
            for unit, number in counted.items():
                counts[unit] = counts.get(unit, 0) + number
            digest += part_digest
        stop = min(stop, self.total)
        # Digests are sums modulo 2^64, so those of all ranks' shares add up to that of the step.
        rows = self.arrange(micros) if self.arrange else None
        return LocalBatch(step, start, stop, tuple(micros), counts, digest % (1 << 64), self._gaps(step), rows=rows)

    def _samples(self, plan: Sequence[Planned]) -> Sequence[Sequence[Any]]:
        """Those of each micro-batch."""
        return self._read_together(plan) or [read_samples(self.source, one.ids, one.positions) for one in plan]

    def _read_together(self, plan: Sequence[Planned]) -> Sequence[Sequence[Any]] | None:
        """Those of several micro-batches by one read; None where that cannot be, or goes wrong: the error comes again
        where its own is read."""
        if self.together is not None and len(plan) > 1:
            with suppress(Exception):
                return self.together.read_each([one.ids for one in plan])
        return None

    def _plan(self, rank: int, step: int) -> list[Planned]:
        planned = []
        for chunk in self.geometry.share(rank, step, self.total):
            read = self.quarantine.read(self.order, step, chunk.start, chunk.stop)
            if self.ending is not None:
                read = read.only(self.ending.there(read.ids))
            if len(read.ids):
                planned.append(Planned(chunk, *read))
        return planned

    def _gaps(self, step: int) -> bool:
        """Whether some rank reads nothing in a step: where it is ragged, or has samples in quarantine. Where a stream
        ends this rank cannot know of others: the ranks' counts tell."""
        if self.ending is not None:
            return False
        start, stop = self.geometry.batches.span(step)
        # To look at all samples takes time, so only the steps that may have gaps are looked at.
        whole = stop <= self.total and not (self.quarantine and len(self.samples(step).ids) < stop - start)
        if self.even:  # shares of as many lanes as each other are as many passes, unless they are cut
            return not whole or not (self.geometry.batches.even or self.geometry.micro is None)
        if whole:
            return False
        bounds = self.geometry.bounds(step)
        if not self.quarantine:
            return bounds[-2] >= self.total  # no share is empty by itself, so the last one is before others are
        # Positions and bounds both ascend, so that one search finds how many each rank reads.
        before = self.samples(step).positions.searchsorted(bounds)
        return bool((before[1:] == before[:-1]).any())

    @cached_property
    def _nothing(self) -> dict[str, int]:
        """The counts of no sample: the units that the task counts in, as the first sample tells them."""
        for position in range(self.total):
            ids, positions, _ = self.quarantine.read(self.order, sys.maxsize, position, position + 1)
            if len(ids):
                samples = read_samples(self.source, ids, positions)
                _, counted = _collated(samples, len(ids), self.collate, self.counts)
                return dict.fromkeys(counted, 0)
        return {"samples": 0}


def counted(size: int, batch: Any, counts: Callable[[Any], Mapping[str, int]]) -> dict[str, int]:
    """How many of each unit a batch of this size has. Raises Failure(70) where `counts` gives no whole numbers."""
    found = counts(batch)
    if found == {}:
        return {"samples": size}
    try:
        own = {unit: index(number) for unit, number in found.items()}
    except (AttributeError, TypeError):
        own = {"": -1}
    if any(number < 0 for number in own.values()):
        cause = f"the task's counts gives {printable(repr(found))}"
        raise returned(counts, cause, "give whole numbers by unit, such as {'tokens': 1000}")
    return {"samples": size} | own


def _collated(
    samples: Sequence[Any],
    size: int,
    collate: Callable[[Sequence[Any]], Any],
    counts: Callable[[Any], dict[str, int]],
) -> tuple[Any, dict[str, int]]:
    """A micro-batch of this size and what it counts."""
    try:
        batch = collate(samples)
        return batch, counted(size, batch, counts)
    except StopIteration as error:
        raise RuntimeError("the task's collate or counts raised StopIteration: data do not end there") from error


def read_samples(source: Source, ids: np.ndarray, positions: np.ndarray) -> Sequence[Any]:
    """What a source reads.

    Raises RuntimeError where it raises StopIteration, which would look like the end of the data.
    """
    try:
        return source.read(ids, positions)
    except StopIteration as error:
        raise RuntimeError("the source raised StopIteration: data do not end there") from error
