"""The order of a run's samples as its ledger tells of it: what stood at which position, and was read."""

from __future__ import annotations

import json

import numpy as np

from drivetrain.data.blend import Blend, BlendStage
from drivetrain.data.buckets import order_of
from drivetrain.data.deal import Deal, before_ends
from drivetrain.data.order import Sampler
from drivetrain.data.quarantine import Quarantine, ReadSamples
from drivetrain.ledger.records import (
    AttemptRecord,
    CommandRecord,
    Record,
    RollbackRecord,
    Stage,
    StreamEndRecord,
)
from drivetrain.spec.batches import Batches, Change
from drivetrain.spec.exits import Exit, Failure


class Orders:
    """The order of the samples as it stands after each record: an attempt's, with the stages that it was told of; and
    which of them are in quarantine."""

    def __init__(self) -> None:
        # Attempts mostly have the same order, and to make one takes time.
        self._known: dict[str, Sampler] = {}
        self.current = Sampler()
        self.quarantine = Quarantine()
        self._ends: dict[str, StreamEndRecord] = {}
        self._attempt: AttemptRecord | None = None

    def read(self, step: int, start: int, stop: int) -> ReadSamples:
        """What a step has read of the positions [start, stop)."""
        read = self.quarantine.read(self.current, step, start, stop)
        return read.only(self._left(read.ids))

    def _left(self, ids: np.ndarray) -> np.ndarray:
        """Which of these samples (int64, ascending) come before the ends of streams that were told of, bool."""
        kept, first, attempt = np.ones(len(ids), bool), 0, self._attempt
        if not self._ends or attempt is None:
            return kept
        for size, name in zip(self.current.metadata["sizes"], attempt.sources, strict=True):
            if name in self._ends:
                (own,) = ((ids >= first) & (ids < first + size)).nonzero()
                lanes = dict(enumerate(self._ends[name].samples))
                ends = {lane: end for lane, end in lanes.items() if end is not None}
                deal = Deal(batches_of(attempt), attempt.lanes) if len(lanes) > 1 else None
                kept[own] = before_ends(ids[own] - first, ends, deal)
            first += size
        return kept

    def add(self, record: Record) -> None:
        """One record further."""
        if isinstance(record, AttemptRecord):
            told = json.dumps(record.order)
            self.current = self._known[told] = self._known.get(told) or order_of(record.order)
            self.quarantine = Quarantine(record.quarantine)
            self._attempt, self._ends = record, {}
        elif isinstance(record, StreamEndRecord):
            self._ends[record.source] = record
        elif isinstance(record, RollbackRecord):
            self.quarantine = Quarantine([*self.quarantine.entries, (record.to + 1, record.samples)])
        elif isinstance(record, CommandRecord) and record.effect and record.effect.stage:
            if not isinstance(self.current, Blend):
                cause = "a command tells of sources' weights where there is one source"
                hint = "the ledger was changed by hand; restore it from a copy"
                raise Failure(Exit.BAD_DATA, cause, hint, step=record.step)
            self.current = self.current.staged(stage_of(record.effect.stage))


def batches_of(attempt: AttemptRecord) -> Batches:
    """The sizes of the attempt's batches."""
    sizes = attempt.batch
    return Batches(sizes.size, tuple(Change(*change) for change in sizes.ramp))


def stage_of(stage: Stage) -> BlendStage:
    """The stage of the samples' order that a `set` has begun."""
    return BlendStage(stage.start, stage.weights)
