"""Records that are no steps: where each stands on the axes and in the ledger, and the numbers that they tell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from drivetrain.board.columns import Column, drawable
from drivetrain.board.steps import AXES, STEP, Numbers
from drivetrain.board.zoom import OPENS, VOID, Curve, Window, nothing

OFFSET, KIND, SPENT, VOIDED = range(len(AXES), len(AXES) + 4)
"""Columns of the rows after those of `AXES`: where the line begins, what kind it is (a place in `kinds`), seconds that
it tells, and 1 where it is void. What is of no step, such as an attempt, is never void: it has NaN there."""


class Others:
    """The rows, in the order of the ledger."""

    def __init__(self) -> None:
        self.column = Column(VOIDED + 1, "f8")
        self.kinds: list[str] = []
        self.points: dict[str, Column] = {}
        """Numbers by name: [points, 2] of a row and a value."""

    @property
    def rows(self) -> Numbers:
        """[records, 9]."""
        return self.column.rows

    def add(self, kind: str, place: Numbers, offset: int, spent: float, *, of_step: bool) -> int:
        """One more; `place` is [5], by `AXES`. Returns its row."""
        if kind not in self.kinds:
            self.kinds.append(kind)
        row = np.empty((1, VOIDED + 1))
        row[0, : len(AXES)] = place
        row[0, [OFFSET, KIND, SPENT, VOIDED]] = offset, self.kinds.index(kind), spent, 0.0 if of_step else np.nan
        self.column.extend(row)
        return len(self.column) - 1

    def tell(self, row: int, name: str, value: float) -> None:
        """A number that the record of this row has."""
        self.points.setdefault(name, Column(2, "f8")).extend(np.array([[row, value]]))

    def go_back(self, step: int) -> dict[str, float]:
        """What was done after this step is void; returns the seconds of those records, by kind."""
        rows = self.rows
        void = (rows[:, STEP] > step) & (rows[:, VOIDED] == 0)
        rows[void, VOIDED] = 1
        lost: dict[str, float] = {}
        for kind, seconds in zip(rows[void, KIND], rows[void, SPENT], strict=True):
            name = self.kinds[int(kind)]
            lost[name] = lost.get(name, 0.0) + float(seconds)
        return lost

    def offsets(self, kinds: Sequence[str]) -> Iterator[int]:
        """Where the records of these kinds begin that count, newest first."""
        wanted = [self.kinds.index(kind) for kind in kinds if kind in self.kinds]
        rows = self.rows
        found = np.flatnonzero(np.isin(rows[:, KIND], wanted) & (rows[:, VOIDED] != 1))
        yield from map(int, rows[found[::-1], OFFSET])

    def counts(self) -> dict[str, int]:
        """How many there are of each kind."""
        counts = np.bincount(self.rows[:, KIND].astype(int), minlength=len(self.kinds))
        return dict(zip(self.kinds, map(int, counts), strict=True))

    def live(self, name: str) -> tuple[Numbers, Numbers]:
        """The numbers of a name that count: [points], and the rows of their records."""
        told = self.points[name].rows
        rows = self.rows[told[:, 0].astype(int)]
        counts = rows[:, VOIDED] != 1
        return told[counts, 1], rows[counts]

    def curve(self, name: str, window: Window) -> Curve:
        """What is drawn of a name."""
        told = self.points[name].rows
        rows = self.rows[told[:, 0].astype(int)]
        x, void, values = rows[:, window.axis], rows[:, VOIDED] == 1, told[:, 1]
        there = (x >= window.lo) & (x <= window.hi) & drawable(values)
        if not there.any():
            return nothing()
        x, void, values = x[there], void[there], values[there]
        # A stretch begins where steps go back. Void ones and others are never taken together.
        opens = np.diff(x, prepend=-np.inf) < 0
        opens[1:] |= void[1:] != void[:-1]
        starts = _starts(opens, -(-len(x) // window.points))
        mean = np.add.reduceat(values, starts) / np.diff(np.append(starts, len(x)))
        low, high = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
        flags = (VOID * void[starts] + OPENS * opens[starts]).astype("u1")
        return Curve(x[starts], low.astype("f4"), high.astype("f4"), mean.astype("f4"), flags, len(starts) == len(x))


def _starts(opens: NDArray[np.bool_], wide: int) -> NDArray[np.int64]:
    """Where so many points are taken together, a stretch by itself."""
    begins = np.union1d([0], np.flatnonzero(opens))
    ends = np.append(begins[1:], len(opens))
    return np.concatenate([np.arange(begin, end, wide) for begin, end in zip(begins, ends, strict=True)])
