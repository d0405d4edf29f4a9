"""What is asked of an index."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from drivetrain.board.index import Index
from drivetrain.board.steps import TIME
from drivetrain.ledger.records import Record
from drivetrain.ledger.run_summary import seconds_by_use


def seconds(index: Index) -> dict[str, float]:
    """Seconds by use, as `RunSummary.seconds`."""
    return seconds_by_use(index.tallies, index.lost)


def series(index: Index) -> dict[str, int]:
    """How many points each name has, steps first."""
    with index.lock:
        steps = int(index.groups.spans.rows[:, 2].sum()) if len(index.groups) else 0
        found = dict.fromkeys(index.groups.series, steps)
        for name, column in index.others.points.items():
            found.setdefault(name, len(column))
        return found


def span(index: Index, axis: int) -> tuple[float, float] | None:
    """From where to where on an axis its steps go, those that are void too; None before the first."""
    with index.lock:
        if not len(index.groups):
            return None
        # A clock may have been set back: the ends are not at the ends.
        first, last = index.groups.first.rows[:, axis], index.groups.last.rows[:, axis]
        return float(min(first.min(), last.min())), float(max(first.max(), last.max()))


def last(index: Index, name: str) -> float:
    """The newest value of a name that counts; NaN where there is none, or the ledger that has it is gone."""
    if name in index.others.points:
        values, _ = index.others.live(name)
        return float(values[-1]) if len(values) else float("nan")
    with index.lock, suppress(OSError):
        ending = index.groups.ending(index.reader)
        if ending is not None:
            return float(ending.of(name)[-1])
    return float("nan")


def newest(index: Index, kind: str) -> Record | None:
    """The newest record of a kind that counts."""
    offset = next(index.others.offsets([kind]), None)
    return None if offset is None else index.record(offset)


def step_at(index: Index, axis: int, place: float) -> int | None:
    """Where the record of the last step that counts up to this place of an axis begins; None before the first."""
    # Sums of seconds are not the same to the last bit, however they are made.
    place += abs(place) * 1e-12 if axis == TIME else abs(place) * 1e-9
    with index.lock:
        for stretch in reversed(index.groups.stretches):
            if stretch.void:
                continue
            rows = slice(stretch.begin, stretch.end)
            # A clock may have been set back: the last one is looked for, and not the first that is beyond.
            least = np.minimum(index.groups.first.rows[rows, axis], index.groups.last.rows[rows, axis])
            there = np.flatnonzero(least <= place)
            if len(there):
                group = stretch.begin + int(there[-1])
                made = index.groups.read(group, group + 1, index.reader)
                at = np.flatnonzero(made.axes[:, axis] <= place)
                return int(made.spans[max([0, *at]), 0])
    return None
