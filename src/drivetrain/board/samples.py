"""Which samples a step has read, and how often each source was gone through: from the ledger, without the data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from drivetrain.board.answers import Data, SamplesOfSource
from drivetrain.board.index import Index
from drivetrain.board.others import KIND, OFFSET
from drivetrain.board.steps import SAMPLES
from drivetrain.data.blend import coverage
from drivetrain.data.orders import Orders
from drivetrain.ledger.records import AttemptRecord, CommandRecord, Record, RollbackRecord, StepRecord, StreamEndRecord
from drivetrain.spec.exits import Failure

_SHOWN = 256  # ids of a source
_FIRST = [AttemptRecord.kind, RollbackRecord.kind, CommandRecord.kind, StreamEndRecord.kind]
"""The records from which the order follows."""
_OTHER_FORMS = (Failure, KeyError, TypeError, ValueError, IndexError, OverflowError, MemoryError)
"""What comes of an order of a version that wrote other fields, or of one that nobody could have trained with."""


def samples_of(index: Index, offset: int) -> list[SamplesOfSource]:
    """The samples of the step whose record begins there, by source: how many, and the first ids; ids count through all
    sources. Empty where no step is, or where the ledger has another form."""
    step = index.record(offset)
    if not isinstance(step, StepRecord):
        return []
    try:
        orders, attempt = _orders(index, offset)
        ids = np.sort(orders.read(step.step, step.start, step.stop).ids)
        return list(_by_source(ids, orders.current.metadata["sizes"], list(attempt.sources)))
    except _OTHER_FORMS:
        return []


def data_of(index: Index) -> Data:
    """What was taken of each source so far, and what is left out."""
    try:
        orders, attempt = _orders(index, index.offset)
        taken = coverage(orders.current, list(attempt.sources), int(index.groups.newest[SAMPLES]))
    except _OTHER_FORMS:
        return {"sources": [], "left_out": [], "left_out_total": 0}
    rows = []
    for name, count in taken.items():
        rows.append({"source": name, "samples": attempt.sources[name], "taken": count})
    left_out = sorted({sample for _, ids in orders.quarantine.entries for sample in ids})
    return {"sources": rows, "left_out": left_out[:_SHOWN], "left_out_total": len(left_out)}


def _orders(index: Index, offset: int) -> tuple[Orders, AttemptRecord]:
    """The order as it stands at a place of the ledger. Raises KeyError before the first attempt."""
    orders, attempt = Orders(), None
    for record in _before(index, offset):
        orders.add(record)
        if isinstance(record, AttemptRecord):
            attempt = record
    if attempt is None:
        raise KeyError("there is no attempt before this place")
    return orders, attempt


def _before(index: Index, offset: int) -> Iterator[Record]:
    """Also those that are void: what was left out after a rollback stays left out."""
    with index.lock:
        rows = index.others.rows
        kinds = [index.others.kinds.index(kind) for kind in _FIRST if kind in index.others.kinds]
        found = rows[np.isin(rows[:, KIND], kinds) & (rows[:, OFFSET] < offset), OFFSET]
        yield from map(index.record, map(int, found))


def _by_source(ids: np.ndarray, sizes: Sequence[int], names: Sequence[str]) -> Iterator[SamplesOfSource]:
    first = 0
    for name, size in zip(names, sizes, strict=True):
        own = ids[(ids >= first) & (ids < first + size)]
        if len(own):
            yield {"source": name, "total": len(own), "ids": own[:_SHOWN].tolist()}
        first += size
